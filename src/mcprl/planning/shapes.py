"""The shape of an episode: how many turns, tokens and calls it has, and how long its tools take."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from statistics import fmean

from mcprl.config import RunConfig
from mcprl.records import Message, Task

__all__ = ["SHAPE_FIELDS", "EpisodeShape", "assumed_shape"]

CHARACTERS_PER_TOKEN = 4
TOOL_S = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeShape:
    """A typical episode. Figures are means, so they need not be whole.

    EpisodeShape(turns=3, prompt_tokens=400, turn_tokens=40, observation_tokens=60, calls=2, tool_s=0.5)
    """

    turns: float
    prompt_tokens: float
    turn_tokens: float
    observation_tokens: float
    calls: float
    tool_s: float

    @property
    def sampled_tokens(self) -> float:
        return self.turns * self.turn_tokens

    @property
    def length_tokens(self) -> float:
        """The finished conversation: the prompt, the turns, and what stands between two turns."""
        return self.prompt_tokens + self.sampled_tokens + (self.turns - 1) * self.observation_tokens

    @property
    def read_tokens(self) -> float:
        """The prompts of all turns together: each is the conversation so far."""
        grown = (self.turn_tokens + self.observation_tokens) * self.turns * (self.turns - 1) / 2
        return self.turns * self.prompt_tokens + grown


SHAPE_FIELDS = tuple(field.name for field in fields(EpisodeShape))


def assumed_shape(
    config: RunConfig, tasks: Sequence[Task], preamble: Sequence[Message], known: Mapping[str, float]
) -> tuple[EpisodeShape, dict[str, str]]:
    """The shape that a recipe alone allows to state, and why each figure is what it is, where `known` has none.

    `known` may hold fields of the shape, and `length_tokens` of the finished conversation. Limits stand for what is not
    known, so turns and tokens are upper bounds.
    """
    limits = [config.episodes.turn_limit(task) for task in tasks]
    turns = known.get("turns", fmean(limits))
    written = sum(map(_characters, preamble)) + fmean(sum(map(_characters, task.prompt)) for task in tasks)
    length = known.get("length_tokens", config.model.context_tokens)
    prompt = known.get("prompt_tokens", min(length / 2, written / CHARACTERS_PER_TOKEN))
    turn = known.get("turn_tokens", min(config.sampling.max_tokens, max(1.0, (length - prompt) / turns)))
    rest = max(0.0, length - prompt - turns * turn)
    shape = EpisodeShape(
        turns=turns,
        prompt_tokens=prompt,
        turn_tokens=turn,
        observation_tokens=rest / (turns - 1) if turns > 1 else 0.0,
        calls=max(0.0, turns - 1),
        tool_s=TOOL_S,
    )
    reasons = {
        "turns": "every episode takes all turns that episodes.max_turns or its task allows",
        "prompt_tokens": f"preamble and task at {CHARACTERS_PER_TOKEN} characters a token, without the tools' schemas",
        "turn_tokens": "every turn is as long as sampling.max_tokens, or model.context_tokens, allows",
        "observation_tokens": "what is left of "
        + ("the conversation" if "length_tokens" in known else "model.context_tokens, which the conversation fills"),
        "calls": "every turn but the last makes one call",
        "tool_s": "nothing is known of the tools",
    }
    shape = replace(shape, **{name: value for name, value in known.items() if name in SHAPE_FIELDS})
    return shape, {name: why for name, why in reasons.items() if name not in known}


def _characters(message: Message) -> int:
    return len(message.get("content", ""))
