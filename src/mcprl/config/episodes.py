"""Settings of the tasks, the episodes and the rewards."""

from __future__ import annotations

from typing import Annotated, Any, Literal, cast

from pydantic import BeforeValidator, Field, model_validator

from mcprl.config.section import FilePath, Section
from mcprl.records import Difficulty, Task

__all__ = ["EpisodesConfig", "JudgeConfig", "RewardsConfig", "TasksConfig"]


class TasksConfig(Section):
    """What to train on."""

    train: FilePath = Field(description="Task file: one JSON object a line, or a JSON list of SkyRL rows.")
    validation: FilePath | None = Field(
        default=None, description="Task file to judge the policy by, in the same forms; no step learns from it."
    )
    order: Literal["shuffled", "curriculum"] = Field(
        default="shuffled",
        description="shuffled: all alike; curriculum: easy ones first, then those that are neither easy nor hopeless.",
    )
    preamble: FilePath | None = Field(
        default=None, description="JSON list of messages put before each task's own: system prompt, worked examples."
    )


_AtLeastOne = Annotated[int, Field(ge=1)]
_MAX_TURNS = {Difficulty.EASY: 5, Difficulty.MEDIUM: 8, Difficulty.HARD: 10}


def _with_default_turns(value: object) -> object:
    # A difficulty left out keeps its limit: a task of it must not fail in the middle of a run.
    return {**_MAX_TURNS, **cast("dict[Any, Any]", value)} if isinstance(value, dict) else value


class EpisodesConfig(Section):
    """How episodes run."""

    group_size: int = Field(default=8, ge=2, description="Episodes of one task that are compared with each other.")
    max_concurrent: int = Field(default=64, ge=1, description="Episodes alive at once.")
    max_turns: Annotated[dict[Difficulty, _AtLeastOne], BeforeValidator(_with_default_turns)] = Field(
        default=_MAX_TURNS, description="Turns an episode may take, by difficulty of its task."
    )
    deadline_s: float = Field(default=600.0, gt=0, description="Seconds an episode may take.")
    max_attempts: int = Field(
        default=5, ge=1, description="Times an episode may be tried; those the infrastructure failed are run again."
    )
    spares: int = Field(
        default=0,
        ge=0,
        description="Episodes of a task beyond group_size; the first to finish count, which favours short ones.",
    )
    injected_errors: float = Field(
        default=0.0,
        ge=0,
        lt=1,
        description="Share of calls that fail on purpose, for the policy to learn to recover.",
    )

    def turn_limit(self, task: Task) -> int:
        """The turns that an episode of a task may take, each time that the user speaks."""
        return task.max_turns or self.max_turns[task.difficulty]


class JudgeConfig(Section):
    """A language model that grades answers, reached through an OpenAI-compatible endpoint."""

    url: str = Field(description="Base URL of the endpoint, such as http://127.0.0.1:8000/v1.")
    model: str = Field(description="Name of the model there.")
    key_env: str | None = Field(default=None, description="Environment variable that holds the key, if it needs one.")
    deadline_s: float = Field(default=60.0, gt=0, description="Seconds one grade may take.")
    cache: FilePath | None = Field(default=None, description="SQLite file of grades; the same question is asked once.")


class RewardsConfig(Section):
    """Weights of the parts of a reward. What a task does not check is left out; the others add up to 1.

    A part with weight 0 is still measured and logged.
    """

    answer: float = Field(default=1.0, ge=0, description="The final answer is right.")
    state: float = Field(default=1.0, ge=0, description="Share of what must be true of the world afterwards.")
    calls: float = Field(default=0.5, ge=0, description="Share of the needed tools called, in order where it matters.")
    arguments: float = Field(default=0.5, ge=0, description="Share of the needed arguments given rightly.")
    efficiency: float = Field(default=0.1, ge=0, description="Needed calls as a share of all calls made.")
    rubric: float = Field(default=1.0, ge=0, description="The judge's grade, for tasks with a rubric.")
    invalid_call: float = Field(default=0.05, ge=0, description="Taken off for each call that is invalid.")
    unanswered: float = Field(
        default=0.05, ge=0, description="Taken off where a limit (turns, tokens) ends the episode without an answer."
    )
    clip_low: float = Field(default=-1.0, description="No reward is lower.")
    clip_high: float = Field(default=1.0, description="No reward is higher.")
    judge: JudgeConfig | None = Field(default=None, description="Who grades the answers of tasks with a rubric.")

    @model_validator(mode="after")
    def _bounds_are_in_order(self) -> RewardsConfig:
        if not self.clip_low < self.clip_high:
            raise ValueError(f"rewards.clip_low is {self.clip_low:g}, clip_high {self.clip_high:g}: nothing is between")
        return self
