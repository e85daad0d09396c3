"""The grammar of an episode's turns: made from the tools on offer, and asked afterwards what it left to choose."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from mcprl.chat.constraints import make_grammar
from mcprl.chat.rendering import Chat
from mcprl.config import SamplingConfig

if TYPE_CHECKING:
    from mcprl.chat.grammars import Grammars

__all__ = ["TurnGrammars"]


class TurnGrammars:
    """The grammars of a run: one for each set of tools that a task offers, made once. Safe to use from threads."""

    def __init__(self, chat: Chat, grammars: Grammars, sampling: SamplingConfig) -> None:
        if sampling.constrain == "off":
            raise ValueError("sampling.constrain is off: there is no grammar to make")
        self._chat = chat
        self._grammars = grammars
        self._mode: Literal["calls", "act"] = sampling.constrain
        self._loose_tools = sampling.loose_tools
        self._stop = sampling.stop
        self._made: dict[str, str] = {}
        self._making = threading.Lock()

    def grammar_of(self, tools: Sequence[Mapping[str, Any]]) -> str:
        """The structural tag of a turn with these tools on offer. Raises where they cannot be held to it."""
        # Not sorted: the order of a schema's properties is the order in which the grammar wants them.
        key = json.dumps(tools)
        with self._making:
            if key not in self._made:
                grammar = make_grammar(self._chat, tools, self._mode, loose_tools=self._loose_tools, stop=self._stop)
                self._grammars.check(grammar)
                self._made[key] = grammar
            return self._made[key]

    def choices(self, grammar: str, sampled_ids: Sequence[int]) -> tuple[tuple[bool, ...], tuple[bool, ...]]:
        """Which tokens of a sampled turn were forced, and which only spelt a text that was fixed."""
        replay = self._grammars.replay(grammar, self._chat.stop_token_ids, sampled_ids)
        return replay.forced, replay.fixed
