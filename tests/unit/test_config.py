"""Recipes: which are read, which are refused, and the line that the error names."""
# R27

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st

from mcprl.config import RunConfig
from mcprl.errors import BadValueError, ConfigFileError, ConfigurationError, UnknownKeyError
from mcprl.recipe import CHANGED_SETTINGS, load_recipe, settings
from mcprl.records import Difficulty

BASE = """\
name: trial
model:
  path: ./model
tasks:
  train: tasks.jsonl
servers:
  file: servers.json
"""
BASE_LINES = BASE.count("\n")


@pytest.fixture
def recipe(tmp_path: Path):
    """Writes a recipe with this text after the required settings and gives back its path."""

    def write(extra: str = "", base: str = BASE) -> Path:
        path = tmp_path / "recipe.yaml"
        path.write_text(base + extra, encoding="utf-8")
        return path

    return write


def refusal(path: Path, *overrides: str) -> ConfigurationError:
    with pytest.raises(ConfigurationError) as caught:
        load_recipe(path, overrides)
    return caught.value


def test_a_recipe_with_only_the_required_settings_loads(recipe):
    config = load_recipe(recipe())
    assert config.name == "trial"
    assert config.sampling.temperature == 1.0


@pytest.mark.parametrize(
    ("extra", "line", "key", "suggestion"),
    [
        ("sed: 3\n", 1, "sed", "seed"),
        ("trainin:\n  steps: 3\n", 1, "trainin", "training"),
        ("sampling:\n  stop: [a]\n  temprature: 0.7\n", 3, "sampling.temprature", "temperature"),
        ("sampling:\n  vllm:\n    memory_fractio: 0.3\n", 3, "sampling.vllm.memory_fractio", "memory_fraction"),
    ],
)
def test_a_wrong_key_is_refused_with_its_line_and_the_nearest_setting(recipe, extra, line, key, suggestion):
    path = recipe(extra)
    error = refusal(path)
    assert isinstance(error, UnknownKeyError)
    assert error.what == f"{path}:{BASE_LINES + line}: unknown key {key!r} (did you mean {suggestion!r}?)"
    assert error.fix == f"rename it to {suggestion!r}"


def test_a_wrong_key_among_a_servers_settings_is_refused_with_its_line_and_the_nearest_setting(recipe):
    path = recipe("  settings:\n    directory:\n      strat: [mcprl]\n")
    error = refusal(path)
    assert isinstance(error, UnknownKeyError)
    assert f"{path}:{BASE_LINES + 3}: unknown key 'servers.settings.directory.strat'" in error.what
    assert "did you mean 'start'?" in error.what


@pytest.mark.parametrize(
    ("key", "suggestion"),
    [
        ("temperature", "sampling.temperature"),
        ("lora_rank", "learner.lora_rank"),
        ("call_deadline_s", "servers.settings.NAME.call_deadline_s"),
        ("learning_rate", "learner.learning_rate"),
        ("learnin_rate", "learner.learning_rate"),
    ],
)
def test_a_setting_in_the_wrong_section_is_refused_with_the_right_section(recipe, key, suggestion):
    assert f"did you mean {suggestion!r}?" in refusal(recipe(f"training:\n  {key}: 1\n")).what


def test_a_key_at_the_top_is_compared_with_the_settings_of_all_sections(recipe):
    assert "did you mean 'training.outputs'?" in refusal(recipe(), "output=here").what


def test_every_wrong_key_is_told_with_its_line_and_its_hint(recipe):
    path = recipe("sed: 3\ntraining:\n  learning_rate: 1.0e-5\n  top: 1\nengine: torch\n")
    error = refusal(path)
    assert isinstance(error, UnknownKeyError)
    assert error.what.splitlines() == [
        f"{path}:{BASE_LINES + 3}: unknown key 'training.learning_rate' (did you mean 'learner.learning_rate'?)",
        f"{path}:{BASE_LINES + 4}: unknown key 'training.top'",
        f"{path}:{BASE_LINES + 1}: unknown key 'sed' (did you mean 'seed'?) (and 1 more)",
    ]
    assert "training.learning_rate: rename it to 'learner.learning_rate'; " in error.fix
    assert error.fix.endswith("sed: rename it to 'seed'")


def test_a_key_like_no_setting_is_refused_without_a_suggestion(recipe):
    error = refusal(recipe("xyzzy: 1\n"))
    assert isinstance(error, UnknownKeyError)
    assert error.what.endswith("unknown key 'xyzzy'")


def test_a_wrong_key_is_named_before_the_missing_one_that_it_causes(recipe):
    path = recipe(base=BASE.replace("train:", "trian:"))
    error = refusal(path)
    assert f"{path}:5: unknown key 'tasks.trian' (did you mean 'train'?) (and 1 more)" in error.what


@pytest.mark.parametrize(
    ("extra", "line", "words"),
    [
        ("seed: many\n", 1, "'seed' is 'many'"),
        ("sampling:\n  temperature: 0\n", 2, "'sampling.temperature' is 0"),
        ("sampling:\n  temperature: .inf\n", 2, "finite number"),
        ("engine: torch\n", 1, "'vllm', 'transformers' or 'skyrl'"),
        ("sampling:\n  stop:\n  - a\n  - [b]\n", 4, "'sampling.stop.1' is ['b']"),
        ("episodes:\n  group_size: 1\n", 2, "greater than or equal to 2"),
        ("episodes:\n  max_turns:\n    easy: 0\n", 3, "'episodes.max_turns.easy' is 0"),
        ("episodes:\n  max_turns:\n    trivial: 2\n", 3, "'easy', 'medium' or 'hard'"),
        ("training:\n", 1, "'training' is None"),
        ("1: x\n", 1, "Keys should be strings"),
    ],
)
def test_a_bad_value_is_refused_with_its_line_and_the_reason(recipe, extra, line, words):
    path = recipe(extra)
    error = refusal(path)
    assert isinstance(error, BadValueError)
    assert error.what.startswith(f"{path}:{BASE_LINES + line}: ")
    assert words in error.what


@pytest.mark.parametrize("name", ["", ".hidden", "a/b", "../up", "a b", "a\\n"])
def test_a_name_that_could_leave_the_outputs_folder_is_refused(recipe, name):
    assert isinstance(refusal(recipe(base=BASE.replace("trial", f'"{name}"'))), BadValueError)


@pytest.mark.parametrize(
    "extra",
    ["episodes:\n  max_turns: {easy: 0}\n", "  settings:\n    d:\n      call_deadline_s: -1\n", "seed: -1\n"],
)
def test_the_fix_names_a_setting_that_config_explain_knows(recipe, extra):
    explained = refusal(recipe(extra)).fix.partition("mcprl config explain ")[2].partition("`")[0]
    assert explained in {setting.path for setting in settings()}


def test_servers_need_a_file_unless_a_cassette_is_replayed(recipe):
    lines = [line if " file:" not in line else "  {}" for line in BASE.splitlines()]
    assert "servers.file must be set" in refusal(recipe(base="\n".join(lines))).what
    replayed = [line if line != "  {}" else "  {cassette: c.sqlite, cassette_mode: replay}" for line in lines]
    assert load_recipe(recipe(base="\n".join(replayed)), []).servers.file is None


def test_a_budget_of_money_needs_a_price(recipe):
    lines = "  settings:\n    d:\n      budget: {usd: 5}\n"
    assert "without budget.usd_per_call" in refusal(recipe(lines)).what


@pytest.mark.parametrize(("key", "section_line"), [("path", 2), ("train", 4)])
def test_a_missing_setting_is_named_with_the_line_of_its_section(recipe, key, section_line):
    lines = [line if f" {key}:" not in line else "  {}" for line in BASE.splitlines()]
    path = recipe(base="\n".join(lines))
    error = refusal(path)
    assert error.what.startswith(f"{path}:{section_line}: ")
    assert f".{key}' is missing" in error.what


def test_a_missing_section_is_named(recipe):
    path = recipe(base=BASE.replace("model:\n  path: ./model\n", ""))
    assert refusal(path).what == f"{path}: 'model' is missing"


@pytest.mark.parametrize("extra", ["servers:\n  file: b.json\n", "  file: b.json\n"])
def test_a_duplicate_key_is_refused_with_the_second_line(recipe, extra):
    path = recipe(extra)
    error = refusal(path)
    assert isinstance(error, ConfigFileError)
    assert f"{path}:{BASE_LINES + 1}: duplicate key" in error.what


@pytest.mark.parametrize(
    ("extra", "line"),
    [("seed: [1,\n", 2), ("seed: 'a\n", 2), ("seed: !secret 1\n", 1), ("? [a]\n: b\n", 1), ("\tseed: 1\n", 1)],
)
def test_broken_yaml_is_refused_with_its_line(recipe, extra, line):
    path = recipe(extra)
    error = refusal(path)
    assert isinstance(error, ConfigFileError)
    assert f"{path}:{BASE_LINES + line}: " in error.what


ALIASES = "a: &a [1, 2, 3, 4, 5, 6, 7, 8]\n" + "".join(
    f"{new}: &{new} [{', '.join([f'*{old}'] * 8)}]\n" for old, new in zip("abcdefgh", "bcdefghi", strict=True)
)


@pytest.mark.parametrize(
    ("extra", "line", "words"),
    [
        ("seed: " + "[" * 2000 + "\n", 1, "nested more than 100 levels deep"),
        ("seed: &a [*a]\n", 1, "an alias that contains itself"),
        ("seed: &a {b: [*a]}\n", 1, "an alias that contains itself"),
        (ALIASES, 5, "more than 10000 values"),
        ("".join(f"a{n}: &a{n} [[[[[[[[[[{f'*a{n - 1}' if n else 1}]]]]]]]]]]\n" for n in range(12)), 10, "nested"),
        ("seed: !!bool foo\n", 1, "not a valid bool"),
        ("seed: !!timestamp foo\n", 1, "not a valid timestamp"),
        ("seed: !!int ''\n", 1, "not a valid int"),
        ("seed: 2026-99-99\n", 1, "not a valid timestamp"),
        ("seed: 0x" + "f" * 1000 + "\n", 1, "a number with too many digits"),
    ],
)
def test_yaml_that_is_too_much_or_has_no_value_is_refused_with_its_line(recipe, extra, line, words):
    path = recipe(extra)
    error = refusal(path)
    assert isinstance(error, ConfigFileError)
    assert error.what.startswith(f"{path}:{BASE_LINES + line}: ")
    assert words in error.what


def test_aliases_and_merged_mappings_that_are_written_out_in_a_few_lines_are_read(recipe):
    config = load_recipe(recipe("sampling: &s {temperature: 0.5}\nrewards: {<<: {answer: 2}}\n"))
    assert (config.sampling.temperature, config.rewards.answer) == (0.5, 2.0)


def test_a_recipe_that_is_too_long_is_refused_by_name(recipe):
    path = recipe("# " + "x" * 70_000 + "\n")
    assert refusal(path).what == f"cannot read {path}: it is longer than 65536 bytes"


@pytest.mark.parametrize(
    "override",
    [
        *(f"{name}=1.0e+300" for name in ("sampling.temperature", "learner.learning_rate", "algorithm.clip_high")),
        *("sampling.temperature=1.0e-300", "rewards.arguments=1.0e+308", "learner.lora_rank=100000000000"),
        *("servers.settings.d.call_deadline_s=1.0e+300", "servers.settings.d.rate={calls: 1, per_s: 1.0e-300}"),
        *('tasks.train="a\\0b"', 'training.outputs="a\\0b"', 'model.path="./\\0"', 'sampling.stop=["\\0"]'),
        *("seed=" + "9" * 60, "training.steps=" + "9" * 30, "episodes.group_size=.inf", "learner.lora_rank=1000000"),
    ],
)
def test_a_value_beyond_what_can_be_computed_or_opened_is_refused_with_the_override(recipe, override):
    error = refusal(recipe(), override)
    assert isinstance(error, BadValueError)
    assert error.what.startswith(f"--set {override}: ")


@pytest.mark.parametrize("content", [b"", b"- a\n", b"just text", b"\xff\xfe", b"name: a\x00b", b"seed: 2026-99-99\n"])
def test_a_file_that_holds_no_settings_is_refused_by_name(tmp_path, content):
    path = tmp_path / "recipe.yaml"
    path.write_bytes(content)
    error = refusal(path)
    assert isinstance(error, ConfigFileError)
    assert str(path) in error.what


def test_a_missing_file_and_a_folder_are_refused_with_the_reason(tmp_path):
    missing = refusal(tmp_path / "nope.yaml")
    assert isinstance(missing, ConfigFileError)
    assert "No such file" in missing.what
    assert "directory" in refusal(tmp_path).what


def test_overrides_reach_nested_settings_and_the_last_one_wins(recipe):
    path = recipe("sampling:\n  temperature: 0.5\n")
    config = load_recipe(
        path,
        ["sampling.temperature=0.7", "sampling.vllm.memory_fraction=0.3", "training.steps=5", "training.steps=6"],
    )
    assert config.sampling.temperature == 0.7
    assert config.sampling.vllm.memory_fraction == 0.3
    assert config.training.steps == 6


def test_an_override_creates_sections_that_the_file_lacks_or_leaves_empty(recipe):
    config = load_recipe(recipe("training:\n"), ["training.steps=3", "servers.settings.time.call_deadline_s=1.5"])
    assert config.training.steps == 3
    assert config.servers.settings["time"].call_deadline_s == 1.5


def test_an_override_takes_lists_mappings_and_nothing(recipe):
    path = recipe("sampling:\n  stop: [a]\n")
    config = load_recipe(path, ["sampling.stop=[x, y]", "sampling.vllm={memory_fraction: 0.2}", "tasks.preamble="])
    assert config.sampling.stop == ("x", "y")
    assert config.sampling.vllm.memory_fraction == 0.2
    assert config.tasks.preamble is None


def test_a_value_may_hold_an_equals_sign(recipe):
    assert load_recipe(recipe(), ["model.path=hub/a=b"]).model.path == "hub/a=b"


@pytest.mark.parametrize("override", ["training.steps", "=3", "name.first=3", "seed=[1", "seed=2026-99-99"])
def test_a_malformed_override_is_refused_and_quoted(recipe, override):
    error = refusal(recipe(), override)
    assert isinstance(error, BadValueError)
    assert f"--set {override}: " in error.what


@pytest.mark.parametrize(
    ("override", "suggestion"),
    [("trainin.steps=3", "training"), ("training.step=3", "steps"), ("servers.settings.d.strat=3", "start")],
)
def test_a_wrong_key_in_an_override_is_refused_with_the_override(recipe, override, suggestion):
    error = refusal(recipe(), override)
    assert isinstance(error, UnknownKeyError)
    assert error.what.startswith(f"--set {override}: ")
    assert f"did you mean {suggestion!r}?" in error.what


def test_a_bad_value_in_an_override_is_refused_with_the_override_even_if_the_file_has_the_setting(recipe):
    path = recipe("training:\n  steps: 4\n")
    assert refusal(path, "training.steps=0").what.startswith("--set training.steps=0: ")
    assert refusal(path, "training={steps: 0}").what.startswith("--set training={steps: 0}: ")


def test_an_override_is_not_blamed_for_what_the_file_lacks(recipe):
    path = recipe(base=BASE.replace("  path: ./model", "  dtype: float32"))
    assert refusal(path, "model.renderer=chatml").what == f"{path}:2: 'model.path' is missing"


def test_inputs_are_relative_to_the_recipe_and_outputs_to_where_mcprl_starts(recipe, tmp_path, monkeypatch):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    path = recipe(base=BASE.replace("tasks.jsonl", "tasks.jsonl\n  preamble: ../preamble.json"))
    monkeypatch.chdir(elsewhere)
    config = load_recipe(Path("..") / path.name, ["training.outputs=runs"])
    assert config.tasks.train == tmp_path / "tasks.jsonl"
    assert config.tasks.preamble == tmp_path.parent / "preamble.json"
    assert config.servers.file == tmp_path / "servers.json"
    assert config.training.outputs == Path("runs")


def test_absolute_inputs_stay_as_they_are(recipe):
    assert load_recipe(recipe(), ["tasks.train=/data/tasks.jsonl"]).tasks.train == Path("/data/tasks.jsonl")


def test_a_model_is_a_path_if_it_begins_with_a_dot_or_slash_and_a_hub_name_otherwise(recipe, tmp_path):
    def location(written: str) -> str:
        return load_recipe(recipe(), [f"model.path={written}"]).model.path

    assert location("./x") == str(tmp_path / "x")
    assert location("../x") == str(tmp_path.parent / "x")
    assert location("/x") == "/x"
    assert location("Qwen/Qwen3-0.6B") == "Qwen/Qwen3-0.6B"


def test_a_difficulty_left_out_keeps_its_turn_limit(recipe):
    turns = load_recipe(recipe("episodes:\n  max_turns: {easy: 2}\n")).episodes.max_turns
    assert turns == {**RunConfig.model_fields["episodes"].default.max_turns, Difficulty.EASY: 2}
    assert set(turns) == set(Difficulty)


def test_more_minibatches_than_episodes_are_refused_with_both_numbers(recipe):
    path = recipe("episodes:\n  group_size: 2\ntraining:\n  tasks_per_step: 3\n")
    assert load_recipe(path, ["algorithm.minibatches=6"]).algorithm.minibatches == 6
    error = refusal(path, "algorithm.minibatches=7")
    assert "algorithm.minibatches is 7, but a batch has only 6 episodes" in error.what


def test_the_resolved_configuration_loads_as_the_same_configuration_from_anywhere(recipe, tmp_path):
    config = load_recipe(recipe("  settings:\n    'on': {start: [a, 'b c']}\n"), ["sampling.stop=['é', '\"\\n: #']"])
    elsewhere = tmp_path / "deep" / "er"
    elsewhere.mkdir(parents=True)
    resolved = elsewhere / "config.yaml"
    resolved.write_text(config.to_yaml(), encoding="utf-8")
    assert load_recipe(resolved) == config


numbers = st.floats(min_value=1e-12, max_value=1e9)
texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=20)


@given(temperature=numbers, rate=numbers, seed=st.integers(0, 2**63), stop=st.lists(texts, max_size=3).map(tuple))
@example(temperature=1.0, rate=1.0, seed=0, stop=("\x85", "a\u2028b", "c\u2029"))
def test_any_values_survive_being_written_and_read(tmp_path_factory, temperature, rate, seed, stop):
    folder = tmp_path_factory.mktemp("round")
    (folder / "recipe.yaml").write_text(BASE)
    base = load_recipe(folder / "recipe.yaml")
    config = base.model_copy(
        update={
            "seed": seed,
            "sampling": base.sampling.model_copy(update={"temperature": temperature, "stop": stop}),
            "learner": base.learner.model_copy(update={"learning_rate": rate}),
        }
    )
    (folder / "resolved.yaml").write_text(config.to_yaml(), encoding="utf-8", newline="")
    assert load_recipe(folder / "resolved.yaml") == config


@given(text=st.text(max_size=60) | st.binary(max_size=60).map(lambda b: b.decode("latin-1")))
def test_any_text_is_read_or_refused_by_name_but_never_crashes(tmp_path_factory, text):
    path = tmp_path_factory.mktemp("any") / "recipe.yaml"
    path.write_bytes(text.encode(errors="surrogatepass"))
    assert str(path) in refusal(path).what


def test_every_setting_has_a_description_and_there_are_at_most_139():
    listed = list(settings())
    assert 30 < len(listed) <= 139
    assert len({setting.path for setting in listed}) == len(listed)
    assert [setting.path for setting in listed if not setting.description.endswith(".")] == []


def test_the_listed_settings_are_those_of_the_resolved_configuration(recipe):
    def leaves(value: object, path: str) -> list[str]:
        if isinstance(value, dict) and not path.endswith(("max_turns", "backend_config")):
            return [leaf for key, inner in value.items() for leaf in leaves(inner, f"{path}.{key}".lstrip("."))]
        return [path]

    # With every section that may be left out.
    judge = ["rewards.judge.url=http://127.0.0.1/v1", "rewards.judge.model=grader"]
    trackers = ["wandb.project=p", "weave.project=e/p"]
    user = ["tasks.user.url=http://127.0.0.1/v1", "tasks.user.model=person"]
    optional = [*judge, *user, "sft.steps=3", *(f"tracking.{setting}" for setting in trackers)]
    resolved = yaml.safe_load(load_recipe(recipe(), optional).to_yaml())
    found = leaves(resolved, "")
    found[found.index("episodes.agent")] = "episodes.agent.command"  # a recipe has this section or sft
    assert found == [s.path for s in settings() if ".NAME." not in s.path]


@pytest.mark.parametrize("key", ["top_p", "top_k", "min_p", "repetition_penalty", "min_tokens"])
def test_a_way_to_sample_that_the_learner_cannot_reproduce_is_refused_with_the_reason(recipe, key):
    path = recipe(f"sampling:\n  {key}: 0.9\n")
    error = refusal(path)
    assert isinstance(error, BadValueError)
    assert error.what.startswith(
        f"{path}:{BASE_LINES + 2}: 'sampling.{key}' is not supported: the learner cannot reproduce the resulting "
        "distribution"
    )


def test_off_need_not_be_quoted(recipe):
    assert load_recipe(recipe("sampling:\n  constrain: off\n"), []).sampling.constrain == "off"


@pytest.mark.parametrize("key", CHANGED_SETTINGS)
def test_a_setting_of_an_earlier_version_is_refused_with_what_to_do_instead(recipe, key):
    in_list = key == "servers.settings.NAME.errors.tools"
    override = "servers.settings.fmp.errors=[{match: x, tools: [a]}]" if in_list else f"{key.replace('NAME', 'fmp')}=1"
    error = refusal(recipe(), override)
    assert isinstance(error, UnknownKeyError)
    assert "was a setting of mcprl 0.1.0" in error.what
    assert error.fix == CHANGED_SETTINGS[key]


def test_what_to_do_instead_names_settings_that_exist():
    known = {setting.path for setting in settings()}
    assert not known & set(CHANGED_SETTINGS)
    named = {name for fix in CHANGED_SETTINGS.values() for name in re.findall(r"\b[a-z]+(?:\.[a-z_]+)+\b", fix)}
    assert named - known == set()


def test_a_reference_lags_by_the_number_given_or_by_the_usual_one_of_its_kind(recipe):
    usual, given = load_recipe(recipe()).algorithm.kl, load_recipe(recipe(), ["algorithm.kl.lag=4"]).algorithm.kl
    assert (usual.sync_every, usual.ema_decay) == (20, 0.99)
    assert (given.sync_every, given.ema_decay) == (4, 0.75)


def test_float16_is_refused_with_the_reason_and_what_to_use(recipe):
    said = str(refusal(recipe(), "model.dtype=float16"))
    assert "mcprl has no loss scaling: use bfloat16, or float32 on a GPU without bfloat16" in said
    assert load_recipe(recipe(), ["model.dtype=float32"]).model.dtype == "float32"


@pytest.mark.parametrize("path", ["models/small/v2", "~/small"])
def test_a_path_that_is_neither_a_folder_nor_a_name_on_the_hub_is_refused_without_asking_the_hub(recipe, path):
    assert "is neither a folder (starting with ./, ../ or /)" in str(refusal(recipe(), f"model.path={path}"))
    assert load_recipe(recipe(), [f"model.path=./{path}"]).model.path.endswith(path)


def test_a_folder_without_its_dot_is_not_looked_up_on_the_hub(recipe, tmp_path):
    (tmp_path / "models" / "small").mkdir(parents=True)
    assert "write ./models/small for the folder" in str(refusal(recipe(), "model.path=models/small"))
    assert load_recipe(recipe(), ["model.path=./models/small"]).model.path == str(tmp_path / "models" / "small")
