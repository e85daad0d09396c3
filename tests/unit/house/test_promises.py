"""scripts/promises: what it runs, what it reads, and when it says no."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from source_files import ROOT

pytestmark = pytest.mark.process

REPORT = """<testsuites><testsuite>
<testcase classname="tests.unit.test_a" name="test_good[1]" time="0.5">
  <properties><property name="error" value="1e-05"/></properties></testcase>
<testcase classname="tests.unit.test_a" name="test_good[2]" time="0.5"/>
<testcase classname="tests.unit.test_a" name="test_goods" time="9"><failure/></testcase>
<testcase classname="tests.unit.test_a" name="test_skipped" time="0"><skipped/></testcase>
</testsuite></testsuites>"""


@pytest.fixture
def measure(tmp_path: Path):
    """Run scripts/promises on a promise file with this text; give back the exit status and the verdicts by id."""

    def run(toml: str, *options: str):
        file = tmp_path / "promises.toml"
        file.write_text(toml)
        command = [sys.executable, str(ROOT / "scripts/promises.py"), "--file", str(file), "--json", *options]
        result = subprocess.run(command, capture_output=True, text=True, timeout=60)
        verdicts = json.loads(result.stdout) if result.stdout.startswith("[") else []
        return result, {verdict["id"]: verdict for verdict in verdicts}

    return run


def entry(promise_id: str, **fields: object) -> str:
    lines = "\n".join(f"{name} = {json.dumps(value)}" for name, value in fields.items())
    return f'[[promise]]\nid = "{promise_id}"\nsays = "It works."\n{lines}\n'


def test_a_command_that_fails_breaks_its_promise_and_the_run(measure):
    result, verdicts = measure(entry("good", command="true") + entry("bad", command="exit 3"), "--all")
    assert result.returncode == 1
    assert verdicts["good"]["holds"] is True
    assert verdicts["bad"]["holds"] is False
    assert verdicts["bad"]["measured"] == "exit 3"


@pytest.mark.parametrize(("bar", "holds"), [("<= 0.5", True), ("< 0.5", False), (">= 1e3", False), ("== 0.5", True)])
def test_a_figure_of_the_last_line_is_held_against_the_bar(measure, bar, holds):
    command = """echo noise; echo '{"error": 0.5}'"""
    result, verdicts = measure(entry("p", command=command, figure="error", bar=bar), "p")
    assert verdicts["p"]["holds"] is holds
    assert result.returncode == (0 if holds else 1)


def test_a_missing_figure_breaks_the_promise(measure):
    _, verdicts = measure(entry("p", command="echo done", figure="error", bar="<= 1"), "--all")
    assert verdicts["p"]["holds"] is False
    assert verdicts["p"]["measured"] == "no figure error"


def test_promises_that_share_a_command_share_its_run(measure, tmp_path):
    command = f"""echo x >> {tmp_path}/runs; echo '{{"a": 1, "b": 9}}'"""
    toml = entry("a", command=command, figure="a", bar="<= 5") + entry("b", command=command, figure="b", bar="<= 5")
    _, verdicts = measure(toml, "--all")
    assert (verdicts["a"]["holds"], verdicts["b"]["holds"]) == (True, False)
    assert (tmp_path / "runs").read_text() == "x\n"


def test_a_command_that_does_not_end_is_ended(measure):
    result, verdicts = measure(entry("p", command="sleep 600 & sleep 600", timeout_s=0.2), "--all")
    assert result.returncode == 1
    assert verdicts["p"]["measured"] == "no end after 0.2 s"


MEETING = """echo {own} says; touch {folder}/{own}; for _ in $(seq 300); do
    [ -e {folder}/{other} ] && break; sleep 0.1; done; echo {own} ends >&2; [ -e {folder}/{other} ]"""


def test_commands_that_may_share_the_machine_run_two_at_a_time_and_speak_one_after_the_other(measure, tmp_path):
    toml = ""
    for own, other in (("one", "two"), ("two", "one")):
        command = "echo begins >&2; " + MEETING.format(own=own, other=other, folder=tmp_path)
        toml += entry(own, command=command, beside=True)
    result, verdicts = measure(toml, "--all")
    assert result.returncode == 0, result.stderr  # each waited for the other
    assert list(verdicts) == ["one", "two"]
    said = [line for line in result.stderr.splitlines() if line == "begins" or line.endswith(" ends")]
    assert said in (["begins", "one ends", "begins", "two ends"], ["begins", "two ends", "begins", "one ends"])


def test_a_command_that_shares_the_machine_keeps_its_status_its_figures_and_its_limit(measure):
    figures = """echo '{"error": 0.5}'"""
    toml = "".join(
        [
            entry("low", command=figures, figure="error", bar="<= 0.4", beside=True),
            entry("high", command=figures, figure="error", bar="<= 0.6", beside=True),
            entry("bad", command="echo why; exit 3", beside=True),
            entry("long", command="sleep 600 & sleep 600", timeout_s=0.2, beside=True),
        ]
    )
    result, verdicts = measure(toml, "--all")
    assert result.returncode == 1
    assert [verdicts[name]["measured"] for name in ("low", "high", "bad", "long")] == [
        "0.5", "0.5", "exit 3", "no end after 0.2 s",
    ]  # fmt: skip
    assert [verdict["holds"] for verdict in verdicts.values()] == [False, True, False, False]
    assert "why\n\n(exit 3)" in result.stderr


def test_a_command_has_the_machine_to_itself_where_one_of_its_promises_says_no_other(measure, tmp_path):
    """Each notes when it begins and ends: between the two of one that is timed nothing else is noted."""

    def noting(name: str) -> str:
        return f"echo {name} >> {tmp_path}/noted; sleep 0.3; echo {name} >> {tmp_path}/noted"

    toml = entry("a", command=noting("timed"), beside=True) + entry("b", command=noting("timed"))
    toml += "".join(entry(name, command=noting(name), beside=True, about_s=1) for name in ("one", "two"))
    result, _ = measure(toml, "--all")
    assert result.returncode == 0, result.stderr
    noted = (tmp_path / "noted").read_text().split()
    assert noted[-2:] == ["timed", "timed"]
    assert sorted(noted[:-2]) == ["one", "one", "two", "two"]


def test_those_that_take_longest_begin_first(measure, tmp_path):
    toml = "".join(
        entry(name, command=f"echo {name} >> {tmp_path}/noted; sleep 0.5", beside=True, about_s=about_s)
        for name, about_s in (("short", 1), ("long", 9), ("middle", 5))
    )
    measure(toml, "--all")
    *both, last = (tmp_path / "noted").read_text().split()
    assert (sorted(both), last) == (["long", "middle"], "short")


def test_a_covered_test_is_read_from_the_report_with_all_its_parameters(measure, tmp_path):
    (tmp_path / "junit.xml").write_text(REPORT)
    toml = "".join(
        [
            entry("good", test="tests/unit/test_a.py::test_good", covered_by="pytest", figure="error", bar="<= 1e-4"),
            entry("skipped", test="tests/unit/test_a.py::test_skipped", covered_by="pytest"),
            entry("absent", test="tests/unit/test_a.py::test_absent", covered_by="pytest"),
            entry("file", test="tests/unit/test_a.py", covered_by="pytest"),
        ]
    )
    result, verdicts = measure(toml, "--all", "--junit", str(tmp_path / "junit.xml"))
    assert result.returncode == 1
    assert verdicts["good"]["holds"] is True
    assert verdicts["good"]["measured"] == "1e-05"
    assert verdicts["skipped"]["holds"] is False
    assert verdicts["absent"]["measured"] == "did not run"
    assert verdicts["file"]["holds"] is False


def test_without_a_report_a_covered_test_is_run(measure):
    test = "tests/unit/house/test_shape.py::test_no_function_is_longer_than_60_lines"
    _, verdicts = measure(entry("p", test=test, covered_by="pytest", figure="longest_function_lines", bar="<= 60"), "p")
    assert verdicts["p"]["holds"] is True
    assert float(verdicts["p"]["measured"]) > 1


def counting(file: Path, figures: str, more: str = "") -> str:
    """A command that gives one of these figures each time that it runs."""
    return f"""echo x >> {file}; set -- {figures}; shift $(($(wc -l < {file}) - 1)); echo "{{\\"s\\": $1}}"; {more}"""


@pytest.mark.parametrize(
    ("bar", "figures", "measured", "holds"),
    [
        ("<= 1", "0.9", "0.9", True),
        ("<= 1", "1.9", "1.9", None),
        ("<= 1", "2.1 0.9", "2.1, then 0.9", True),
        ("<= 1", "2.1 1.9", "2.1, then 1.9", None),
        ("<= 1", "2.1 2.2 0.9", "2.1, then 2.2", False),
        (">= 3", "3.1", "3.1", True),
        (">= 3", "1.6", "1.6", None),
        (">= 3", "1.4 1.6", "1.4, then 1.6", None),
        (">= 3", "1.4 1.3 3.1", "1.4, then 1.3", False),
    ],
)
def test_a_speed_fails_in_the_gate_if_it_is_off_by_more_than_2_times_in_two_measurements(
    measure, tmp_path, bar, figures, measured, holds
):
    toml = entry("p", command=counting(tmp_path / "runs", figures), figure="s", bar=bar, speed=True)
    result, verdicts = measure(toml, "--all")
    assert (verdicts["p"]["measured"], verdicts["p"]["holds"]) == (measured, holds)
    assert result.returncode == (1 if holds is False else 0)
    assert verdicts["p"]["verdict"] == {True: "holds", False: "DOES NOT HOLD", None: "recorded (misses its bar)"}[holds]


def test_at_full_size_a_speed_is_absolute_and_measured_once(measure, tmp_path):
    toml = entry("p", command=counting(tmp_path / "runs", "1.1 0.9"), figure="s", bar="<= 1", speed=True)
    result, verdicts = measure(toml, "--all", "--full")
    assert (verdicts["p"]["measured"], verdicts["p"]["holds"]) == ("1.1", False)
    assert result.returncode == 1


def test_what_is_not_about_speed_is_exact_and_measured_once(measure, tmp_path):
    toml = entry("lost", command=counting(tmp_path / "lost", "1 0"), figure="s", bar="<= 0")
    toml += entry("failed", command=counting(tmp_path / "failed", "9 0", "false"), figure="s", bar="<= 1", speed=True)
    result, verdicts = measure(toml, "--all")
    assert result.returncode == 1
    assert {name: verdict["measured"] for name, verdict in verdicts.items()} == {"lost": "1", "failed": "exit 1"}


def test_a_test_that_asserts_a_speed_itself_is_run_once_more(measure, tmp_path):
    toml = entry("p", command=f"echo x >> {tmp_path}/runs; test $(wc -l < {tmp_path}/runs) = 2", speed=True)
    result, verdicts = measure(toml, "--all")
    assert (verdicts["p"]["measured"], verdicts["p"]["holds"], result.returncode) == ("exit 1, then passes", True, 0)


def test_a_bench_that_is_only_slow_breaks_no_promise_that_is_not_about_speed(measure):
    sys.path.append(str(ROOT / "bench"))
    from servers.harness import exit_status

    command = f"""echo '{{"lost": 0, "s": 3}}'; exit {exit_status([], ["s is 3, its bar is <= 2"])}"""
    toml = entry("lost", command=command, figure="lost", bar="== 0")
    toml += entry("slow", command=command, figure="s", bar="<= 2", speed=True)
    _, verdicts = measure(toml, "--all", "--full")
    assert {name: verdict["holds"] for name, verdict in verdicts.items()} == {"lost": True, "slow": False}


def test_the_verdicts_can_be_saved_beside_the_table(measure, tmp_path):
    measure(entry("p", command="true"), "--all", "--save", str(tmp_path / "verdicts.json"))
    assert [verdict["id"] for verdict in json.loads((tmp_path / "verdicts.json").read_text())] == ["p"]


def test_full_size_is_measured_only_on_request(measure):
    toml = entry("big", command="exit 1", size="full") + entry("both", command="exit 1", full="true")
    _, verdicts = measure(toml, "--all")
    assert verdicts["big"]["holds"] is None
    assert verdicts["both"]["holds"] is False
    _, verdicts = measure(toml, "--all", "--full")
    assert (verdicts["big"]["holds"], verdicts["both"]["holds"]) == (False, True)


@pytest.mark.parametrize(
    ("toml", "message"),
    [
        (entry("p"), "needs either `command` or `test`"),
        (entry("p", command="true", bar="<= 1"), "`figure` and `bar` go together"),
        (entry("p", command="true", figure="x", bar="about 1"), 'write it like "<= 1e-4"'),
        (entry("p", command="true", sayz="x"), "sayz"),
        (entry("p", command="true") * 2, "two promises have the id p"),
        (entry("p", test="tests/unit", beside=True), "`beside` needs `command`"),
        (entry("p", command="true", figure="x", bar="== 0", speed=True), "`speed` needs a bound above 0"),
    ],
)
def test_a_mistake_in_the_file_is_a_sentence(measure, toml, message):
    result, _ = measure(toml, "--all")
    assert result.returncode != 0
    assert message in result.stderr
    assert "Traceback" not in result.stderr


def test_an_unknown_id_is_refused_with_those_there_are(measure):
    result, _ = measure(entry("parity", command="true"), "partiy")
    assert result.returncode == 2
    assert "there are: parity" in result.stderr
