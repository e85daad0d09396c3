"""The dataset that SkyRL reads, and the entry in skyrl-gym's registry that plays it."""
# R24

from __future__ import annotations

import pyarrow.parquet
import pytest
import skyrl_gym

from mcprl.errors import BadValueError
from mcprl.recipe import load_recipe
from mcprl.tasks import load_tasks
from mcprl_skyrl_gym import McpTextEnv, register, write_dataset
from mcprl_skyrl_gym.rows import task_of_extras


@pytest.fixture
def registry(monkeypatch):
    """skyrl-gym's registry, as it was before."""
    found = dict(skyrl_gym.registry)
    yield skyrl_gym.registry
    skyrl_gym.registry.clear()
    skyrl_gym.registry.update(found)


def test_the_rows_give_back_the_tasks_they_were_written_from(recipe, tmp_path):
    config = load_recipe(recipe)
    path = tmp_path / "train.parquet"
    assert write_dataset(config, path) == 4
    rows = pyarrow.parquet.read_table(path).to_pylist()
    assert [task_of_extras(row) for row in rows] == list(load_tasks(config.tasks.train))
    assert {row["env_class"] for row in rows} == {"mcprl"}
    assert rows[0]["prompt"] == [{"role": "user", "content": "Do greet."}]
    assert rows[0]["data_source"] == "small"


def test_another_file_of_tasks_can_be_written_for_evaluation(recipe, tmp_path):
    other = tmp_path / "held-out.jsonl"
    other.write_text('{"id": "held-out", "prompt": "Größe?", "answer": {"any": true}}\n')
    assert write_dataset(load_recipe(recipe), tmp_path / "eval.parquet", tasks=other) == 1
    (row,) = pyarrow.parquet.read_table(tmp_path / "eval.parquet").to_pylist()
    assert row["prompt"][0]["content"] == "Größe?"


def test_a_name_that_skyrl_would_take_for_a_dataset_of_the_hub_is_refused(recipe, tmp_path):
    with pytest.raises(BadValueError, match=r"\.parquet"):
        write_dataset(load_recipe(recipe), tmp_path / "train")


@pytest.mark.process
def test_the_registered_environment_is_made_by_its_id(recipe, tasks, registry):
    import json

    register(recipe, strict=True)
    register(recipe, strict=True)  # in a worker that was used before
    extras = {"mcprl_task": json.dumps(tasks["greet"]), "max_turns": 3}
    env = skyrl_gym.make("mcprl", env_config={}, extras=extras)
    assert isinstance(env, McpTextEnv)
    assert env.max_turns == 3
    with pytest.raises(BadValueError, match="already registered"):
        register(recipe, strict=False)


def test_a_recipe_that_cannot_be_read_is_not_registered(tmp_path, registry):
    from mcprl.errors import ConfigFileError

    with pytest.raises(ConfigFileError):
        register(tmp_path / "missing.yaml")
    assert "mcprl" not in registry
