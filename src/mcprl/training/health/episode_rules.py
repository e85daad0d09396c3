"""Rules about what was played: do groups teach, are there calls, are they valid, do episodes come to an end."""

from __future__ import annotations

from mcprl.config import RunConfig
from mcprl.training.health.bars import VALID_CALLS, VALID_CALLS_BY_STEP
from mcprl.training.health.sight import WINDOW, Rules, Sight, by_size, mean, refill
from mcprl.verdicts import Severity, Verdict

__all__ = ["EPISODE_RULES", "count_dead_groups", "dead_groups"]

# A group whose rewards are all the same teaches nothing: at half of them the batch costs twice what it teaches, at four
# fifths what is left is too few groups for a direction.
_DEAD_WARN, _DEAD_BAD = 0.5, 0.8
# Fewer groups than these are chance: steps are counted together until there are so many.
_ENOUGH_GROUPS = 8
# Where this share of episodes succeeds, groups without variance are mostly solved ones; below the other, failed ones.
_MOSTLY_SOLVED, _MOSTLY_FAILED = 0.6, 0.3
# Calls are often wrong in the first steps; half of them wrong after ten is a policy that does not find the form.
_EARLY_STEPS, _EARLY_VALID = 10, 0.5
_VALID_WINDOW = 5
# An episode that a limit ends has no answer: its reward tells how long it was, not how good.
_CUT_WARN, _CUT_BAD = 0.5, 0.9
# Lost episodes are run again and cost time only, but those lost are not a random draw: long ones are lost more often.
_LOST_WARN, _LOST_BAD = 0.1, 0.3
# A tool that a tenth of all episodes can make fail is what the policy is learning about.
_CAUSED_BAD = 0.1

_CUTS = {
    "stop_cut_by_length": "turns are cut by their limit of tokens",
    "stop_turn_limit": "episodes run out of turns",
    "stop_context_limit": "conversations outgrow the context",
}


def count_dead_groups(sight: Sight) -> tuple[float, float] | None:
    """Groups without variance and all groups that were played, those left out of the batch among both."""
    dead, groups = sight.now("groups_without_variance"), sight.now("groups")
    return (dead, groups) if dead is not None and groups is not None else None


def dead_groups(sight: Sight) -> Verdict | None:
    if sight.config.algorithm.has_critic or count_dead_groups(sight) is None:
        return None
    dead = played = 0.0
    for more_dead, more in zip(
        reversed(sight.past.last("groups_dead", WINDOW)),
        reversed(sight.past.last("groups_played", WINDOW)),
        strict=True,
    ):
        dead, played = dead + more_dead, played + more
        if played >= _ENOUGH_GROUPS:
            break
    severity = by_size(dead / played, warn=_DEAD_WARN, bad=_DEAD_BAD) if played > 0 else None
    if severity is None:
        return None
    if played < _ENOUGH_GROUPS:
        severity = Severity.WARN
    success = sight.now("success_rate")
    if success is None:
        success = sight.now("reward")
    what = f"{dead / played:.0%} of groups have zero variance and teach nothing"
    picks = sight.config.tasks.order == "curriculum"
    if success is not None and success >= _MOSTLY_SOLVED:
        return Verdict(
            severity=severity,
            what=f"{what}: most are solved by every member",
            fix=f"train on harder tasks{'' if picks else ' (tasks.order curriculum picks them)'}, or "
            f"{refill(sight.config)}",
        )
    if success is None or success < _MOSTLY_FAILED:
        return Verdict(
            severity=severity,
            what=f"{what}: most fail in the same way in every member",
            fix="raise sampling.temperature or episodes.group_size, lower the difficulty"
            f"{'' if picks else ' (tasks.order curriculum)'}, or {refill(sight.config)}",
        )
    return Verdict(
        severity=severity,
        what=f"{what}: some tasks are always solved, others never",
        fix=("" if picks else "set tasks.order to curriculum, which picks those between, or ") + refill(sight.config),
    )


def no_calls(sight: Sight) -> Verdict | None:
    if sight.now("calls") != 0.0:
        return None
    grammar = "set sampling.constrain to act" if sight.config.sampling.constrain != "act" else "offer fewer tools"
    return Verdict(
        severity=Severity.BAD,
        what="no episode called a tool: the policy does not find the form of a call, or answers without one",
        fix=f"{grammar}, imitate solutions first (algorithm.warm_start.weight), or show a call in tasks.preamble",
    )


def invalid_calls(sight: Sight) -> Verdict | None:
    step, rates = sight.past.steps, sight.past.last("valid_call_rate", _VALID_WINDOW)
    if sight.now("valid_call_rate") is None or not sight.now("calls"):
        return None
    rate = mean(rates)
    if step >= VALID_CALLS_BY_STEP and rate < VALID_CALLS:
        severity = Severity.BAD
    elif step >= _EARLY_STEPS and rate < _EARLY_VALID:
        severity = Severity.WARN
    else:
        return None
    what = f"after {step} steps {rate:.0%} of calls are valid"
    if sight.config.sampling.constrain == "off":
        return Verdict(
            severity=severity,
            what=f"{what}: the policy does not keep to the form or to the tools' schemas",
            fix="set sampling.constrain to act, under which no call can be malformed, or raise rewards.invalid_call",
        )
    return Verdict(
        severity=severity,
        what=f"{what}, although a grammar holds their form: tools refuse the values",
        fix="see which tools refuse and why (`mcprl tools stats RUN`), tell the values in their descriptions, or raise "
        "rewards.invalid_call",
    )


def unanswered(sight: Sight) -> Verdict | None:
    if not sight.config.rewards.unanswered:
        return None  # where an episode without an answer costs nothing, none is wanted
    shares = {name: share for name in _CUTS if (share := sight.now(name)) is not None}
    severity = by_size(sum(shares.values()), warn=_CUT_WARN, bad=_CUT_BAD)
    if severity is None:
        return None
    most = max(shares, key=lambda name: shares[name])
    what = (
        f"{sum(shares.values()):.0%} of episodes end at a limit without an answer: mostly ({shares[most]:.0%}) "
        f"{_CUTS[most]}"
    )
    return Verdict(severity=severity, what=what, fix=_room(most, sight.config))


def _room(cut: str, config: RunConfig) -> str:
    """How episodes get to their answer before the limit that cuts them."""
    if cut == "stop_context_limit":
        return (
            f"raise model.context_tokens (now {config.model.context_tokens}), or cut long results (max_result_bytes in "
            "servers.settings)"
        )
    if cut == "stop_turn_limit":
        easier = (
            "" if config.tasks.order == "curriculum" else ", or train on easier tasks first (tasks.order curriculum)"
        )
        return f"raise episodes.max_turns{easier}"
    act = ", or set sampling.constrain to act, which leaves no room to ramble"
    tighter = "" if config.sampling.constrain == "act" else act
    return f"raise sampling.max_tokens (now {config.sampling.max_tokens}){tighter}"


def lost_episodes(sight: Sight) -> Verdict | None:
    lost, kept = sight.now("episodes_lost_to_infrastructure"), sight.now("episodes")
    if lost is None or kept is None or lost + kept <= 0:
        return None
    severity = by_size(lost / (lost + kept), warn=_LOST_WARN, bad=_LOST_BAD)
    codes = {name.removeprefix("lost_"): count for name, count in sight.metrics.items() if name.startswith("lost_")}
    if severity is None or not codes:
        return None
    most = max(codes, key=lambda code: codes[code])
    return Verdict(
        severity=severity,
        what=f"{lost / (lost + kept):.0%} of episodes were lost to the infrastructure and run again: "
        f"mostly ({codes[most] / lost:.0%}) to {most}",
        fix=f"`mcprl explain {most}` says what that is and what mends it; the logs of the run say where",
    )


def caused_faults(sight: Sight) -> Verdict | None:
    """Losses that are no accident: they go together with something that the policy does."""
    share = sight.now("stop_caused_fault") or 0.0
    found: list[str] = []
    if share > 0:
        found.append(
            f"{share:.0%} of episodes made their tool server fail, and again when repeated: they count as failed"
        )
    if sight.lost_with:
        found.append(f"lost turns go together with {', '.join(map(str, sight.lost_with))}")
    if not found:
        return None
    return Verdict(
        severity=Severity.BAD if share >= _CAUSED_BAD else Severity.WARN,
        what="; ".join(found),
        fix="let the tool refuse such a call instead of failing: an episode that is lost by chance is run again, and a "
        "policy must not learn to lose the bad ones",
    )


EPISODE_RULES: Rules = {
    "no calls": no_calls,
    "caused faults": caused_faults,
    "lost episodes": lost_episodes,
    "dead groups": dead_groups,
    "invalid calls": invalid_calls,
    "unanswered": unanswered,
}
