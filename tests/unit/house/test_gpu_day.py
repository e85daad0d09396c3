"""The day on a GPU machine: its commands exist, whatever fails is reported, and the rest is still run."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest
from source_files import ROOT

sys.path.append(str(ROOT / "scripts"))

import gpu_day
from gpu_day import Result, Step


def no_gpus() -> list[str]:
    return []


def options() -> dict[str, set[str]]:
    """The options of each command of mcprl."""
    found: dict[str, set[str]] = {}
    for line in (ROOT / "tests/unit/house/cli_options.txt").read_text().splitlines():
        if line.startswith("mcprl"):
            command = line.removeprefix("mcprl").strip()
            found[command] = set()
        elif line.strip().startswith("--"):
            found[command].add(line.split()[0])
    return found


@pytest.mark.parametrize("dry", [True, False])
def test_every_recipe_for_a_gpu_has_its_steps_and_every_option_exists(dry, tmp_path):
    steps = list(gpu_day.steps(tmp_path, 8, dry=dry))
    stems = {recipe.stem for recipe in gpu_day.gpu_recipes()}
    assert {"qwen3-0.6b-lora-vllm", "qwen3-0.6b-qlora", "qwen3-fsdp2", "qwen3-full-zero3"} <= stems
    verbs = {"plan"} if dry else {"doctor", "train"}
    assert {step.name for step in steps} == {
        *(f"{verb} {stem}" for verb in verbs for stem in stems), "tests", "weight transfer", "against TRL",
        "bare engine",
    }  # fmt: skip
    for step in steps:
        if step.command[1:3] == ("-m", "mcprl"):
            given = {word for word in step.command if word.startswith("--")}
            assert given <= options()[step.command[3]]
        elif step.command[1].startswith("bench/"):
            text = (ROOT / step.command[1]).read_text()
            assert all(f'"{word}"' in text for word in step.command if word.startswith("--") and word != "--help")


def test_a_recipe_for_more_gpus_than_there_are_is_left_out(tmp_path):
    names = {step.name for step in gpu_day.steps(tmp_path, 1, dry=False)}
    assert "train qwen3-0.6b-lora-vllm" in names
    assert "train qwen3-fsdp2" not in names


def test_a_step_that_fails_is_reported_and_the_next_one_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(gpu_day, "gpus", lambda: ["Some Card, 81920 MiB, 570.1"])
    figures = {"sampled_tokens_per_second": 4321.0, "update_s": 1.5, "tasks": 3.0}

    def run(step: Step) -> Result:
        if step.name.startswith("doctor"):
            finding = {"check": "memory", "measured": "the learner needs about 3.1 GB per GPU"}
            return Result(0, 2.0, f"loading\n{json.dumps({'findings': [finding]})}\n")
        if step.run is not None:
            step.run.mkdir()
            (step.run / "metrics.jsonl").write_text(json.dumps(figures) + "\n")
            return Result(0, 60.0, "done", {"learner": 3000, "sampler": 9000})
        return Result(1 if step.name == "tests" else 0, 1.0, "1 failed")

    file = tmp_path / "report.md"
    assert gpu_day.main(["--report", str(file)], run=run) == 1
    text = file.read_text()
    assert "Some Card" in text
    assert "| tests | failed (1) | 1 |" in text
    assert re.search(r"memory, predicted: the learner needs about 3.1 GB per GPU\n- .*\"learner\": 3000", text)
    assert '- step 0: {"sampled_tokens_per_second": 4321.0, "update_s": 1.5}' in text
    assert "| bare engine | ok | 1 |" in text


def test_without_a_gpu_only_the_dry_run_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(gpu_day, "gpus", no_gpus)
    file = tmp_path / "report.md"
    assert gpu_day.main(["--report", str(file)]) == 2
    assert "no CUDA device" in capsys.readouterr().err
    assert gpu_day.main(["--report", str(file), "--dry-run"], run=lambda _: Result(0, 0.0, "")) == 0
    assert "(dry run)" in file.read_text()


def test_memory_is_told_apart_by_the_process_that_holds_it():
    lines = {7: "python -m vllm.entrypoints", 8: "VLLM::EngineCore", 9: "python -m mcprl train"}
    holders = "7, 100\n8, 9000\n9, 3000\n10, 5\n9, [N/A]\n"

    def read(pid: int) -> str:
        if pid not in lines:
            raise FileNotFoundError
        return lines[pid]

    assert gpu_day.held_by_part(read, holders) == {"sampler": 9100, "learner": 3000}


@pytest.mark.full
@pytest.mark.process
def test_the_dry_run_succeeds_here(tmp_path: Path):
    assert gpu_day.main(["--dry-run", "--report", str(tmp_path / "report.md")]) == 0
