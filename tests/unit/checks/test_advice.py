"""Advice is followed: whoever adds some names the test that follows it; settings that it names can be set."""
# R25, R30

from __future__ import annotations

import ast
import re
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import ValidationError
from test_health import PLANTED, Planted

from healthy_steps import HEALTHY, make_config
from mcprl.checks.health import RULES, Health
from mcprl.config import RunConfig
from mcprl.recipe import settings as all_settings

CHECKS = Path(sys.modules["mcprl.checks.health"].__file__ or "").parents[1]
TESTS = Path(__file__).parent

# ---- every piece of advice in the code, and the tests that follow it -------------------------------------------------

_ADVISES = frozenset(("warning", "wrong", "warn", "bad", "Verdict", "Finding"))
_MAKERS = frozenset((*_ADVISES, "fine", "wrong_by", "skipped"))


def advice_sites() -> Counter[str]:
    """How many findings, verdicts and errors with a fix each function of the checks makes."""
    sites: Counter[str] = Counter()
    for path in sorted(CHECKS.rglob("*.py")):
        for function in ast.walk(ast.parse(path.read_text())):
            is_function = isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)
            if not is_function or (path.stem == "examination" and function.name in _MAKERS):
                continue
            for call in (node for node in ast.walk(function) if isinstance(node, ast.Call)):
                made = call.func.id if isinstance(call.func, ast.Name) else ""
                if made in _ADVISES or any(keyword.arg == "fix" for keyword in call.keywords):
                    sites[f"{path.stem}.{function.name}"] += path.stem != "view"
    return +sites


# Each function of the doctor with as many faults as it has pieces of advice: planted in test_planted_faults.py, or
# tests in test_faults_of_models.py and test_parity.py.
DOCTOR: dict[str, tuple[str, ...]] = {
    "model_checks.check_model": ("hub-model-that-is-not-here", "missing-model-folder"),
    "model_checks._renderer": ("renderer-auto-for-a-folder", "thinking-without-a-switch"),
    "model_checks._weight_bytes": (
        "model-that-was-cut-off",
        "model-without-a-tokenizer",
        "tokenizer-that-was-cut-off",
    ),
    "model_checks._context": ("context-beyond-the-model", "context-that-vllm-refuses"),
    "model_checks.check_template": ("test_a_template_that_rewrites_history_is_found",),
    "model_checks.check_prompts": ("prompt-longer-than-the-context", "prompt-that-leaves-no-room-for-a-turn"),
    "model_checks._solution_lengths": ("solution-longer-than-the-context",),
    "play_checks.check_parity": ("test_a_sampler_that_disagrees_with_the_learner_is_found",) * 2,
    "play_checks.foretell_learnable": ("test_steps_with_too_few_learnable_tokens_are_foretold_from_the_sample",) * 2,
    "play_checks.judge_groups": (
        "test_attempts_lost_to_infrastructure_are_found_with_their_cause",
        "test_episodes_that_crashed_their_server_are_found_with_their_task",
    ),
    "play_checks._own_functions": ("test_a_reward_function_is_found_until_it_does_not_depend_on_its_process",),
    "play_checks._valid_calls": ("test_without_a_valid_call_the_fix_is_a_warm_start_or_a_grammar",),
    "play_checks._rewards": ("test_groups_whose_rewards_are_all_equal_are_found",),
    "play_checks._answers": ("test_episodes_that_never_answer_are_found",),
    "play_checks._latency": ("test_a_tool_that_is_nearly_too_slow_is_found_with_its_setting",),
    "recipe_checks.check_recipe": ("turn-as-long-as-the-context", "learning-rate-of-one"),
    "recipe_checks._other_problems": ("second-bad-setting-of-two",),
    "recipe_checks.check_installed": (
        "missing-extra",
        "missing-environment-of-skyrl",
        "four-bits-without-their-library-on-a-machine-without-a-gpu",
    ),
    "recipe_checks.check_gpus": ("more-processes-than-gpus",),
    "resource_checks.check_forecast": ("run-that-takes-days-on-a-cpu", "budget-that-ends-before-the-run"),
    "resource_checks._main_memory": ("too-little-memory", "memory-that-others-use"),
    "resource_checks._gpu_memory": ("too-little-memory-on-the-gpu",),
    "resource_checks.check_trackers": ("tracker-that-is-down", "tracker-without-a-key"),
    "server_checks.check_keys": ("missing-key-of-the-judge",),
    "server_checks.check_servers": ("one-server-without-tools", "server-that-dies-at-start"),
    "server_checks._started": (
        "server-that-prints-to-stdout",
        "server-that-answers-anyone",
        "tool-with-a-pattern-that-is-not-linear",
    ),
    "server_checks._call": ("server-that-dies-after-every-three-calls",),
    "server_checks._judge_result": ("tool-that-refuses-the-call-of-a-task",),
    "server_checks.judge_text": ("tool-that-returns-nothing", "tool-that-returns-an-error-as-a-success"),
    "task_checks.check_task_file": ("rubric-that-is-left-out",),
    "task_checks._learnable_bound": ("more-learnable-tokens-than-a-step-has",),
    "task_checks.check_leaks": ("validation-task-in-training", "answer-in-the-prompt"),
    "task_checks.check_against_tools": (
        "tool-name-that-drifted",
        "argument-that-no-longer-exists",
        "question-that-stands-twice",
    ),
    "task_checks.check_preamble": (
        "preamble-that-calls-a-tool-that-is-not-there",
        "prompt-that-names-a-tool-that-is-not-there",
    ),
    "task_checks.check_isolation": ("writes-that-other-episodes-meet",),
    "task_checks._drift": ("recorded-call-that-drifted",),
    "parity._tokens": ("test_no_token_to_compare_is_refused",),
    "parity._cause": ("test_a_learner_that_does_not_replay_the_grammar_is_named",),
    "parity._by_size": ("test_different_weights_are_not_taken_for_rounding_or_temperature",) * 3,
    "parity._against_limit": ("test_if_only_the_limit_is_too_strict_the_fix_is_to_raise_it",),
    "plan._count_parameters": ("test_a_config_that_cannot_be_read_is_an_error",),
    "plan.server_names": ("test_a_file_that_names_no_server_is_refused",) * 2,
}


def test_whoever_adds_advice_names_the_test_that_follows_it():
    of_rules = {f"{stem}.{rule.__name__}" for rule in RULES.values() for stem in ("rules", "trends")} | {
        "__init__.judge"
    }
    sites = {place: count for place, count in advice_sites().items() if place not in of_rules}
    assert {place: len(tests) for place, tests in DOCTOR.items()} == sites
    text = "".join(path.read_text() for path in (*TESTS.glob("test_*.py"), *(TESTS / "doctor").glob("test_*.py")))
    for name in {name for tests in DOCTOR.values() for name in tests}:
        assert f"def {name}(" in text or f'"{name}":' in text, name


# ---- the settings that verdicts name ---------------------------------------------------------------------------------

_SETTING = re.compile(
    r"\b(?P<verb>set|raise|lower|widen|loosen|shorten|see|run|report|show|imitate)\b"
    r"|\b(?P<setting>(?:model|tasks|sampling|episodes|rewards|algorithm|learner|training)(?:\.[a-z_0-9]+)+)"
    r"(?: \(now (?P<now>[^)]*)\))?(?:(?: to|=| ) ?(?P<to>\[[^\]]*\]|float32|calls|off|act|exact|curriculum|"
    r"recomputed|base|sync|grpo|[0-9][0-9.e+-]*[0-9]|[0-9]))?"
)
# Nothing to set: a person has to look, or mcprl is at fault.
_NOT_A_SETTING = (
    *("report this bug in mcprl", "mcprl explain", "make the tool reject", "fix the cause given above"),
    *("episodes.max_turns", "mcprl parity", "tasks.preamble"),
)


def advised(fix: str, config: RunConfig) -> dict[str, Any]:
    """The settings that an advice names, with the value to set; raised or lowered if it names only the direction."""
    changes: dict[str, Any] = {}
    verb = ""
    for found in _SETTING.finditer(fix):
        verb = found["verb"] or verb
        if (setting := found["setting"]) is None:
            continue
        now: Any = config
        for part in setting.split("."):
            now = getattr(now, part)
        if found["to"] is not None:
            changes[setting] = yaml.safe_load(found["to"]) if "e-" not in found["to"] else float(found["to"])
        elif verb in ("raise", "lower") and isinstance(now, int | float):
            step = (max(1, now) if isinstance(now, int) else now or 0.1) * (1 if verb == "raise" else -0.5)
            changes[setting] = now + (int(step) or -1 if isinstance(now, int) else step)
    return {name: "off" if value is False else value for name, value in changes.items()}


def changed(config: RunConfig, setting: str, value: Any) -> RunConfig:
    whole: dict[str, Any] = config.model_dump()
    *sections, key = setting.split(".")
    target = whole
    for section in sections:
        target = target[section]
    assert target[key] != value, f"{setting} is {value} already"
    target[key] = value
    return RunConfig.model_validate(whole)


def skyrl(config: RunConfig) -> RunConfig | None:
    """The same run on SkyRL's engine, if that is possible."""
    learner = config.learner.model_dump() | {"max_grad_norm": None}
    try:
        return RunConfig.model_validate(config.model_dump() | {"engine": "skyrl", "learner": learner})
    except ValidationError:
        return None


def verdict_on(planted: Planted, config: RunConfig) -> str:
    health = Health(config)
    for change in planted.steps[:-1]:
        health.judge({**HEALTHY, **change})
    found = health.judge({**HEALTHY, **planted.steps[-1]}, planted.skipped)
    return next((verdict.fix for verdict in found if verdict.name == planted.rule), "")


ADVISED = [
    pytest.param(planted, config, id=f"{planted}-{engine}")
    for planted in PLANTED
    for own in (make_config(**planted.config),)
    for engine, config in (("vllm", own), ("skyrl", skyrl(own)))
    if config is not None
]


@pytest.mark.parametrize(("planted", "config"), ADVISED)
def test_every_setting_that_a_verdict_advises_can_be_set_and_is_not_advised_again(planted: Planted, config: RunConfig):
    fix = verdict_on(planted, config)
    changes = advised(fix, config)
    known = {setting.path for setting in all_settings()}
    assert changes or any(words in fix for words in _NOT_A_SETTING), fix
    for setting, value in changes.items():
        assert setting in known
        better = changed(config, setting, value)  # refused if it cannot be set
        if "--from" not in fix:  # tests/e2e/test_rollback_advice.py goes back and trains on
            again = advised(verdict_on(planted, better), better)
            assert again.get(setting) != value, f"{setting} {value} is advised again"
