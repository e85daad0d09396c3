"""`mcprl tasks` on real servers: validate, show, generate and schema, from their arguments to output and exit codes."""
# R20, R25, R31

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from mcprl.cli import app
from mcprl.errors import BadValueError, MissingExtraError, OtherWorldError, TaskFileError
from mcprl.tasks import load_tasks

ROOT = Path(__file__).parents[3]
DATA = ROOT.parent / "shared" / "data"
ZONE = {
    "id": "zone-of-ana",
    "prompt": "Which time zone is Ana's office in?",
    "answer": "America/Lima",
    "calls": [{"tool": "find_person", "arguments": {"name": "Ana"}}],
    "tools": ["find_person", "list_people"],
    "difficulty": "easy",
    "solution": {"calls": [{"name": "find_person", "arguments": {"name": "Ana"}}], "answer": "It is America/Lima."},
}


@pytest.fixture
def run(monkeypatch):
    """Runs a command; gives back its exit code and what it printed. An error of mcprl is raised."""
    monkeypatch.setenv("COLUMNS", "200")

    def invoke(*arguments: object) -> tuple[int, str]:
        result = CliRunner().invoke(app, ["tasks", *map(str, arguments)])
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return result.exit_code, result.stdout

    return invoke


@pytest.fixture
def write(tmp_path):
    def lines(*tasks: dict, name: str = "tasks.jsonl") -> Path:
        path = tmp_path / name
        path.write_text("".join(f"{json.dumps(task)}\n" for task in tasks))
        return path

    return lines


@pytest.fixture
def directory(tmp_path) -> Path:
    """An mcpServers file with a real server of two tools."""
    entry = {"command": sys.executable, "args": ["-m", "mcprl", "serve", "directory"]}
    path = tmp_path / "servers.json"
    path.write_text(json.dumps({"mcpServers": {"directory": entry}}))
    return path


@pytest.mark.process
def test_a_file_is_checked_with_the_servers_limits_and_rewards_of_a_recipe(run, write, directory, tmp_path):
    recipe = tmp_path / "recipe.yaml"
    settings = {"deny": ["list_people"]}
    recipe.write_text(
        "name: r\nmodel: {path: ./none}\ntasks: {train: tasks.jsonl}\nepisodes: {max_turns: {easy: 1}}\n"
        f"servers: {{file: servers.json, settings: {{directory: {json.dumps(settings)}}}}}\n"
    )
    code, printed = run("validate", write(ZONE), "--recipe", recipe)
    assert code == 1
    assert "offers 'list_people', which no server lists" in printed
    assert "one turn for calls and one for the answer, but its limit is 1 turn" in printed
    with pytest.raises(BadValueError, match="--recipe and --servers both specify servers"):
        run("validate", write(ZONE), "--recipe", recipe, "--servers", directory)


@pytest.mark.process
def test_a_file_with_nothing_wrong_exits_with_0(run, write, directory):
    code, printed = run("validate", write(ZONE), "--servers", directory)
    assert code == 0
    assert "tasks.jsonl: 1 tasks, no problems" in printed
    assert "list_people" in printed


@pytest.mark.process
def test_problems_exit_with_1_and_the_same_problem_of_many_tasks_stands_once(run, write, directory):
    tasks = [ZONE | {"id": f"t{n}", "prompt": f"{n}?", "tools": ["find_person", "find_city"]} for n in range(5)]
    code, printed = run("validate", write(*tasks), "--servers", directory)
    assert code == 1
    assert printed.count("offers 'find_city', which no server lists") == 1
    assert "t0 (line 1), t1 (line 2), t2 (line 3), … 2 more" in printed
    assert "tasks.jsonl: 5 tasks, 5 problems, 0 of 0 recorded calls drifted" in printed


@pytest.mark.process
def test_drifted_calls_are_shown_with_their_places_and_with_settings_to_paste(run, write, directory):
    call = '<tool_call>{"name": "find_person", "arguments": {"who": "Ana"}}</tool_call>'
    prompt = [{"role": "user", "content": "?"}, {"role": "assistant", "content": call}]
    code, printed = run("validate", write({"prompt": prompt * 2, "env_class": "e"}), "--servers", directory)
    assert code == 1
    assert "find_person has no argument 'who', is missing the argument 'name'  2 ×" in printed
    assert "line 1, message 2, 4" in printed
    assert "servers:\n  settings:\n    directory:\n      argument_aliases: {who: name}\n" in printed
    assert "reward_spec.ground_truth is missing" in printed


@pytest.mark.process
def test_leaks_are_looked_for_in_every_other_file(run, write, directory):
    first = write(ZONE | {"id": "x"}, name="first.jsonl")
    second = write(ZONE | {"id": "y", "prompt": "Another?", "answer": "z"}, name="second.jsonl")
    code, printed = run("validate", write(ZONE), "--servers", directory, "--against", first, "--against", second)
    assert code == 1
    assert "asks the same question as x (first.jsonl, line 1)" in printed
    assert "second.jsonl" not in printed


@pytest.mark.process
def test_json_is_the_whole_report(run, write, directory):
    code, printed = run("validate", write(ZONE | {"tools": ["find_persn"]}), "--servers", directory, "--json")
    report = json.loads(printed)
    assert code == 1
    assert report["fine"] is False
    assert {problem["kind"] for problem in report["problems"]} == {"unknown tool", "unreachable"}
    assert report["by_difficulty"] == [{"difficulty": "easy", "tasks": 1, "needed_calls": 1.0, "solved": 1}]
    assert "gold" not in report


@pytest.mark.process
def test_solutions_are_played_on_the_servers_and_one_that_earns_less_than_everything_is_a_problem(
    run, write, directory
):
    code, printed = run("validate", write(ZONE), "--servers", directory, "--gold")
    assert code == 0
    assert "1 of 1 solutions score 1.0" in printed
    wrong = ZONE | {
        "id": "wrong",
        "prompt": "?",
        "solution": {"calls": ZONE["solution"]["calls"], "answer": "Nowhere."},
    }
    unsolved = {name: value for name, value in ZONE.items() if name != "solution"} | {"id": "unsolved", "prompt": "x?"}
    tasks = write(ZONE, wrong, unsolved)
    code, printed = run("validate", tasks, "--servers", directory, "--gold")
    assert code == 1
    assert "1 of 2 solutions score 1.0; 1 tasks have no solution that can be run" in printed
    code, printed = run("validate", tasks, "--servers", directory, "--gold", "--json")
    rewards = {trial["task_id"]: trial["reward"] for trial in json.loads(printed)["gold"]}
    assert rewards["zone-of-ana"] == 1.0
    assert rewards["wrong"] < 1.0


@pytest.mark.process
def test_a_task_of_another_world_than_the_servers_is_not_played(run, write, directory):
    with pytest.raises(OtherWorldError, match="market-7"):
        run("validate", write(ZONE | {"world": "market-7"}), "--servers", directory, "--gold")
    with pytest.raises(BadValueError, match="the world 'staging', which none of mcprl's servers provides"):
        run("validate", write(ZONE | {"world": "staging"}))


@pytest.mark.process
def test_the_five_shipped_servers_are_the_default(run, write):
    task = {"id": "a", "prompt": "Open?", "calls": [{"tool": "polygon_get_market_status"}], "world": "market-3"}
    code, printed = run("validate", write(task), "--json")
    report = json.loads(printed)
    assert code == 0
    assert {row["server"] for row in report["by_tool"]} == {"fmp", "polygon", "tavily", "slack", "python"}


@pytest.mark.process
def test_the_drift_of_the_users_training_file_is_reported_against_the_shipped_servers(run):
    if not DATA.exists():
        pytest.skip("../shared/data is missing: put the user's SkyRL files there")
    code, printed = run("validate", DATA / "recorded-train.json")
    assert code == 1
    assert "fmp_get_quote has no argument 'ticker', is missing the argument 'symbol'  13 ×" in printed
    assert "polygon_get_ticker_details has no argument 'symbol', is missing the argument 'ticker'  5 ×" in printed
    assert "recorded-train.json: 94 tasks, 0 problems, 22 of 909 recorded calls drifted" in printed


@pytest.mark.process
def test_generated_tasks_are_the_same_for_the_same_arguments_and_have_nothing_wrong(run, tmp_path):
    options = ("--world", 3, "--train", 12, "--validation", 6, "--distractors", 2)
    code, printed = run("generate", "--out", tmp_path / "a", *options)
    assert code == 0
    assert "train.jsonl: 12 tasks" in printed
    run("generate", "--out", tmp_path / "b", *options)
    for name in ("train.jsonl", "validation.jsonl"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()
    assert {task.world for task in load_tasks(tmp_path / "a" / "train.jsonl")} == {"market-3"}
    train, validation = tmp_path / "a" / "train.jsonl", tmp_path / "a" / "validation.jsonl"
    code, printed = run("validate", train, "--against", validation, "--gold")
    assert "12 of 12 solutions score 1.0" in printed
    assert code == 0, printed


def test_a_folder_that_cannot_be_made_is_refused_by_name(run, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(TaskFileError, match="cannot create the folder"):
        run("generate", "--out", tmp_path / "file" / "inside", "--train", 1, "--validation", 1)


def test_show_lists_tasks_and_prints_one(run, write):
    file = write(
        ZONE
        | {
            "state": [{"tool": "list_people", "arguments": {"city": "Lima"}, "texts": ["Ana"]}],
            "max_turns": 3,
            "world": "market-7",
            "min_calls": 1,
            "rubric": "It is polite.\x1b[31m",
        }
    )
    code, printed = run("show", file)
    assert code == 0
    assert "zone-of-ana" in printed
    assert "Which time zone is Ana's office in?" in printed
    code, printed = run("show", file, "zone-of-ana")
    assert code == 0
    shown = yaml.safe_load(printed)
    assert (shown["id"], shown["world"], shown["max_turns"]) == ("zone-of-ana", "market-7", 3)
    assert shown["state"] == [{"tool": "list_people", "arguments": {"city": "Lima"}, "texts": ["Ana"]}]
    assert shown["calls"][0] == {"tool": "find_person", "arguments": {"name": "Ana"}}
    assert shown["solution"]["answer"] == "It is America/Lima."
    assert shown["rubric"] == "It is polite.\x1b[31m"
    assert "\x1b" not in printed
    with pytest.raises(BadValueError, match=r"has no task 'zone-of-anna' \(did you mean 'zone-of-ana'\?\)"):
        run("show", file, "zone-of-anna")


def test_schema_prints_the_published_schema(run):
    code, printed = run("schema")
    assert code == 0
    assert printed == (ROOT / "docs" / "schemas" / "task.json").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("command", "extra"), [("import", "synthesis"), ("synthesize", "synthesis"), ("generate", "market")]
)
def test_a_command_of_a_package_that_is_not_installed_names_its_extra(monkeypatch, command, extra):
    monkeypatch.setattr("mcprl.cli._plugins", lambda group="": {})
    error = CliRunner().invoke(app, ["tasks", command]).exception
    assert isinstance(error, MissingExtraError)
    assert error.fix == f"pip install 'mcprl[{extra}]'"
