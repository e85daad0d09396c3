"""Settings of the objective: advantages, losses, the distance to a reference policy, the critic, the warm start.

Every default is the plain thing: group-relative advantages and the clipped ratio. What bends the objective (penalties,
gates, bonuses) is off until a recipe turns it on.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from mcprl.config.section import Section

__all__ = ["AlgorithmConfig", "CriticConfig", "KlConfig", "WarmStartConfig"]


class KlConfig(Section):
    """How far the policy may move from a reference policy. Without a coefficient or a cap there is no reference."""

    coefficient: float = Field(default=0.0, ge=0, description="Weight of the divergence from the reference policy.")
    estimator: Literal["k1", "k2", "k3"] = Field(
        default="k2",
        description="Estimate for a token: k1: log ratio, right in the reward and without effect in the loss; "
        "k2: half its square, right in the loss; k3: unbiased and never negative, with a biased gradient.",
    )
    place: Literal["loss", "reward"] = Field(
        default="loss",
        description="loss: added to the loss; reward: taken off the reward of each token. grpo scales the reward "
        "only, not the penalty.",
    )
    target: float | None = Field(
        default=None, gt=0, description="Nats a token that the coefficient is steered to; null: it stays as it is."
    )
    horizon: int = Field(
        default=10, ge=1, description="Updates over which a divergence 20% off its target moves the coefficient by 20%."
    )
    cap: float | None = Field(
        default=None,
        gt=0,
        description="Nats per token. An optimiser step is not made if the policy is further from the reference. An "
        "update that leaves it further away, or moves it by more, is undone; after a jump the learning rate is halved.",
    )
    refresh_at_cap: bool = Field(
        default=False, description="Whether the reference becomes the policy after an update that the cap stopped."
    )
    reference: Literal["base", "ema", "sync"] = Field(
        default="base",
        description="base: the untouched model; ema: a moving average of the policy; sync: a copy of it, renewed.",
    )
    ema_decay: float = Field(default=0.99, gt=0, lt=1, description="Share of the old reference kept at each update.")
    sync_every: int = Field(default=20, ge=1, description="Updates after which the reference becomes the policy.")

    @property
    def needs_reference(self) -> bool:
        return self.coefficient > 0 or self.cap is not None

    @model_validator(mode="after")
    def _nothing_is_left_unused(self) -> KlConfig:
        if self.target is not None and self.coefficient == 0:
            raise ValueError("kl.target steers kl.coefficient, which must start above 0")
        if self.refresh_at_cap and self.cap is None:
            raise ValueError("kl.refresh_at_cap is set, but there is no kl.cap")
        if self.refresh_at_cap and self.reference == "base":
            raise ValueError("kl.refresh_at_cap replaces the reference, and kl.reference base never changes")
        return self


class CriticConfig(Section):
    """The value head and its generalised advantage estimates; used with algorithm.advantages gae only."""

    gamma: float = Field(
        default=1.0,
        gt=0,
        le=1,
        description="Discount per step. With steps of a token, 0.99 leaves 2% of the reward after 400 tokens.",
    )
    lam: float = Field(
        default=1.0,
        ge=0,
        le=1,
        description="Between one-step errors (0) and whole returns (1). Below 1 it fades per step, as gamma does.",
    )
    step: Literal["token", "turn"] = Field(
        default="token", description="What a step is: a sampled token, or a turn, whose tokens share its advantage."
    )
    coefficient: float = Field(default=0.5, gt=0, description="Weight of the value loss.")
    clip: float | None = Field(default=0.2, gt=0, description="How far a value may move in one update; null: freely.")
    learning_rate: float = Field(default=1e-3, gt=0, description="AdamW's learning rate for the value head.")


class WarmStartConfig(Section):
    """Imitation of the tasks' own solutions, beside reinforcement learning, fading out."""

    weight: float = Field(default=0.0, ge=0, description="Weight of the imitation loss in the first step.")
    steps: int = Field(default=10, ge=1, description="Steps over which that weight falls to 0 in a straight line.")

    def weight_at(self, step: int) -> float:
        return self.weight * max(0.0, 1.0 - step / self.steps)


_Gate = Annotated[tuple[float, float], Field(description="lowest and highest ratio")]


class AlgorithmConfig(Section):
    """The objective: how good an episode's tokens were, and how the policy moves by it."""

    advantages: Literal["grpo", "dr_grpo", "rloo", "gae"] = Field(
        default="grpo",
        description="grpo: reward against the group, in its standard deviations; dr_grpo: not scaled; "
        "rloo: against the others of the group; gae: against a value head.",
    )
    whiten: bool = Field(
        default=False, description="Whether advantages are made mean 0 and deviation 1 over the whole batch."
    )
    loss: Literal["ppo", "gspo", "cispo"] = Field(
        default="ppo",
        description="ppo: clipped ratio of each token; gspo: of each sequence; cispo: clipped weight of the logprob.",
    )
    aggregation: Literal["token_mean", "sequence_mean", "constant"] = Field(
        default="token_mean",
        description="token_mean: all tokens weigh the same; sequence_mean: all episodes do; "
        "constant: tokens weigh 1 / constant_tokens of an episode, however long it is.",
    )
    constant_tokens: int | None = Field(
        default=None, ge=1, description="Tokens that an episode counts as, with aggregation constant."
    )
    clip_low: float = Field(default=0.2, gt=0, le=1, description="Ratios below 1 − this bring no more gain.")
    clip_high: float = Field(default=0.2, gt=0, description="Ratios above 1 + this bring no more gain.")
    dual_clip: float | None = Field(
        default=None, gt=1, description="Loss of a token with negative advantage is at most this times |advantage|."
    )
    ratio_gate: _Gate | None = Field(
        default=None, description="Tokens with a ratio outside of these two, such as [0.25, 4.0], carry no loss."
    )
    old_logprobs: Literal["sampled", "recomputed"] = Field(
        default="sampled",
        description="What ratios are against: sampled: the sampler's logprobs; recomputed: the learner's before the "
        "update, weighted by how far the two differ, for samplers in another precision.",
    )
    max_importance: float = Field(
        default=2.0, ge=1, description="Those weights are cut off here, with old_logprobs recomputed."
    )
    entropy: float = Field(default=0.0, ge=0, description="Weight of the entropy bonus.")
    masks: Literal["exact", "text", "none"] = Field(
        default="exact",
        description="Sampled tokens without loss: exact: those with one admissible token; text: with one text; none.",
    )
    dead_groups: Literal["keep", "refill"] = Field(
        default="keep",
        description="Groups whose rewards are all the same: keep: they count as tokens and teach nothing; "
        "refill: they are left out, and other tasks are played in their place.",
    )
    max_refills: int = Field(default=2, ge=1, description="Rounds of other tasks that one step may play.")
    min_learnable_tokens: int = Field(
        default=16, ge=1, description="A batch with fewer learnable tokens makes no update."
    )
    min_learnable_share: float = Field(
        default=0.0, ge=0, lt=1, description="A batch with a smaller share of its sampled tokens makes no update."
    )
    epochs: int = Field(default=1, ge=1, description="Passes over a batch.")
    minibatches: int = Field(default=2, ge=1, description="Optimiser steps in each pass.")
    kl: KlConfig = KlConfig()
    critic: CriticConfig = CriticConfig()
    warm_start: WarmStartConfig = WarmStartConfig()

    @property
    def has_critic(self) -> bool:
        return self.advantages == "gae"

    @model_validator(mode="after")
    def _settings_belong_together(self) -> AlgorithmConfig:
        if (self.aggregation == "constant") != (self.constant_tokens is not None):
            raise ValueError("aggregation constant and constant_tokens go together")
        if self.ratio_gate is not None and not 0 <= self.ratio_gate[0] < 1 < self.ratio_gate[1]:
            raise ValueError("ratio_gate needs a number below 1 and one above it, such as [0.25, 4.0]")
        if self.dual_clip is not None and self.loss != "ppo":
            raise ValueError("dual_clip belongs to loss ppo")
        if self.has_critic and self.dead_groups == "refill":
            raise ValueError("with gae no group is dead: a value head judges each episode by itself")
        return self
