"""Makes a batch from groups: turns rewards into the advantages of the tokens that carry loss."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from mcprl.config import AlgorithmConfig, CriticConfig
from mcprl.errors import UserCodeError
from mcprl.functions import UserCode, load_function
from mcprl.learning.algorithms.advantages import (
    dr_grpo_advantages,
    floats,
    gae,
    grpo_advantages,
    rloo_advantages,
    step_rewards,
    steps_of,
    whitened,
)
from mcprl.learning.algorithms.losses import divergence, learnable_tokens
from mcprl.records import Batch, Columns, Group, Readings, StopReason, Trajectory

_Mask = tuple[bool, ...]

_GROUP_RELATIVE: Mapping[str, Callable[[Tensor], Tensor]] = {
    "grpo": grpo_advantages,
    "dr_grpo": dr_grpo_advantages,
    "rloo": rloo_advantages,
}
_NOTHING_READ = Readings()


_OVERLONG = (StopReason.CUT_BY_LENGTH, StopReason.CONTEXT_LIMIT)


def make_batch(
    step: int,
    groups: Sequence[Group],
    algorithm: AlgorithmConfig,
    readings: Readings = _NOTHING_READ,
    *,
    kl_coefficient: float = 0.0,
    demonstrations: Sequence[Trajectory] = (),
    demonstration_weight: float = 0.0,
) -> Batch:
    """Make a batch of whole groups. Tokens without loss get advantage 0; others depend on `algorithm.advantages`:

    grpo, dr_grpo, rloo, or the user's function
                          each learnable token gets the advantage of its episode within the group
    gae                   each learnable token gets the advantage and the return of its step; the advantages are then
                          normalized over the batch

    With kl.estimator k1, each learnable token's KL from the reference, times `kl_coefficient`, is first subtracted from
    the reward. A non-finite reward gives non-finite advantages, which the learner rejects.
    """
    trajectories = [t for group in groups for t in group.trajectories]
    learnable = tuple(learnable_tokens(t, algorithm.masks) for t in trajectories)
    if algorithm.mask_overlong:
        pairs = zip(trajectories, learnable, strict=True)
        learnable = tuple((False,) * len(mask) if t.stop in _OVERLONG else mask for t, mask in pairs)
    penalised = algorithm.kl.in_reward and kl_coefficient > 0.0
    _check_readings(algorithm, readings, penalised)
    penalties = _penalties(trajectories, learnable, algorithm, readings, kl_coefficient if penalised else 0.0)
    returns = None
    if algorithm.has_critic:
        raw, returns = _critic_columns(trajectories, learnable, penalties, algorithm.critic, readings)
        advantages = _whitened_columns(raw, learnable)
    else:
        advantages = _group_columns(groups, learnable, penalties, algorithm.advantages)
    return Batch(
        step=step,
        groups=tuple(groups),
        learnable=learnable,
        advantages=advantages,
        returns=returns,
        readings=readings,
        kl_coefficient=kl_coefficient,
        demonstrations=tuple(demonstrations),
        demonstration_weight=demonstration_weight,
    )


def _check_readings(algorithm: AlgorithmConfig, readings: Readings, penalised: bool) -> None:
    needed = {
        "reference_logprobs": (penalised, readings.reference_logprobs),
        "values": (algorithm.has_critic, readings.values),
    }
    missing = [name for name, (is_needed, given) in needed.items() if is_needed and given is None]
    if missing:
        raise ValueError(f"the learner did not provide values that this objective needs: {', '.join(missing)}")


def _penalties(
    trajectories: Sequence[Trajectory],
    learnable: Sequence[_Mask],
    algorithm: AlgorithmConfig,
    readings: Readings,
    coefficient: float,
) -> list[list[float]]:
    """Return the KL penalty of each token; 0 for tokens without loss."""
    if coefficient == 0.0 or readings.reference_logprobs is None:
        return [[0.0] * len(mask) for mask in learnable]
    costs: list[list[float]] = []
    for trajectory, mask, reference in zip(trajectories, learnable, readings.reference_logprobs, strict=True):
        sampled_T = torch.tensor(trajectory.logprobs, dtype=torch.float64)
        cost_T = coefficient * divergence(sampled_T, torch.tensor(reference).to(sampled_T), algorithm.kl.estimator)
        costs.append(floats(torch.where(torch.tensor(mask), cost_T, 0.0)))
    return costs


def _group_columns(
    groups: Sequence[Group], learnable: Sequence[_Mask], penalties: Sequence[Sequence[float]], kind: str
) -> Columns:
    """Give each learnable token of an episode the advantage of the reward minus that of the KL penalty.

    With grpo, or the user's function, the penalty is only centered, not scaled. If it were divided by its standard
    deviation, a tiny difference in the penalty would become an advantage of about 1 in a group of equal rewards.
    """
    of_reward = _GROUP_RELATIVE.get(kind) or _own_advantages(kind)
    of_penalty = of_reward if kind == "rloo" else dr_grpo_advantages
    advantages: list[float] = []
    costs = iter(penalties)
    for group in groups:
        reward_G = torch.tensor([t.reward for t in group.trajectories], dtype=torch.float64)
        cost_G = torch.tensor([sum(next(costs)) for _ in group.trajectories], dtype=torch.float64)
        advantages.extend(floats(of_reward(reward_G) - of_penalty(cost_G)))
    return tuple(
        tuple(advantage if carries_loss else 0.0 for carries_loss in mask)
        for advantage, mask in zip(advantages, learnable, strict=True)
    )


def _own_advantages(reference: str) -> Callable[[Tensor], Tensor]:
    """Return the user's function, which has the signature of `grpo_advantages`, with a check of its result."""
    own = load_function(reference, "algorithm.advantages")

    def advantages(reward_G: Tensor) -> Tensor:
        with UserCode(reference):
            advantage_G = own(reward_G.clone())
        if not isinstance(advantage_G, Tensor) or advantage_G.shape != reward_G.shape:
            is_tensor = isinstance(advantage_G, Tensor)
            found = f"a tensor of shape {tuple(advantage_G.shape)}" if is_tensor else type(advantage_G).__name__
            raise UserCodeError(
                f"{reference} returned {found} for {len(reward_G)} rewards", fix="return one number per episode"
            )
        if reward_G.isfinite().all() and not advantage_G.isfinite().all():
            raise UserCodeError(
                f"{reference} returned numbers that are not finite for the rewards {floats(reward_G)}",
                fix="return finite numbers for every group, even if all rewards are equal",
            )
        return advantage_G.detach().to(reward_G)

    return advantages


def require_sound_advantages(algorithm: AlgorithmConfig) -> None:
    """Raise if the user's function fails on small groups, or returns different numbers for the same rewards."""
    own = _own_advantages(algorithm.advantages)
    for rewards in ([0.0, 1.0], [1.0, 0.5, 0.25, -1.0], [0.5, 0.5, 0.5]):
        reward_G = torch.tensor(rewards, dtype=torch.float64)
        if not torch.equal(own(reward_G), own(reward_G)):
            raise UserCodeError(
                f"{algorithm.advantages} returns different numbers if called again, so a resumed run would differ",
                fix="do not use random numbers or keep state",
            )


def _critic_columns(
    trajectories: Sequence[Trajectory],
    learnable: Sequence[_Mask],
    penalties: Sequence[Sequence[float]],
    critic: CriticConfig,
    readings: Readings,
) -> tuple[Columns, Columns]:
    """Return the advantage and the return of each learnable token, which are those of its step."""
    advantages: list[tuple[float, ...]] = []
    returns: list[tuple[float, ...]] = []
    columns = zip(trajectories, learnable, penalties, readings.values or (), strict=True)
    for trajectory, mask, costs, values in columns:
        steps = steps_of(trajectory, mask, critic.step)
        earned = step_rewards(trajectory, steps)
        reward_S = [reward - sum(costs[place] for place in step) for reward, step in zip(earned, steps, strict=True)]
        advantage_S, return_S = gae(
            torch.tensor(reward_S, dtype=torch.float64),
            torch.tensor([values[step[0]] for step in steps], dtype=torch.float64),
            gamma=critic.gamma,
            lam=critic.lam,
        )
        advantages.append(_spread(advantage_S, steps, len(mask)))
        returns.append(_spread(return_S, steps, len(mask)))
    return tuple(advantages), tuple(returns)


def _spread(number_S: Tensor, steps: Sequence[Sequence[int]], length: int) -> tuple[float, ...]:
    column = [0.0] * length
    for number, step in zip(floats(number_S), steps, strict=True):
        for place in step:
            column[place] = number
    return tuple(column)


def _whitened_columns(advantages: Columns, learnable: Sequence[_Mask]) -> Columns:
    rows = list(zip(advantages, learnable, strict=True))
    chosen = [a for row, mask in rows for a, carries_loss in zip(row, mask, strict=True) if carries_loss]
    if not all(map(math.isfinite, chosen)):
        return advantages  # a mean would spoil all of them, and the learner names those that are not finite
    white = iter(floats(whitened(torch.tensor(chosen, dtype=torch.float64))))
    return tuple(tuple(next(white) if carries_loss else 0.0 for carries_loss in mask) for mask in learnable)
