"""`mcprl init`: what it writes, what it prints, and what it refuses."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from mcprl.cli import SECTIONS, app
from mcprl.errors import BadValueError, McprlError
from mcprl.recipe import load_recipe
from mcprl.scaffold import DEFAULT_MODEL, FILES, FILES_FOR_SERVERS, TEMPLATE, write_project
from mcprl.tasks import load_tasks


@pytest.fixture
def here(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "60")
    return tmp_path


def init(*arguments: str) -> str:
    """What the command prints. An error of mcprl is raised."""
    result = CliRunner().invoke(app, ["init", *arguments])
    if isinstance(result.exception, Exception):
        raise result.exception
    assert result.exit_code == 0
    return result.stdout


def files_in(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def test_a_project_is_all_that_the_template_has_and_nothing_else(here):
    init("shop")
    assert files_in(here / "shop") == set(FILES)
    shipped = {name for name in files_in(TEMPLATE) if "__pycache__" not in name}
    assert {name.replace("gitignore", ".gitignore") for name in shipped} == set(FILES)


def test_the_recipe_loads_with_the_tasks_and_the_server_beside_it(here):
    init("shop")
    config = load_recipe(here / "shop" / "recipe.yaml")
    assert config.model.path == DEFAULT_MODEL
    assert config.tasks.validation is not None
    assert (len(load_tasks(config.tasks.train)), len(load_tasks(config.tasks.validation))) == (12, 4)
    assert all(task.solution for task in (*load_tasks(config.tasks.train), *load_tasks(config.tasks.validation)))
    assert os.access(here / "shop" / "server.py", os.X_OK)


def test_the_commands_to_go_on_with_exist_and_stand_on_lines_of_their_own(here):
    printed = init("my shop")
    commands = re.findall(r"^  ((?:cd|mcprl|python) .*?)(?:  # .*)?$", printed, re.MULTILINE)
    assert [" ".join(command.split()[:2]) for command in commands] == [
        "cd 'my",
        "python -m",
        "mcprl doctor",
        "mcprl play",
        "mcprl train",
        "mcprl dashboard",
        "mcprl eval",
    ]
    known = {name for section in SECTIONS.values() for name in section}
    assert {command.split()[1] for command in commands if command.startswith("mcprl")} <= known
    config = load_recipe(here / "my shop" / "recipe.yaml")
    assert commands[-1].endswith(f"--adapter {config.training.outputs / config.name / 'adapter'}")


@pytest.mark.parametrize(
    ("folder", "name"),
    [
        ("shop", "shop"),
        ("my shop (2)", "my-shop-2"),
        ("no", "no"),
        ("2026", "2026"),
        (".", "cellar"),
        ("Ωμ", "stock"),
    ],
)
def test_the_run_is_named_after_the_folder(here, monkeypatch, folder, name):
    (here / "cellar").mkdir()
    monkeypatch.chdir(here / "cellar")
    printed = init(folder)
    project = here / "cellar" / folder
    assert load_recipe(project / "recipe.yaml").name == name
    assert f"outputs/{name}/adapter" in printed
    for file in ("recipe.yaml", "README.md"):
        assert set(re.findall(r"outputs/([\w.-]+)", (project / file).read_text())) - {"before"} == {name}


def test_a_project_in_the_folder_one_stands_in_needs_no_cd(here):
    assert "cd " not in init(".")
    assert files_in(here) == set(FILES)


def test_a_folder_that_holds_something_is_refused_and_left_as_it_is(here):
    (here / "shop").mkdir()
    (here / "shop" / "notes.txt").write_text("mine")
    with pytest.raises(
        BadValueError, match=r"shop is not empty: it contains notes\.txt\. Fix: choose a new or empty folder"
    ):
        init("shop")
    assert files_in(here / "shop") == {"notes.txt"}


def test_a_second_project_does_not_overwrite_the_first(here):
    init("shop")
    (here / "shop" / "server.py").write_text("mine")
    with pytest.raises(BadValueError, match=r"it contains \.gitignore, README\.md, make_tasks\.py and 5 more"):
        init("shop")
    assert (here / "shop" / "server.py").read_text() == "mine"


def test_a_place_that_cannot_be_written_is_one_sentence(here):
    (here / "shop").write_text("a file")
    with pytest.raises(BadValueError, match="cannot write the project to shop: File exists"):
        init("shop")


def test_a_model_on_the_hub_is_written_as_it_is(here):
    printed = init("shop", "--model", "Qwen/Qwen3-8B")
    config = load_recipe(here / "shop" / "recipe.yaml")
    assert (config.model.path, config.model.thinking) == ("Qwen/Qwen3-8B", False)
    assert "Created a project for Qwen/Qwen3-8B in shop" in printed
    assert "model.renderer" not in printed


@pytest.mark.parametrize("folder", ["models/mine", "./models/mine", "models/it's: a #1 modèl"])
def test_a_folder_of_a_model_is_seen_from_where_the_command_runs(here, folder):
    (here / folder).mkdir(parents=True)
    printed = init("shop", "--model", folder)
    assert load_recipe(here / "shop" / "recipe.yaml").model.path == str((here / folder).absolute())
    assert "set model.renderer in recipe.yaml" in printed


@pytest.mark.parametrize(
    ("config", "tokenizer", "renderer", "thinking"),
    [
        ({"model_type": "qwen3"}, "{}", "qwen3", False),
        ({"model_type": "llama"}, '{"added_tokens": ["<|im_start|>", "<|im_end|>"]}', "chatml", None),
        ({"model_type": "llama"}, '{"chat_template": "…"}', "template", None),
        ({"model_type": "llama"}, "{}", "auto", None),
    ],
)
def test_the_renderer_of_a_folder_is_chosen_by_its_files(here, config, tokenizer, renderer, thinking):
    (here / "mine").mkdir()
    (here / "mine" / "config.json").write_text(json.dumps(config))
    (here / "mine" / "tokenizer_config.json").write_text(tokenizer)
    printed = init("shop", "--model", "./mine")
    model = load_recipe(here / "shop" / "recipe.yaml").model
    assert (model.renderer, model.thinking) == (renderer, thinking)
    assert ("set model.renderer in recipe.yaml" in printed) == (renderer == "auto")


@pytest.mark.parametrize("model", ["Qwen/Qwen3-4B-Thinking-2507", "meta-llama/Llama-3.2-1B-Instruct"])
def test_a_model_that_cannot_be_told_to_think_is_not_told(here, model):
    init("shop", "--model", model)
    assert load_recipe(here / "shop" / "recipe.yaml").model.thinking is None


@pytest.mark.parametrize("model", ["./nothing", "/nothing/here", "~/nothing", " "])
def test_a_folder_of_a_model_that_is_not_there_is_refused_before_anything_is_written(here, model):
    with pytest.raises(BadValueError, match="which does not exist"):
        write_project(Path("shop"), model)
    assert not (here / "shop").exists()


def test_the_help_names_the_model_that_is_taken_where_none_is_named():
    assert f"default: {DEFAULT_MODEL}." in " ".join(init("--help").split())


def test_a_project_for_servers_has_a_recipe_for_them_and_says_how_to_make_tasks(here):
    (here / "servers.json").write_text(json.dumps({"mcpServers": {"shop": {"url": "http://127.0.0.1:9/mcp"}}}))
    printed = init("mine", "--servers", "servers.json")
    assert files_in(here / "mine") == set(FILES_FOR_SERVERS)
    config = load_recipe(here / "mine" / "recipe.yaml")
    assert config.servers.file == here / "servers.json"
    assert config.rewards.answer == 2.0
    command = "mcprl tasks synthesize --servers ../servers.json --hints hints.yaml --out tasks"
    assert command in printed
    assert command in (here / "mine" / "README.md").read_text()


def test_a_servers_file_that_does_not_exist_is_refused_and_nothing_is_written(here):
    with pytest.raises(McprlError, match=r"gone\.json"):
        init("mine", "--servers", "gone.json")
    assert not (here / "mine").exists()
