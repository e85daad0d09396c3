"""Code of the user's own, named in a recipe: it is used, and what is wrong with it is named with file and line."""

from __future__ import annotations

import pytest

from mcprl.config import RunConfig
from mcprl.errors import BadValueError, UserCodeError
from mcprl.functions import Code, UserCode, load_function
from mcprl.recipe import load_recipe


def write(folder, text, name="own.py"):
    (folder / name).write_text(text)
    return folder / name


def test_a_function_may_import_its_neighbors(tmp_path):
    write(tmp_path, "FACTOR = 3", "beside_this_test.py")
    file = write(tmp_path, "from beside_this_test import FACTOR\ndef triple(x):\n    return FACTOR * x\n")
    assert load_function(f"{file}:triple", "algorithm.loss")(2) == 6


@pytest.mark.parametrize(
    ("text", "name", "said"),
    [
        ("def sapo(x):\n    return x\n", "sappo", "defines no such function or class (did you mean 'sapo'?)"),
        ("sapo = 3\n", "sapo", "defines no such function"),
        ("x = 1\ndef sapo(:\n", "sapo", "own.py:2: SyntaxError"),
        ("import os\nimport no_such_module\n", "sapo", "own.py:2: ModuleNotFoundError"),
        ("def helper():\n    return 1 / 0\n\nhelper()\n", "sapo", "own.py:2: ZeroDivisionError"),
    ],
)
def test_code_that_cannot_be_loaded_is_named_with_its_line(tmp_path, text, name, said):
    file = write(tmp_path, text)
    with pytest.raises(UserCodeError) as raised:
        load_function(f"{file}:{name}", "algorithm.loss")
    assert said in raised.value.what


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(UserCodeError, match=r"tracking\.tracker refers to .*gone\.py, which is not a file"):
        load_function(f"{tmp_path}/gone.py:Mine", "tracking.tracker")


def test_an_exception_in_a_library_is_blamed_on_the_line_that_called_it(tmp_path):
    file = write(tmp_path, "import json\n\ndef read(text):\n    return json.loads(text)\n")
    read = load_function(f"{file}:read", "x")
    with pytest.raises(UserCodeError, match=r"own\.py:4: JSONDecodeError"), UserCode(f"{file}:read"):
        read("{")


def test_other_code_and_its_neighbors_have_another_digest(tmp_path):
    file = write(tmp_path, "def f(): ...\n")
    before = Code.read([f"{file}:f"]).digest
    assert Code.read([f"{file}:f"]).digest == before
    write(tmp_path, "", "neighbor.py")
    with_neighbor = Code.read([f"{file}:f"]).digest
    write(tmp_path, "def f(): return 1\n")
    assert len({before, with_neighbor, Code.read([f"{file}:f"]).digest}) == 3


def recipe(tmp_path, *overrides) -> RunConfig:
    (tmp_path / "recipe.yaml").write_text(
        "name: own\nmodel: {path: ./model}\ntasks: {train: tasks.jsonl}\nservers: {file: servers.json}\n"
    )
    return load_recipe(tmp_path / "recipe.yaml", overrides)


def test_files_are_relative_to_the_recipe(tmp_path):
    config = recipe(tmp_path, "algorithm.loss=code/losses.py:sapo", "tracking.tracker=code/slack.py:Slack")
    assert config.algorithm.loss == f"{tmp_path}/code/losses.py:sapo"
    assert config.own_functions == [f"{tmp_path}/code/losses.py:sapo", f"{tmp_path}/code/slack.py:Slack"]
    assert recipe(tmp_path).own_functions == []


@pytest.mark.parametrize("value", ["pppo", "losses.py", "losses.py:a-b"])
def test_a_loss_is_one_of_ours_or_a_reference(tmp_path, value):
    with pytest.raises(BadValueError, match=r"a loss is ppo, gspo, cispo, or your own function, such as losses\.py"):
        recipe(tmp_path, f"algorithm.loss={value}")
