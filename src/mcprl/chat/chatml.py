"""A renderer for ChatML models that `renderers` does not know, SmolLM2 among them.

Each message is `<|im_start|>role\\n…<|im_end|>\\n`, a tool's result is a message of role `tool`, a call is written as
`<tool_call>` JSON.
"""

from __future__ import annotations

from collections.abc import Sequence

from renderers.base import Tokenizer

from mcprl.chat.roles import RoleRenderer
from mcprl.errors import BadValueError

__all__ = ["ChatmlRenderer"]

_START, _END = "<|im_start|>", "<|im_end|>"


class ChatmlRenderer(RoleRenderer):
    """Chats as ChatML models write them."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        super().__init__(tokenizer)
        for token in (_START, _END):
            if token not in self._control:
                raise BadValueError(
                    f"model.renderer is chatml, but the tokenizer has no token {token!r}",
                    fix="set model.renderer to the model's family, or to template",
                )

    def frame(self, roles: Sequence[str], *, opening: bool) -> list[str]:
        headers = [f"{_START}{role}\n" for role in roles] + ([f"{_START}assistant\n"] if opening else [""])
        return [headers[0], *(f"{_END}\n{header}" for header in headers[1:])]
