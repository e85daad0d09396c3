"""Rules about one step: its episodes, and how far its update moved the policy."""

from __future__ import annotations

from statistics import median

from mcprl.checks.health.view import (
    REPORT,
    WINDOW,
    Rules,
    StepView,
    at_cap,
    bad,
    by_size,
    gentler,
    may_set,
    one_of,
    refill,
    roll_back,
    warn,
)
from mcprl.config import RunConfig
from mcprl.verdicts import (
    ACTIVE_FRACTION,
    KL_BAD,
    KL_WARN,
    RATIO_BAND,
    RATIO_STD,
    VALID_CALLS,
    VALID_CALLS_BY_STEP,
    Severity,
    Verdict,
    mean,
)

# A group whose rewards are all equal has no gradient. At half of the groups, a batch costs twice what it should. At
# four fifths, too few groups are left to give a direction.
_DEAD_WARN, _DEAD_BAD = 0.5, 0.8
# With fewer groups, the result is mostly chance, so the groups of several steps are counted together.
_ENOUGH_GROUPS = 8
# Above the first success rate, groups without variance are mostly solved; below the second, they are mostly failed.
_MOSTLY_SOLVED, _MOSTLY_FAILED = 0.6, 0.3
# Below this temperature the members of a group rarely differ.
_COPYING = 0.3
# Calls are often wrong in the first steps. If half are wrong after ten steps, the policy does not find the format.
_EARLY_STEPS, _EARLY_VALID = 10, 0.5
_VALID_WINDOW = 5
# An episode that reaches a limit has no answer, so its reward measures its length, not its quality.
_CUT_WARN, _CUT_BAD = 0.5, 0.9
# Lost episodes are run again and cost only time, but they are not a random sample: long ones are lost more often.
_LOST_WARN, _LOST_BAD = 0.1, 0.3
# If a tenth of all episodes make a tool fail, the policy is learning to do that.
_CAUSED_BAD = 0.1

CUTS = {
    "stop_cut_by_length": "turns are cut off at sampling.max_tokens",
    "stop_turn_limit": "episodes run out of turns",
    "stop_context_limit": "conversations outgrow the context",
}


def count_dead_groups(view: StepView) -> tuple[float, float] | None:
    """Return the number of groups without variance, and of all groups; both include those left out of the batch."""
    dead, groups = view.now("groups_without_variance"), view.now("groups")
    return (dead, groups) if dead is not None and groups is not None else None


def dead_groups(view: StepView) -> Verdict | None:
    config, past = view.config, view.past
    if config.algorithm.has_critic or count_dead_groups(view) is None:
        return None
    dead = played = 0.0
    counts = zip(past.last("groups_dead", WINDOW), past.last("groups_played", WINDOW), strict=True)
    for more_dead, more in reversed(list(counts)):
        dead, played = dead + more_dead, played + more
        if played >= _ENOUGH_GROUPS:
            break
    severity = by_size(dead / played, warn=_DEAD_WARN, bad=_DEAD_BAD) if played > 0 else None
    if severity is None:
        return None
    if played < _ENOUGH_GROUPS:
        severity = Severity.WARN
    success, reward = view.now("success_rate"), view.now("reward")
    if success is None:
        success = reward
    # Success may mean calls of the right tools with the wrong arguments.
    earns_little = reward is not None and reward < _MOSTLY_FAILED
    curriculum = config.tasks.order == "curriculum"
    ways: list[str] = []
    if config.sampling.temperature < _COPYING:
        cause = f"at temperature {config.sampling.temperature:g} all episodes of a group are identical"
        ways.append("raise sampling.temperature towards 1")
    elif success is not None and success >= _MOSTLY_SOLVED and not earns_little:
        cause = "in most of these groups, every episode solves the task"
        ways.append(f"train on harder tasks{'' if curriculum else ' (tasks.order=curriculum selects them)'}")
    elif success is None or success < _MOSTLY_FAILED or earns_little:
        cause = "in most of these groups, every episode fails in the same way"
        if may_set(config, "sampling.temperature", config.sampling.temperature * 1.2):
            ways.append("raise sampling.temperature")
        ways += [
            "raise episodes.group_size",
            f"train on easier tasks{'' if curriculum else ' (tasks.order=curriculum)'}",
        ]
    else:
        cause = "some tasks are always solved and others never"
        ways += (
            [] if curriculum else ["set tasks.order to curriculum, which selects tasks that are solved only sometimes"]
        )
    what = f"{dead / played:.0%} of groups have zero variance and teach nothing: {cause}"
    return Verdict(severity=severity, what=what, fix=one_of([*ways, refill(config)]))


def no_calls(view: StepView) -> Verdict | None:
    # Solutions that are being imitated teach calls, so doctor accepts a model without them.
    is_being_taught = view.now("demonstration_weight") and view.past.steps < _EARLY_STEPS
    if view.now("calls") != 0.0 or is_being_taught:
        return None
    config, warm_start = view.config, view.config.algorithm.warm_start
    act = may_set(config, "sampling.constrain", "act")
    ways = ["set sampling.constrain to act" if act else "offer fewer tools"]
    if warm_start.weight <= 0:
        solutions = "" if view.has_solutions else "give tasks a solution and "
        ways.append(f"{solutions}imitate solutions first (algorithm.warm_start.weight)")
    elif not view.now("demonstration_weight"):
        ways.append(f"imitate solutions for more steps (algorithm.warm_start.steps, now {warm_start.steps})")
    ways.append(f"add {'example calls' if config.tasks.preamble is None else 'more example calls'} to tasks.preamble")
    return bad(
        "no episode called a tool: the policy does not know the call format, or answers without tools", one_of(ways)
    )


def invalid_calls(view: StepView) -> Verdict | None:
    step, rates = view.past.steps, view.past.last("valid_call_rate", _VALID_WINDOW)
    if view.now("valid_call_rate") is None or not view.now("calls"):
        return None
    rate = mean(rates)
    if step >= VALID_CALLS_BY_STEP and rate < VALID_CALLS:
        severity = Severity.BAD
    elif step >= _EARLY_STEPS and rate < _EARLY_VALID:
        severity = Severity.WARN
    else:
        return None
    what = f"after {step} steps, {rate:.0%} of calls are valid"
    if view.config.sampling.constrain == "off":
        what += ": the policy does not follow the call format or the tools' schemas"
        fix = "add correct example calls to tasks.preamble"
        if may_set(view.config, "sampling.constrain", "act"):
            fix = "set sampling.constrain to act, which makes malformed calls impossible"
    else:
        what += ", although a grammar enforces their format: the tools reject some of the argument values"
        fix = (
            "find out with `mcprl tools stats RUN` which tools reject calls and why, and describe the allowed values "
            "to the policy"
        )
    return Verdict(severity=severity, what=what, fix=f"{fix}, or raise rewards.penalty")


def unanswered(view: StepView) -> Verdict | None:
    if not view.config.rewards.penalty:
        return None  # if a missing answer costs nothing, no answer is wanted
    shares = {name: share for name in CUTS if (share := view.now(name)) is not None}
    severity = by_size(sum(shares.values()), warn=_CUT_WARN, bad=_CUT_BAD)
    if severity is None:
        return None
    most = max(shares, key=lambda name: shares[name])
    total = sum(shares.values())
    what = f"{total:.0%} of episodes hit a limit before they answer; most often ({shares[most]:.0%}), {CUTS[most]}"
    return Verdict(severity=severity, what=what, fix=room_for(most, view.config))


def room_for(cut: str, config: RunConfig) -> str:
    """Suggest how episodes can reach an answer before they hit this limit."""
    if cut == "stop_context_limit":
        return (
            f"raise model.context_tokens (now {config.model.context_tokens}), or shorten long results "
            "(max_result_bytes in servers.settings)"
        )
    if cut == "stop_turn_limit":
        easier = ", or train on easier tasks first (tasks.order=curriculum)"
        return f"raise episodes.max_turns{'' if config.tasks.order == 'curriculum' else easier}"
    ways = [f"raise sampling.max_tokens (now {config.sampling.max_tokens})"]
    if may_set(config, "sampling.constrain", "act"):
        ways.append("set sampling.constrain to act, which leaves no room for prose around calls")
    return one_of(ways)


def lost_episodes(view: StepView) -> Verdict | None:
    lost, kept = view.now("episodes_lost_to_infrastructure"), view.now("episodes")
    if lost is None or kept is None or lost + kept <= 0:
        return None
    severity = by_size(lost / (lost + kept), warn=_LOST_WARN, bad=_LOST_BAD)
    codes = {name.removeprefix("lost_"): count for name, count in view.metrics.items() if name.startswith("lost_")}
    if severity is None or not codes:
        return None
    most = max(codes, key=lambda code: codes[code])
    return Verdict(
        severity=severity,
        what=f"{lost / (lost + kept):.0%} of episodes were lost to infrastructure faults and rerun, mostly "
        f"({codes[most] / lost:.0%}) because of {most}",
        fix=f"run `mcprl explain {most}` for causes and fixes, and look up the failures in the run's logs",
    )


def caused_faults(view: StepView) -> Verdict | None:
    share = view.now("stop_caused_fault") or 0.0
    if share <= 0:
        return None
    return Verdict(
        severity=Severity.BAD if share >= _CAUSED_BAD else Severity.WARN,
        what=f"{share:.0%} of episodes crashed their tool server, crashed it again when rerun, and count as failed",
        fix="make the tool reject such calls instead of failing",
    )


EPISODE_RULES: Rules = {
    "no calls": no_calls,
    "server crashes": caused_faults,
    "lost episodes": lost_episodes,
    "dead groups": dead_groups,
    "invalid calls": invalid_calls,
    "unanswered": unanswered,
}

# If the mean ratio is outside this range, most tokens became half or twice as likely in one update.
_RATIO_BAD = (0.5, 2.0)
# Good tokens should become more likely than bad ones. Minibatch noise is smaller than this gap, and does not last.
_WRONG_WAY, _WRONG_WAY_STEPS = -0.05, 3
# PPO's clip usually affects 5% to 20% of tokens; at a third, updates are too large for their data.
_CLIPPED_WARN, _CLIPPED_BAD = 0.3, 0.6
# The gate is for outliers. If many tokens are outside, the policy itself has moved.
_GATED_WARN, _GATED_BAD = 0.1, 0.3
# Norms vary two- or threefold between batches; ten times the usual norm is an unusual batch.
_SPIKE, _SPIKE_NEEDS = 10.0, 5
# Adaptive control changes the coefficient by tens of percent; at ten times its start, it cannot reach its target.
_RUNAWAY_WARN, _RUNAWAY_BAD = 10.0, 100.0


def kl(view: StepView) -> Verdict | None:
    distance = max((x for x in (view.now("kl"), view.now("kl_update")) if x is not None), default=None)
    severity = by_size(distance, warn=KL_WARN, bad=KL_BAD)
    if severity is None or view.now("update_undone") == 1.0:
        return None
    healthy = view.past.healthy_step
    if severity is Severity.BAD:
        fix = roll_back(view, healthy)
    else:
        fix = gentler(view.config) + ("" if healthy is None else f"; if it keeps growing, go back to step {healthy}")
    what = f"KL is {distance:.2g} nats per token: the update moves the policy far from the policy that sampled the data"
    return Verdict(severity=severity, what=what, fix=fix)


def masked_drift(view: StepView) -> Verdict | None:
    masked, unmasked, masks = view.now("kl"), view.now("kl_unmasked"), view.config.algorithm.masks
    if masked is None or unmasked is None or masked >= KL_WARN or unmasked < KL_WARN:
        return None
    exact = "" if masks == "exact" else f"set algorithm.masks to exact (now {masks}), or "
    return warn(
        f"KL is {masked:.2g} nats per token over tokens that carry loss, but {unmasked:.2g} over all sampled ones: "
        "the policy also drifts on tokens that carry no loss",
        exact + gentler(view.config),
    )


def reference_kl(view: StepView) -> Verdict | None:
    distance, settings = view.now("kl_reference"), view.config.algorithm.kl
    # If the recipe has a target, it defines the right distance; at twice the target, adaptive control has failed.
    severity = by_size(distance, warn=2 * settings.target if settings.target else KL_WARN, bad=KL_BAD)
    if severity is None:
        return None
    if severity is Severity.BAD:
        fix = roll_back(view, view.past.healthy_step)
        fix += "" if settings.cap else "; algorithm.kl.cap=3.0 stops such updates automatically"
    else:
        fix = f"raise algorithm.kl.coefficient (now {settings.coefficient:g}), or {gentler(view.config)}"
    what = (
        f"the policy is {distance:.2g} nats per token from its reference ({settings.reference}) and may forget "
        "earlier abilities"
    )
    return Verdict(severity=severity, what=what, fix=fix)


def kl_cap(view: StepView) -> Verdict | None:
    stopped = view.now("optimiser_steps_over_cap")
    if not stopped or view.was_skipped:
        return None
    what = (
        f"{stopped:.0f} optimizer steps were skipped: the policy was further than algorithm.kl.cap from its reference"
    )
    return warn(what, at_cap(view.config))


def kl_coefficient(view: StepView) -> Verdict | None:
    settings = view.config.algorithm.kl
    now, start = view.now("kl_coefficient"), settings.coefficient
    if now is None or now <= 0 or start <= 0 or settings.target is None:
        return None
    severity = by_size(max(now / start, start / now), warn=_RUNAWAY_WARN, bad=_RUNAWAY_BAD)
    if severity is None:
        return None
    if now > start:
        cause, fix = (
            "the policy keeps moving away from the reference",
            f"{gentler(view.config)}, or raise algorithm.kl.target",
        )
    else:
        cause, fix = "the policy stays closer to the reference than that", "lower algorithm.kl.target, or remove it"
    what = (
        f"the KL coefficient went from {start:.2g} to {now:.2g} to keep KL at {settings.target:g} nats per token: "
        f"{cause}"
    )
    return Verdict(severity=severity, what=what, fix=fix)


def ratio(view: StepView) -> Verdict | None:
    average = view.now("ratio_mean")
    if average is None or RATIO_BAND[0] <= average <= RATIO_BAND[1]:
        return None
    extreme = not _RATIO_BAD[0] <= average <= _RATIO_BAD[1]
    low, high = RATIO_BAND
    return Verdict(
        severity=Severity.BAD if extreme else Severity.WARN,
        what=f"the mean ratio is {average:.3g}, outside {low:g} to {high:g}: one update moves the policy too far",
        fix=gentler(view.config) + _norm_setting(view),
    )


def ratio_spread(view: StepView) -> Verdict | None:
    spread = view.now("ratio_std")
    if spread is None or spread <= RATIO_STD:
        return None
    gate = "" if view.config.algorithm.ratio_gate else "set algorithm.ratio_gate to [0.25, 4.0], or "
    what = f"ratios have a standard deviation of {spread:.2g}: a few tokens have far more weight than the others"
    return warn(what, gate + gentler(view.config))


def wrong_way(view: StepView) -> Verdict | None:
    if view.now("ratio_mean_positive") is None or view.now("ratio_mean_negative") is None:
        return None
    gaps = view.past.last("ratio_gap", _WRONG_WAY_STEPS)
    if len(gaps) < _WRONG_WAY_STEPS or max(gaps) > _WRONG_WAY:
        return None
    algorithm = view.config.algorithm
    weights = {
        "algorithm.kl.coefficient": algorithm.kl.coefficient,
        "algorithm.entropy": algorithm.entropy,
        "algorithm.warm_start.weight": algorithm.warm_start.weight,
    }
    pulling = [f"{name} (now {weight:g})" for name, weight in weights.items() if weight > 0]
    return bad(
        f"for {_WRONG_WAY_STEPS} updates, tokens with a positive advantage have had lower ratios than those with a "
        f"negative one (by {-gaps[-1]:.2g}): the policy moves against its rewards",
        f"lower {' and '.join(pulling)} to give the rewards more weight" if pulling else REPORT,
    )


def clipping(view: StepView) -> Verdict | None:
    clipped = view.now("clipped_fraction")
    severity = by_size(clipped, warn=_CLIPPED_WARN, bad=_CLIPPED_BAD)
    if severity is None:
        return None
    what = f"{clipped:.0%} of the tokens are clipped: updates are too large for the data"
    minibatches = view.config.algorithm.minibatches
    fix = gentler(view.config) + (f", or algorithm.minibatches (now {minibatches})" if minibatches > 1 else "")
    return Verdict(severity=severity, what=what, fix=fix)


def gated(view: StepView) -> Verdict | None:
    outside = view.now("gated_fraction")
    severity = by_size(outside, warn=_GATED_WARN, bad=_GATED_BAD)
    if severity is None:
        return None
    return Verdict(
        severity=severity,
        what=f"{outside:.0%} of the tokens have a ratio outside algorithm.ratio_gate and carry no loss: updates are "
        "too large, or sampler and learner disagree",
        fix=f"run `mcprl parity RECIPE`; if that passes, {gentler(view.config)}",
    )


def inactive(view: StepView) -> Verdict | None:
    """Warn if few tokens change the weights and no other rule explains it."""
    active = view.now("active_fraction")
    if active is None or active >= ACTIVE_FRACTION:
        return None
    if any(rule(view) is not None for rule in (dead_groups, clipping, gated)):
        return None
    dead, groups = count_dead_groups(view) or (0.0, 0.0)
    dropped = view.now("groups_dropped") or 0.0
    dead_share = (dead - dropped) / (groups - dropped) if groups > dropped else 0.0
    return warn(
        f"only {active:.0%} of the learnable tokens contribute to the gradient: {dead_share:.0%} of groups have zero "
        f"variance, {view.now('clipped_fraction') or 0.0:.0%} of tokens are clipped, and other episodes earned "
        "exactly their group's mean",
        f"raise episodes.group_size, add partial rewards in the section rewards, or {refill(view.config)}",
    )


def gradient_spike(view: StepView) -> Verdict | None:
    norm, earlier = view.now("grad_norm"), view.past.last("grad_norm", WINDOW)[:-1]
    if norm is None or len(earlier) < _SPIKE_NEEDS or norm <= _SPIKE * median(earlier):
        return None
    return warn(
        f"the gradient norm is {norm:.2g}, {norm / median(earlier):.0f} times its median so far: an unusual batch, or "
        "the start of instability",
        f"inspect the episodes of this step; if the spike recurs, {gentler(view.config)}{_norm_setting(view)}",
    )


def _norm_setting(view: StepView) -> str:
    most = view.config.learner.max_grad_norm
    if not may_set(view.config, "learner.max_grad_norm", (most or 1.0) / 2):
        return ""
    return f", or learner.max_grad_norm (now {'null' if most is None else f'{most:g}'})"


STEP_RULES: Rules = {
    "KL": kl,
    "ratio": ratio,
    "reference KL": reference_kl,
    "wrong way": wrong_way,
    "KL coefficient": kl_coefficient,
    "clipping": clipping,
    "gated": gated,
    "ratio spread": ratio_spread,
    "masked drift": masked_drift,
    "KL cap": kl_cap,
    "gradient spike": gradient_spike,
    "inactive": inactive,
}
