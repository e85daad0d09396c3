"""Chats as tokens: rendering, parsing of tool calls."""

from mcprl.chat.loading import load_chat
from mcprl.chat.parsing import ParsedTurn, Thinking
from mcprl.chat.rendering import Chat

__all__ = ["Chat", "ParsedTurn", "Thinking", "load_chat"]
