"""A transcript shows the conversation as it was, and nothing in it commands the terminal."""

from __future__ import annotations

import doctest
from io import StringIO

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from episodes_seen import make_task, make_trajectory
from mcprl.cli import printing as printable_module
from mcprl.cli.printing import printable
from mcprl.cli.try_ import print_transcript
from mcprl.errors import Fault
from mcprl.records import FinishReason, Observation, Turn


def transcript(*turns: Turn, task=None, colours: bool = False, **changes) -> str:
    out = StringIO()
    console = Console(file=out, width=200, force_terminal=colours, highlight=False)
    print_transcript(task or make_task(), make_trajectory(turns=turns, **changes), console)
    return out.getvalue()


def turn(text: str, *observations: Observation) -> Turn:
    return Turn(text=text, sampled_ids=(), finish=FinishReason.STOP, weights_version=0, observations=observations)


def seen(text: str, **changes) -> Observation:
    return Observation(**{"tool": "find_person", "server": "directory", "text": text, "latency_s": 0.012, **changes})


def test_question_turns_observations_and_reward_appear_in_order():
    text = transcript(
        turn("Let me look.", seen("Ana: Lima")),
        turn("I call again.", seen("no such tool", server=None, fault=Fault.POLICY)),
        turn("America/Lima"),
        reward=1.25,
        reward_parts={"answer": 1.0, "calls": 0.33333},
    )
    expected = [
        "task meet-ana, episode 2",
        "user │ Where is Ana?",
        "model │ Let me look.",
        "directory, 12 ms │ Ana: Lima",
        "model │ I call again.",
        "mcprl, 12 ms │ no such tool",
        "model │ America/Lima",
        'reward +1.250  answered  {"answer": 1.0, "calls": 0.333}  2 of 4 tokens sampled',
    ]
    places = [text.index(piece) for piece in expected]
    assert places == sorted(places)


def test_a_call_that_failed_is_red_and_one_that_worked_is_green():
    good = transcript(turn("x", seen("fine")), colours=True)
    bad = transcript(turn("x", seen("wrong", fault=Fault.POLICY)), colours=True)
    assert "\x1b[32mfine" in good
    assert "\x1b[31mwrong" in bad


def test_lines_of_one_speaker_stay_below_each_other():
    lines = transcript(turn("one\ntwo")).splitlines()
    first = next(n for n, line in enumerate(lines) if "one" in line)
    assert lines[first].index("│") == lines[first + 1].index("│")
    assert lines[first + 1].endswith("│ two")


HOSTILE = "[red]x[/red] [/nothing] [link=http://a]b"


@pytest.mark.parametrize("where", ["model", "tool", "server", "prompt", "id"])
def test_markup_is_shown_and_not_obeyed(where):
    task = make_task(
        **({"id": HOSTILE} if where == "id" else {}),
        **({"prompt": ({"role": "user", "content": HOSTILE},)} if where == "prompt" else {}),
    )
    observation = seen(HOSTILE if where == "tool" else "x", server=HOSTILE if where == "server" else "directory")
    assert HOSTILE in transcript(turn(HOSTILE if where == "model" else "x", observation), task=task)


@pytest.mark.parametrize(
    "command", ["\x1b[2J", "\x1b]0;owned\x07", "\x9b31m", "\r", "\x08", "\u202e", "\u200b", "\ufeff", "\U000e0041"]
)
@pytest.mark.parametrize("where", ["model", "tool", "server"])
def test_control_characters_are_written_out(command, where):
    text = f"a{command}b"
    observation = seen(text if where == "tool" else "x", server=text if where == "server" else "directory")
    shown = transcript(turn(text if where == "model" else "x", observation))
    assert f"a{printable(command)}b" in shown
    assert command not in shown
    assert command not in printable(command)


@given(st.text())
def test_no_text_sends_a_control_character_to_the_terminal(text):
    shown = transcript(turn(text, seen(text)))
    assert [c for c in shown if (ord(c) < 32 and c not in "\n\t") or 127 <= ord(c) < 160] == []
    shown.encode()


@given(st.text(st.characters(exclude_categories=["Cc", "Cf", "Cn", "Co", "Cs", "Zl", "Zp"], include_characters="\n\t")))
def test_text_without_control_characters_is_printable_as_it_is(text):
    assert printable(text) == text


def test_the_examples_in_the_documentation_hold():
    result = doctest.testmod(printable_module)
    assert (result.attempted, result.failed) == (3, 0)
