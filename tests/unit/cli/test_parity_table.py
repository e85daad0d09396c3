"""The parity table shows every figure beside its bar, the worst tokens where something is off, and the verdict."""

from __future__ import annotations

import io
import re
from dataclasses import replace

import pytest
from rich.console import Console

from mcprl.checks.parity import ParityFigures, ParityReport, ScoredToken
from mcprl.cli.parity import print_parity
from mcprl.verdicts import Severity, Verdict

EXACT = ParityReport(
    dtype="float32",
    prompts=16,
    turns=29,
    tokens=1034,
    forced_tokens=62,
    alignment=1.0,
    figures=ParityFigures(
        logprob_mean_abs_error=3.1e-6,
        logprob_max_abs_error=5.2e-5,
        ratio_mean=1.0000001,
        ratio_mean_abs_error=3.2e-6,
        kl=2.2e-11,
        outside_share=0.0,
    ),
    worst=(
        ScoredToken(
            task_id="zone-of-[red]ana",
            turn=1,
            token=4,
            id=7,
            text="\x1b[2J\n[/x]",
            forced=False,
            sampled_logprob=-0.5,
            learner_logprob=-2.75,
        ),
    ),
    verdict=Verdict(severity=Severity.OK, what="exact: all agree", fix=""),
)


def off(severity: Severity) -> ParityReport:
    return replace(EXACT, verdict=Verdict(severity=severity, what="they [b]differ", fix="fix it"))


def shown(report: ParityReport, *, width: int = 100, colours: bool = False) -> str:
    console = Console(file=io.StringIO(), width=width, force_terminal=colours, highlight=False)
    print_parity(console, report)
    return console.file.getvalue()


def test_every_figure_stands_beside_what_is_exact():
    lines = shown(EXACT).splitlines()
    assert lines[0].rstrip() == "16 prompts, 29 turns, 1,034 sampled tokens, 62 of them forced; float32"
    rows = {cells[0]: cells[1:] for cells in (re.split(r"\s{2,}", line.strip()) for line in lines[2:10])}
    assert rows == {
        "sampler vs learner": ["measured", "exact"],
        "token alignment": ["100.00%", "100%"],
        "mean |Δlogprob|": ["3.1e-06", "≤ 5e-05"],
        "max |Δlogprob|": ["5.2e-05", "≤ 1e-03"],
        "mean ratio": ["1.00000", "1"],
        "mean |ratio − 1|": ["3.2e-06", "0"],
        "ratios outside 0.9–1.1": ["0.00%", "0%"],
        "KL (k3)": ["2.2e-11", "0"],
    }
    assert lines[-1].rstrip() == "exact: all agree"


def test_where_all_is_exact_no_token_is_shown_and_nothing_is_to_be_done():
    text = shown(EXACT)
    assert "zone-of" not in text
    assert "Fix" not in text


@pytest.mark.parametrize("severity", [Severity.WARN, Severity.BAD])
def test_where_something_is_off_the_worst_tokens_and_the_fix_are_shown_in_the_words_they_came(severity):
    text = shown(off(severity))
    (line,) = [line for line in text.splitlines() if "zone-of" in line]
    cells = re.split(r"\s{2,}", line.strip())
    assert cells == ["zone-of-[red]ana", r"'\x1b[2J\n[/x]'", "1", "4", "-0.5000", "-2.7500", "-2.2500"]
    assert [line.rstrip() for line in text.splitlines()[-2:]] == ["they [b]differ", "Fix: fix it."]
    assert "\x1b" not in text


def test_the_verdict_has_the_colour_of_its_severity():
    assert "\x1b[32mexact" in shown(EXACT, colours=True)
    assert "\x1b[33mthey" in shown(off(Severity.WARN), colours=True)
    assert "\x1b[1;31mthey" in shown(off(Severity.BAD), colours=True)


def test_no_figure_is_cut_on_a_narrow_terminal():
    text = shown(off(Severity.BAD), width=80)
    for figure in ("3.1e-06", "≤ 5e-05", "1.00000", "2.2e-11", "-2.7500", "-2.2500"):
        assert figure in text


def test_without_a_grammar_nothing_is_said_of_forced_tokens():
    assert "forced" not in shown(replace(EXACT, forced_tokens=0))
