"""Chats as tokens: rendering, parsing of tool calls."""

from mcprl.chat.loading import load_chat
from mcprl.chat.reading import ParsedTurn
from mcprl.chat.rendering import Chat
from mcprl.chat.thinking import Thinking

__all__ = ["Chat", "ParsedTurn", "Thinking", "load_chat"]
