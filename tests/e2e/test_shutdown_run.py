"""Ctrl-C of `mcprl train`: what it says, how it ends, and that `mcprl resume` goes on from there."""

from __future__ import annotations

import json
import re
import signal
import sys
import time
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).resolve().parents[2] / "bench"))

from commands import ended, has_an_episode, start, wait_for

from crashing.small_runs import small_run
from mcprl.training.shutdown import EXIT_STOPPED

pytestmark = [pytest.mark.process, pytest.mark.timeout(900)]

STEPS = 2


def test_a_run_that_is_interrupted_says_how_to_go_on_and_goes_on(small_qwen3, tmp_path, record_property):
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(small_run(tmp_path, "refill", model=small_qwen3, steps=STEPS).to_yaml())
    run = tmp_path / "outputs" / "refill"
    journal = run / "journal" / "step-00000.jsonl"

    with start("train", recipe) as process:
        wait_for(lambda: has_an_episode(journal), process)
        interrupted = time.monotonic()
        process.send_signal(signal.SIGINT)
        status, said = ended(process)
        record_property("exit_s", round(time.monotonic() - interrupted, 2))

    assert status == EXIT_STOPPED, said
    assert "Traceback" not in said
    saved = r"(?:\d+ finished episodes|.* and \d+ finished episodes of later steps) are saved"
    stood = re.search(rf"mcprl: stopped by SIG[A-Z]+ after step \d of {STEPS}; {saved}", said)
    assert stood, said
    assert said.rstrip().endswith(f". Resume with: mcprl resume {run}")
    assert not (run / "summary.json").exists()
    durable = sum(len(file.read_text().splitlines()) for file in (run / "journal").iterdir())
    assert int(re.findall(r"(\d+) finished episodes", stood[0])[0]) == durable

    with start("resume", run) as process:
        status, said = ended(process)
    assert status == 0, said
    assert (run / "summary.json").exists()
    assert [json.loads(line)["step"] for line in (run / "metrics.jsonl").read_text().splitlines()] == list(range(STEPS))
