"""`mcprl doctor`: its arguments, output and exit code."""
# R25, R32

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
import typer
from patients import server
from rich.console import Console
from typer.testing import CliRunner

from mcprl.checks.doctor.examination import fine, skipped, warning, wrong
from mcprl.cli.doctor import command, print_closing, print_finding

app = typer.Typer()
app.command()(command)

WITHOUT_TORCH = """
import sys, typer
from mcprl.cli.doctor import command
app = typer.Typer()
app.command()(command)
try:
    app(sys.argv[1:])
finally:
    print("imported:", sorted({"torch", "transformers", "vllm", "ray", "peft"} & set(sys.modules)))
"""


def doctor(patient, *arguments: str):
    patient.write()
    return CliRunner().invoke(app, [str(patient.recipe), *arguments], env={"COLUMNS": "160"})


@pytest.mark.process
def test_a_correct_recipe_exits_with_0_and_prints_a_line_per_check(patient):
    result = doctor(patient, "--fast")
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    assert lines[0].startswith("✓  recipe ")
    assert any(line.startswith("–  parity ") and "skipped: --fast loads no model" in line for line in lines)
    assert lines[-1].startswith("No errors found: ")


@pytest.mark.process
def test_a_fault_exits_with_1_and_shows_its_code_and_fix(patient):
    patient.tasks[0]["tools"] = ["find_persons"]
    result = doctor(patient, "--fast")
    assert result.exit_code == 1
    assert "✗  tasks and tools" in result.stdout
    assert "E-TOOL-003" in result.stdout
    assert "Fix: correct the name in the task" in result.stdout
    assert "Not ready" in result.stdout


@pytest.mark.process
def test_json_is_one_object_with_every_finding(patient):
    patient.servers["idle"] = server()
    result = doctor(patient, "--fast", "--json")
    report = json.loads(result.stdout)
    assert (result.exit_code, report["passed"]) == (0, True)
    by_check = {finding["check"]: finding for finding in report["findings"]}
    assert by_check["server idle"]["severity"] == "warn"
    assert by_check["server idle"]["fix"]
    assert by_check["sampler"]["severity"] == "skipped"


@pytest.mark.process
def test_settings_can_be_changed_for_the_examination(patient):
    result = doctor(patient, "--fast", "--json", "--set", "sampling.max_tokens=512")
    report = json.loads(result.stdout)
    assert result.exit_code == 1
    assert "limits" in {finding["check"] for finding in report["findings"] if finding["severity"] == "bad"}


@pytest.mark.process
def test_a_fast_examination_imports_neither_torch_nor_transformers(patient):
    patient.write()
    command = [sys.executable, "-c", WITHOUT_TORCH, str(patient.recipe), "--fast"]
    result = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "COLUMNS": "160"}, timeout=500)
    assert "imported: []" in result.stdout, result.stdout + result.stderr


def test_text_from_a_server_cannot_control_the_terminal(capsys):
    console = Console(width=100, highlight=False)
    print_finding(console, wrong("server people", "it said \x1b[31mred", fix="correct [bold]it[/bold]"))
    shown = capsys.readouterr().out
    assert "\x1b" not in shown
    assert "\\x1b[31mred" in shown
    assert "[bold]it[/bold]" in shown


def test_the_closing_line_counts_what_was_found(capsys):
    console = Console(width=100, highlight=False)
    findings = [fine("a", "x"), warning("b", "y", "z"), wrong("c", "y", "z"), skipped("d", "needs a")]
    print_closing(console, findings, 3.2)
    assert capsys.readouterr().out.strip() == "Not ready: 1 ok, 1 warning, 1 error, 1 skipped; 3 s."
    print_closing(console, findings[:1], 3.2)
    assert capsys.readouterr().out.strip() == "Ready to train: 1 ok; 3 s."
