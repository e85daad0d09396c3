"""`McpTextEnv`: mcprl's tools, tasks and rewards as an environment of skyrl-gym, for SkyRL's own trainer.

SkyRL creates one environment per episode, calls it from a pool of threads, and loses a whole batch if one raises. So an
infrastructure fault ends only its own episode and is reported in the episode's metadata. Errors in the recipe, the
dataset or the installation are raised when the environment is created.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any, cast

import skyrl_gym
from skyrl_gym.envs.base_text_env import BaseTextEnv, BaseTextEnvStepOutput

from mcprl.episodes import StepResult, succeeded
from mcprl.errors import BadValueError, InfrastructureError
from mcprl.records import StopReason
from mcprl_skyrl_gym.rows import ENV_ID, task_of_extras
from mcprl_skyrl_gym.stages import StageKey, load_config, stage_of

_logger = logging.getLogger(__name__)

_FAULT = "infrastructure_fault"
_FAULT_CODE = "infrastructure_fault_code"
# A name, because skyrl-gym imports it when the first environment is created.
_ENTRY_POINT = "mcprl_skyrl_gym.env:McpTextEnv"


def register(recipe: Path | str, *, overrides: Sequence[str] = (), strict: bool = False) -> None:
    """Make `env_class: mcprl` run the tasks of a dataset with the servers, rewards and limits of a recipe.

    Call it in the process that generates episodes; repeating the same call is harmless. With `strict`, infrastructure
    faults are raised, which ends SkyRL's whole batch; otherwise they only end their own episode.
    """
    key = StageKey(recipe=Path(recipe).resolve(), overrides=tuple(overrides))
    load_config(key)
    wanted: dict[str, Any] = {"recipe": str(key.recipe), "overrides": list(key.overrides), "strict": strict}
    registry = cast("dict[str, Any]", skyrl_gym.registry)
    if ENV_ID not in registry:
        skyrl_gym.register(id=ENV_ID, entry_point=_ENTRY_POINT, kwargs=wanted)
    elif registry[ENV_ID].entry_point != _ENTRY_POINT or registry[ENV_ID].kwargs != wanted:
        raise BadValueError(
            f"an environment {ENV_ID!r} is already registered, with {registry[ENV_ID].kwargs}",
            fix="use one recipe per process",
        )


class McpTextEnv(BaseTextEnv):
    """One episode of one task. `recipe`, `overrides` and `strict` come from `register`, the rest from SkyRL.

    The first environment of a process starts the recipe's tool servers. All others share them.
    """

    def __init__(
        self,
        env_config: Mapping[str, Any],
        extras: Mapping[str, Any],
        *,
        recipe: str,
        overrides: Sequence[str] = (),
        strict: bool = False,
    ) -> None:
        super().__init__()
        if env_config:
            raise BadValueError(
                f"SkyRL's configuration contains settings for this environment: {', '.join(map(str, env_config))}",
                fix="remove them; pass the recipe and its overrides to mcprl_skyrl_gym.register",
            )
        self._task = task_of_extras(extras)
        self._strict = strict
        self._stage = stage_of(StageKey(recipe=Path(recipe), overrides=tuple(overrides)))
        self.max_turns = self._stage.config.episodes.turn_limit(self._task) * self._task.max_messages
        self._require_turns(extras.get("max_turns"))
        self._conversation = self._stage.conversation(self._task)
        self._episode = self._stage.episode(self._task)
        self._fault: InfrastructureError | None = None
        self._stop: StopReason | None = None
        self._given = 0.0  # the reward of the turns so far

    def init(self, prompt: Sequence[Mapping[str, Any]]) -> tuple[Any, dict[str, Any]]:
        """Return the initial conversation with the tools. `prompt`, from the row, must be the task's own prompt."""
        shown = [(message["role"], message["content"]) for message in prompt]
        if shown != [(message["role"], message["content"]) for message in self._task.prompt]:
            raise BadValueError(
                f"a row's prompt differs from the prompt of its task {self._task.id}",
                fix="recreate the dataset with mcprl_skyrl_gym.write_dataset",
            )
        try:
            self._stage.portal.call(self._episode.open)
        except InfrastructureError as error:
            # SkyRL cannot end an episode here, so its first turn will.
            self._note_fault(error)
        return self._conversation, {"task_id": self._task.id}

    def step(self, action: str) -> BaseTextEnvStepOutput:
        """Make the calls of a turn, or end the episode with its answer."""
        if self._fault is not None:
            return self._lost(self._fault)
        prose, calls = self._stage.wording.read(action)
        try:
            result = self._stage.portal.call(self._episode.step, action, prose, calls)
        except InfrastructureError as error:
            self._note_fault(error)
            return self._lost(error)
        self.turns += 1
        self._stop = result.stop
        self._given += result.reward
        return self._output(result)

    def close(self) -> None:
        """Release the leased tools."""
        self._stage.portal.call(self._episode.close)

    def get_metrics(self) -> dict[str, Any]:
        """Return the episode's figures. For a lost episode, they are only the fault flag and the error's code."""
        if self._fault is not None:
            return {_FAULT: 1.0, _FAULT_CODE: self._fault.code}
        environment = self._episode.environment
        seen = [observation for turn in environment.turns for observation in turn.observations]
        return {
            _FAULT: 0.0,
            "reward": environment.reward,
            "success": float(succeeded(environment.parts)),
            "turns": float(len(environment.turns)),
            "calls": float(len(seen)),
            "valid_calls": float(sum(one.fault is None for one in seen)),
            **{f"reward_part_{name}": value for name, value in environment.parts.items()},
            **{f"stop_{stop.value}": float(self._stop is stop) for stop in StopReason},
        }

    @staticmethod
    def aggregate_metrics(metrics: list[dict[str, Any]]) -> dict[str, float]:
        """Return means over the episodes. Lost episodes are counted by their fault, never averaged."""
        played = [of_episode for of_episode in metrics if not of_episode.get(_FAULT)]
        names = dict.fromkeys(name for of_episode in played for name in of_episode)
        means = {name: fmean(float(one[name]) for one in played if name in one) for name in names if name != _FAULT}
        codes = [str(one[_FAULT_CODE]) for one in metrics if one.get(_FAULT)]
        lost = {f"{_FAULT}_{code}": codes.count(code) / len(metrics) for code in sorted(set(codes))}
        return {**means, _FAULT: len(codes) / max(len(metrics), 1), **lost}

    def _require_turns(self, given: object) -> None:
        """Raise if SkyRL's turn limit is lower than the recipe's. Environments enforce the limit, not SkyRL."""
        if isinstance(given, int) and given < self.max_turns:
            raise BadValueError(
                f"generator.max_turns is {given}, but the recipe allows {self.max_turns} turns for task "
                f"{self._task.id}",
                fix=f"set generator.max_turns to at least {self.max_turns}, or lower episodes.max_turns in the recipe",
            )

    def _note_fault(self, error: InfrastructureError) -> None:
        if self._strict:
            raise error
        _logger.warning("an episode of task %s was lost: %s", self._task.id, error)
        self._fault = error

    def _lost(self, error: InfrastructureError) -> BaseTextEnvStepOutput:
        """End a lost episode, and take back the rewards of its turns, so that their total is 0."""
        taken_back, self._given = -self._given, 0.0
        metadata = {"task_id": self._task.id, _FAULT: error.code, "reason": error.what}
        return _step_output(reward=taken_back, done=True, metadata=metadata)

    def _output(self, result: StepResult) -> BaseTextEnvStepOutput:
        return _step_output(
            observations=self._stage.wording.results(result.observations, result.follow_up),
            reward=result.reward,
            done=result.stop is not None,
            metadata={
                "task_id": self._task.id,
                "stop": None if result.stop is None else result.stop.value,
                "reward_parts": dict(result.parts),
            },
        )


def _step_output(
    *, reward: float, done: bool, metadata: dict[str, Any], observations: Sequence[Any] = ()
) -> BaseTextEnvStepOutput:
    # The action's text stays unchanged, because SkyRL would tokenize a changed text again.
    return cast(
        "BaseTextEnvStepOutput",
        {
            "observations": list(observations),
            "reward": reward + 0.0,  # avoids -0.0
            "done": done,
            "metadata": metadata,
            "postprocessed_action": None,
        },
    )
