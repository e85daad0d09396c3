"""Verdicts on a step: each rule finds its planted symptom and nothing else; a healthy run is OK."""

# R9, R30

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from healthy_steps import HEALTHY, make_config
from mcprl.checks.health import RULES, Health
from mcprl.recipe import settings as all_settings
from mcprl.verdicts import Severity, Verdict

DOCS = Path(__file__).resolve().parents[3] / "docs"
WARN, BAD = Severity.WARN, Severity.BAD


@dataclass
class Planted:
    """A symptom: the steps that lead to it, as changes to a healthy step, and the expected verdict on the last."""

    rule: str
    severity: Severity
    steps: list[dict[str, float]]
    says: str
    advises: str
    config: dict[str, Any] = field(default_factory=dict)
    skipped: str | None = None

    def __str__(self) -> str:
        return f"{self.rule}-{self.severity.value}"


def after(count: int, **change: float) -> list[dict[str, float]]:
    return [{}] * count + [change]


KL_STEERED = {"algorithm": {"kl": {"coefficient": 0.02, "target": 0.3}}}
ASYNC = {"training": {"max_staleness": 8}, "algorithm": {"old_logprobs": "recomputed"}}
GAE = {"algorithm": {"advantages": "gae"}}
HARD_CAP = {"algorithm": {"kl": {"cap": 0.5}}}
FAILED, SOLVED, MIXED = {"success_rate": 0.05}, {"success_rate": 0.9}, {"success_rate": 0.45}
DEAD = {"groups_without_variance": 7.0, "active_fraction": 0.1}

PLANTED = [
    Planted("not a number", BAD, [{"loss": math.nan}], "loss", "learner.learning_rate"),
    Planted("not a number", BAD, [{"grad_norm": math.inf, "reward": math.nan}], "reward, grad_norm", "model.dtype"),
    Planted(
        "not a number",
        BAD,
        [{"nonfinite": 1.0, "nonfinite_in_a_row": 3.0, "update_skipped": 1.0, "optimiser_steps": 0.0}],
        "3 updates in a row (reward of t7/2 is nan)",
        "model.dtype",
        skipped="reward of t7/2 is nan",
    ),
    Planted("parity", BAD, [{"parity_logprob_mean_abs_error": 0.4}], "0.4 nats", "`mcprl parity RECIPE`"),
    Planted("parity", BAD, [{"parity_outside_share": 0.5}], "sampler and learner disagree", "old_logprobs=recomputed"),
    Planted(
        "parity",
        WARN,
        [{"parity_logprob_mean_abs_error": 0.4}],
        "0.4 nats",
        "`mcprl parity RECIPE`",
        config={"algorithm": {"old_logprobs": "recomputed"}},
    ),
    Planted("parity", WARN, [{}], "computes in lower precision", "TF32", config={"model": {"dtype": "float32"}}),
    Planted("parity", WARN, [{"parity_logprob_max_abs_error": 5.0}], "by 5 on one token", "recomputed limits"),
    Planted(
        "reference",
        BAD,
        [{"reference_tensors_differing": 3.0}],
        "3 tensors of the reference",
        "algorithm.kl.reference",
        config={"algorithm": {"kl": {"coefficient": 0.02, "reference": "sync"}}},
    ),
    Planted(
        "no gradient",
        BAD,
        [{"grad_norm": 0.0}],
        "not depend on any trained weight",
        "report this bug in mcprl, with the recipe",
    ),
    Planted(
        "skipped",
        WARN,
        [{"update_skipped": 1.0, "learnable_tokens": 9.0}],
        "9 learnable tokens",
        "algorithm.min_learnable_tokens",
        skipped="9 learnable tokens",
    ),
    Planted(
        "skipped",
        BAD,
        [{"update_skipped": 1.0}, {}, {"update_skipped": 1.0}, {"update_skipped": 1.0}],
        "3 of the last 5",
        "fix the cause",
    ),
    Planted(
        "skipped",
        WARN,
        [{"update_skipped": 1.0, "learnable_share": 0.4}],
        "the learner gave no reason",
        "algorithm.min_learnable_share",
        config={"algorithm": {"min_learnable_share": 0.5}},
    ),
    Planted(
        "skipped",
        WARN,
        [{"update_skipped": 1.0, "kl_reference": 0.3}],
        "too far",
        "algorithm.kl.reference to sync",
        config={"algorithm": {"kl": {"cap": 0.2}}},
        skipped="too far from the reference",
    ),
    Planted(
        "skipped",
        WARN,
        [{"update_skipped": 1.0, "optimiser_steps": 0.0, "grad_norm": 0.0}],
        "in no group",
        "algorithm.refill_rounds to 2",
        skipped="in no group does one reward differ from another",
    ),
    Planted("stale", WARN, [{"staleness_mean": 1.5, "staleness_max": 3.0}], "1.5 updates old", "max_staleness", ASYNC),
    Planted(
        "stale", BAD, [{"staleness_mean": 6.0, "staleness_max": 9.0}], "6.0 updates old", "episodes.deadline_s", ASYNC
    ),
    Planted(
        "importance",
        WARN,
        [{"importance_cut_fraction": 0.2}],
        "20% of tokens",
        "only rounding error, set model.dtype to float32",
    ),
    Planted("importance", BAD, [{"importance_cut_fraction": 0.4}], "40% of tokens", "mcprl parity"),
    Planted(
        "few learnable",
        WARN,
        [{"learnable_share": 0.22}],
        "22%",
        "set sampling.constrain to calls, or off (now act)",
        config={"sampling": {"constrain": "act"}},
    ),
    Planted(
        "few learnable",
        WARN,
        [{"learnable_share": 0.22}],
        "22%",
        "set algorithm.masks to exact (now text), or sampling.constrain to off (now calls)",
        config={"algorithm": {"masks": "text"}, "sampling": {"constrain": "calls"}},
    ),
    Planted("no calls", BAD, [{"calls": 0.0, "valid_call_rate": 0.0}], "no episode called", "constrain to act"),
    Planted(
        "lost episodes",
        WARN,
        [{"episodes_lost_to_infrastructure": 16.0, "lost_E-TOOL-011": 4.0, "lost_E-SAMP-011": 12.0}],
        "20% of episodes were lost to infrastructure faults and rerun, mostly (75%) because of E-SAMP-011",
        "mcprl explain E-SAMP-011",
    ),
    Planted(
        "lost episodes",
        BAD,
        [{"episodes_lost_to_infrastructure": 64.0, "lost_E-TOOL-011": 64.0}],
        "50%",
        "mcprl explain E-TOOL-011",
    ),
    Planted("server crashes", WARN, [{"stop_caused_fault": 0.02}], "2% of episodes", "make the tool reject"),
    Planted("server crashes", BAD, [{"stop_caused_fault": 0.2}], "20% of episodes", "make the tool reject"),
    Planted("dead groups", BAD, [DEAD | FAILED], "88% of groups have zero variance", "sampling.temperature"),
    Planted("dead groups", BAD, [DEAD | SOLVED], "every episode solves the task", "harder tasks"),
    Planted(
        "dead groups",
        BAD,
        [DEAD | {"success_rate": 0.97, "reward": 0.12}],
        "in most of these groups, every episode fails in the same way",
        "raise episodes.group_size",
    ),
    Planted(
        "dead groups",
        BAD,
        [DEAD | SOLVED],
        "at temperature 0.01 all episodes of a group are identical",
        "raise sampling.temperature towards 1",
        config={"sampling": {"temperature": 0.01}},
    ),
    Planted("dead groups", WARN, [{"groups_without_variance": 4.0} | MIXED], "50%", "algorithm.refill_rounds to 2"),
    Planted(
        "dead groups",
        BAD,
        [{"groups": 14.0, "groups_without_variance": 12.0, "groups_dropped": 12.0} | FAILED],
        "86%",
        "algorithm.refill_rounds (now 2)",
        config={"algorithm": {"refill_rounds": 2}},
    ),
    Planted("invalid calls", WARN, [{"valid_call_rate": 0.3}] * 10, "after 10 steps, 30%", "sampling.constrain to act"),
    Planted("invalid calls", BAD, [{"valid_call_rate": 0.8}] * 50, "after 50 steps, 80%", "sampling.constrain to act"),
    Planted(
        "invalid calls",
        BAD,
        [{"valid_call_rate": 0.8}] * 50,
        "although a grammar",
        "mcprl tools stats",
        config={"sampling": {"constrain": "act"}},
    ),
    Planted("unanswered", WARN, [{"stop_cut_by_length": 0.6}], "60%), turns are cut off", "sampling.max_tokens"),
    Planted("unanswered", BAD, [{"stop_turn_limit": 0.9}], "95% of episodes hit a limit", "episodes.max_turns"),
    Planted("unanswered", WARN, [{"stop_context_limit": 0.5}], "outgrow the context", "model.context_tokens"),
    Planted("reward collapse", BAD, [{"reward": 0.6}] * 5 + [{"reward": 0.1}] * 3, "at step 4", "--from 4"),
    Planted(
        "reward collapse",
        WARN,
        [{"reward": 0.6}] * 5 + [{"reward": 0.1}] * 3,
        "the tasks became harder",
        "--from 4",
        config={"tasks": {"order": "curriculum"}},
    ),
    Planted("collapse", BAD, after(4, valid_call_rate=0.0), "0% of calls are valid, down from 95%", "--from 3"),
    Planted(
        "collapse", WARN, [{"reward": 0.7}] * 4 + [{"reward": 0.0}], "+0.00, down from a best of +0.70", "--from 3"
    ),
    Planted(
        "collapse",
        WARN,
        [{"reward": 0.7}] * 4 + [{"reward": 0.0, "learning_rate": 1.0}],
        "an update probably broke the policy",
        "(now 1): `mcprl resume RUN --from 3 --set learner.learning_rate=2e-05`",
        config={"learner": {"learning_rate": 1.0}},
    ),
    Planted("KL", BAD, after(4, kl_update=3.5), "KL is 3.5", "--from 4 --set learner.learning_rate=2e-06`"),
    Planted("entropy collapse", WARN, after(3, entropy=0.15), "to 0.15 from 0.8", "algorithm.entropy (now 0) to 0.001"),
    Planted("entropy collapse", BAD, after(3, entropy=0.05), "to 0.05 from 0.8", "algorithm.clip_high"),
    Planted("entropy explosion", WARN, after(3, entropy=2.0), "is degenerating", "learner.learning_rate"),
    Planted(
        "entropy explosion",
        BAD,
        after(3, entropy=4.0),
        "bonus outweighs",
        "algorithm.entropy (now 0.1), and go back to step 2",
        config={"algorithm": {"entropy": 0.1}},
    ),
    Planted("critic", WARN, [{"explained_variance": -0.3}] * 8, "-0.30", "algorithm.critic.learning_rate", GAE),
    Planted("value loss", WARN, [{}] * 8 + [{"value_loss": 0.5}] * 3, "0.5", "algorithm.critic.learning_rate", GAE),
    Planted("KL", WARN, after(4, kl=0.7, kl_unmasked=0.7), "KL is 0.7", "go back to step 4"),
    Planted("KL", WARN, [{"kl": 0.7, "kl_unmasked": 0.7}], "KL is 0.7", "lower learner.learning_rate (now 2e-05)"),
    Planted("KL", BAD, after(4, kl=3.5), "KL is 3.5", "go back to step 4, the last healthy one"),
    Planted("KL", BAD, [{"kl": 3.5}], "KL is 3.5", "start a new run"),
    Planted("ratio", WARN, [{"ratio_mean": 1.3}], "1.3, outside 0.8 to 1.2", "learner.max_grad_norm"),
    Planted("ratio", BAD, [{"ratio_mean": 0.4}], "0.4, outside", "learner.learning_rate"),
    Planted("reference KL", WARN, [{"kl_reference": 0.7}], "0.7 nats", "algorithm.kl.coefficient"),
    Planted("reference KL", BAD, after(6, kl_reference=3.2), "3.2 nats", "step 6"),
    Planted("reference KL", WARN, [{"kl_reference": 0.7}], "0.7 nats", "algorithm.kl.coefficient", config=KL_STEERED),
    Planted(
        "wrong way",
        BAD,
        [{"ratio_mean_positive": 0.95, "ratio_mean_negative": 1.05}] * 3,
        "negative one (by 0.1)",
        "report this bug in mcprl, with the recipe",
    ),
    Planted(
        "wrong way",
        BAD,
        [{"ratio_mean_positive": 0.95, "ratio_mean_negative": 1.05}] * 3,
        "negative one (by 0.1)",
        "lower algorithm.kl.coefficient (now 0.02) to give",
        config=KL_STEERED,
    ),
    Planted("KL coefficient", WARN, [{"kl_coefficient": 0.5}], "from 0.02 to 0.5", "kl.target", config=KL_STEERED),
    Planted("KL coefficient", BAD, [{"kl_coefficient": 5.0}], "moving away", "learning_rate", config=KL_STEERED),
    Planted("KL coefficient", WARN, [{"kl_coefficient": 0.001}], "stays closer to the ref", "lower", config=KL_STEERED),
    Planted("clipping", WARN, [{"clipped_fraction": 0.41, "active_fraction": 0.5}], "41%", "algorithm.minibatches"),
    Planted(
        "clipping",
        BAD,
        [{"clipped_fraction": 0.7, "active_fraction": 0.2}],
        "70%",
        "algorithm.epochs (now 4)",
        config={"algorithm": {"epochs": 4}},
    ),
    Planted("gated", WARN, [{"gated_fraction": 0.2}], "20%", "mcprl parity"),
    Planted("gated", BAD, [{"gated_fraction": 0.5, "active_fraction": 0.4}], "50%", "learner.learning_rate"),
    Planted("ratio spread", WARN, [{"ratio_std": 0.8}], "0.8", "algorithm.ratio_gate to [0.25, 4.0]"),
    Planted("masked drift", WARN, [{"kl_unmasked": 0.9}], "0.9 over all", "learner.learning_rate"),
    Planted(
        "masked drift",
        WARN,
        [{"kl_unmasked": 0.9}],
        "0.9 over all",
        "algorithm.masks to exact (now text)",
        config={"algorithm": {"masks": "text"}},
    ),
    Planted(
        "KL cap",
        WARN,
        [{"optimiser_steps_over_cap": 1.0}],
        "1 optimizer steps",
        "algorithm.kl.reference to sync",
        HARD_CAP,
    ),
    Planted("gradient spike", WARN, after(5, grad_norm=8.0), "16 times", "learner.max_grad_norm"),
    Planted("inactive", WARN, [{"active_fraction": 0.4}], "only 40%", "algorithm.refill_rounds"),
]


def judged(planted: Planted) -> tuple[Verdict, ...]:
    """The verdicts on the last of the planted steps."""
    health = Health(make_config(**planted.config))
    for change in planted.steps[:-1]:
        health.judge({**HEALTHY, **change})
    return health.judge({**HEALTHY, **planted.steps[-1]}, planted.skipped)


@pytest.mark.parametrize("planted", PLANTED, ids=str)
def test_a_planted_symptom_is_found_and_nothing_else(planted: Planted):
    found = judged(planted)
    assert [(verdict.name, verdict.severity) for verdict in found] == [(planted.rule, planted.severity)]
    assert planted.says in found[0].what
    assert planted.advises in found[0].fix


def test_every_rule_has_a_planted_symptom():
    assert {planted.rule for planted in PLANTED} == set(RULES)


def test_every_setting_that_advice_names_exists():
    words = " ".join(f"{v.what} {v.fix}" for planted in PLANTED for v in judged(planted))
    sections = "model|tasks|servers|sampling|episodes|rewards|algorithm|learner|training"
    named = set(re.findall(rf"\b(?:{sections})(?:\.[a-z_0-9]+)+", words))
    known = {setting.path for setting in all_settings()}
    assert len(named) > 25
    for name in named:
        assert any(f"{path}.".startswith(f"{name}.") for path in known), name


def test_the_page_on_health_names_every_rule():
    page = (DOCS / "health.md").read_text()
    rows = set(re.findall(r"^\| ([^|]+?) \|", page, flags=re.MULTILINE))
    assert set(RULES) <= rows


def test_a_healthy_run_gets_one_ok_verdict_per_step():
    health = Health(make_config())
    for step in range(60):
        found = health.judge({**HEALTHY, "reward": 0.2 + 0.01 * step})
        assert [verdict.severity for verdict in found] == [Severity.OK]


def test_the_most_severe_verdict_comes_first():
    found = Health(make_config()).judge({**HEALTHY, "staleness_mean": 1.5, "kl": 4.0, "clipped_fraction": 0.4})
    assert [(verdict.name, verdict.severity) for verdict in found] == [("KL", BAD), ("stale", WARN), ("clipping", WARN)]


def test_few_groups_are_counted_over_several_steps_and_only_warn_until_then():
    health = Health(make_config(training={"tasks_per_step": 2}))
    dead, alive = ({**HEALTHY, **FAILED, "groups": 2.0, "groups_without_variance": n} for n in (2.0, 0.0))

    def severities(steps: Iterable[dict[str, float]]) -> list[Severity]:
        return [health.judge(step)[0].severity for step in steps]

    # Two of two groups, of four, of six, of eight: that both groups of a step are dead is chance.
    assert severities([dead, alive, alive, alive]) == [WARN, WARN, Severity.OK, Severity.OK]
    # From now on the last eight groups count: 0, 2, 4, 6 and 8 of them are dead.
    assert severities([alive, dead, dead, dead, dead]) == [Severity.OK, Severity.OK, WARN, WARN, BAD]


def test_groups_are_never_dead_with_a_value_head():
    health = Health(make_config(algorithm={"advantages": "gae"}))
    assert health.judge({**HEALTHY, "groups_without_variance": 8.0})[0].severity is Severity.OK


def test_missing_answers_are_fine_if_they_cost_nothing():
    cut = Planted("unanswered", BAD, [{"stop_turn_limit": 1.0}], "", "", config={"rewards": {"penalty": 0.0}})
    assert [verdict.severity for verdict in judged(cut)] == [Severity.OK]


def test_parity_is_unknown_if_all_tokens_are_stale():
    stale = {name: value for name, value in HEALTHY.items() if not name.startswith("parity_")}
    assert Health(make_config()).judge({**stale, "staleness_mean": 1.0})[0].severity is Severity.OK


def test_a_policy_may_not_call_tools_while_a_warm_start_teaches_it():
    warm, health = {**HEALTHY, "calls": 0.0, "valid_call_rate": 0.0, "demonstration_weight": 1.0}, Health(make_config())
    names = [health.judge(warm)[0].name for _ in range(10)]
    assert names == ["healthy"] * 9 + ["no calls"]
    assert Health(make_config()).judge({**warm, "demonstration_weight": 0.0})[0].name == "no calls"


def test_entropy_is_compared_with_its_value_after_the_warm_start():
    health = Health(make_config())
    for weight, entropy in ((1.0, 4.0), (0.7, 3.0), (0.3, 2.0)):
        health.judge({**HEALTHY, "demonstration_weight": weight, "entropy": entropy})
    later = [health.judge({**HEALTHY, "entropy": entropy}) for entropy in (0.8, 0.8, 0.8, 0.3, 0.15)]
    assert [[verdict.name for verdict in verdicts] for verdicts in later] == [["healthy"]] * 4 + [["entropy collapse"]]


def test_a_collapsed_policy_is_never_healthy_and_advice_goes_back_before_it():
    health = Health(make_config())
    for _ in range(6):
        health.judge(HEALTHY)
    # The sixth update broke the policy. What it sampled has no variance, so no later update moves it: KL is 0.
    broken = {**HEALTHY, "reward": 0.0, "valid_call_rate": 0.0, "success_rate": 0.0, "kl": 0.0, "kl_unmasked": 0.0}
    for _ in range(30):
        verdicts = health.judge(broken)
        assert verdicts[0].severity is BAD
        assert any("--from 5 " in verdict.fix for verdict in verdicts)
    assert health.state()["healthy_step"] == health.state()["best_reward_step"] == 5


def test_weights_are_healthy_once_they_or_newer_ones_sampled_a_whole_step():
    health = Health(make_config(training={"max_staleness": 2}, algorithm={"old_logprobs": "recomputed"}))
    for _ in range(6):
        health.judge({**HEALTHY, "staleness_max": 2.0})
    assert "go back to step 4," in health.judge({**HEALTHY, "staleness_max": 2.0, "kl": 5.0})[0].fix
    assert health.steps_to_return_to == {4, 5, 6}  # the last two are kept until they are judged


def test_advice_names_only_steps_with_a_checkpoint():
    health = Health(make_config(training={"checkpoint_every": 5}))
    for _ in range(13):
        health.judge(HEALTHY)
    assert "--from 10 " in health.judge({**HEALTHY, "kl": 5.0})[0].fix


def test_a_step_whose_update_was_undone_is_as_healthy_as_the_one_before():
    health = Health(make_config(algorithm={"kl": {"cap": 0.5}}))
    for _ in range(3):
        health.judge(HEALTHY)
    undone = {**HEALTHY, "update_undone": 1.0, "update_skipped": 1.0, "kl_update": 4.0, "optimiser_steps": 0.0}
    verdicts = health.judge(undone, "the update moved the policy by 4 nats per token")
    assert [(verdict.name, verdict.severity) for verdict in verdicts] == [("skipped", WARN)]
    assert "algorithm.kl.reference to sync" in verdicts[0].fix
    health.judge(HEALTHY)
    assert "--from 5 " in health.judge({**HEALTHY, "kl": 5.0})[0].fix


CAPPED = {"coefficient": 0.02, "cap": 0.5, "reference": "sync"}


@pytest.mark.parametrize(
    ("step", "config", "said"),
    [
        ({"optimiser_steps_over_cap": 1.0}, {"algorithm": {"kl": CAPPED}}, "algorithm.kl.reference"),
        ({"kl_unmasked": 0.7}, {}, "algorithm.masks"),
        ({"loss": math.nan}, {"model": {"dtype": "float32"}}, "model.dtype"),
        ({"active_fraction": 0.3}, {"algorithm": {"refill_rounds": 2}}, "algorithm.refill_rounds to"),
        ({"stop_cut_by_length": 0.9}, {"sampling": {"constrain": "act"}}, "sampling.constrain"),
        ({"stop_turn_limit": 0.9}, {"tasks": {"order": "curriculum"}}, "tasks.order"),
        ({**DEAD, **SOLVED}, {"tasks": {"order": "curriculum"}}, "tasks.order"),
        ({**DEAD, **FAILED}, {"tasks": {"order": "curriculum"}}, "tasks.order"),
        ({**DEAD, **MIXED}, {"tasks": {"order": "curriculum"}}, "tasks.order"),
        ({"learnable_share": 0.2}, {"sampling": {"constrain": "calls"}}, "to calls"),
        ({"calls": 0.0}, {"algorithm": {"warm_start": {"weight": 0.5}}}, "algorithm.warm_start.weight"),
    ],
)
def test_advice_never_names_a_setting_that_is_already_set(step, config, said):
    fixes = [verdict.fix for verdict in Health(make_config(**config)).judge({**HEALTHY, **step})]
    assert fixes
    assert not any(said in fix for fix in fixes)


def test_imitation_is_advised_with_what_it_needs():
    step = {**HEALTHY, "calls": 0.0, "valid_call_rate": 0.0}
    assert "give tasks a solution and imitate" in Health(make_config(), has_solutions=False).judge(step)[0].fix
    assert ", imitate solutions first" in Health(make_config()).judge(step)[0].fix


def test_advice_never_goes_back_to_a_bad_step():
    health = Health(make_config())
    for change in ({}, {}, {"ratio_mean": 3.0}):
        health.judge({**HEALTHY, **change})
    assert "go back to step 2," in health.judge({**HEALTHY, "kl": 5.0})[0].fix


@given(
    st.lists(
        st.tuples(
            st.dictionaries(
                st.sampled_from(sorted(HEALTHY)),
                st.one_of(st.floats(), st.sampled_from([0.0, 1.0, -1.0, 1e308, -1e308, 5e-324])),
            ),
            st.sampled_from([None, "too few tokens"]),
        ),
        max_size=25,
    ),
    st.sampled_from([{}, KL_STEERED, {"model": {"dtype": "float32"}}, {"algorithm": {"entropy": 0.1}}]),
)
def test_missing_or_non_finite_figures_give_verdicts_and_no_exception(steps, config):
    health = Health(make_config(**config))
    for metrics, skipped in steps:
        found = health.judge(metrics, skipped)
        assert found
        assert all(verdict.what for verdict in found)
        weights = [(BAD, WARN, Severity.OK).index(verdict.severity) for verdict in found]
        assert weights == sorted(weights)
    json.dumps(health.state(), allow_nan=False)


def test_a_figure_that_is_missing_raises_no_alarm():
    for missing in sorted(HEALTHY):
        health = Health(make_config())
        for _ in range(12):
            found = health.judge({name: value for name, value in HEALTHY.items() if name != missing})
        assert [verdict.severity for verdict in found] == [Severity.OK], missing


REMEMBERED = {
    "critic": "explained_variance",
    "value loss": "value_loss",
    "gradient spike": "grad_norm",
    "wrong way": "ratio_mean_positive",
    "reward collapse": "reward",
    "invalid calls": "valid_call_rate",
    "dead groups": "groups",
}


@pytest.mark.parametrize("rule", REMEMBERED)
def test_a_rule_is_silent_about_a_step_without_its_figure(rule):
    planted = next(planted for planted in PLANTED if planted.rule == rule)
    health = Health(make_config(**planted.config))
    for change in planted.steps:
        health.judge({**HEALTHY, **change})
    unknown = {name: value for name, value in HEALTHY.items() if name != REMEMBERED[rule]}
    assert [verdict.severity for verdict in health.judge(unknown)] == [Severity.OK]
