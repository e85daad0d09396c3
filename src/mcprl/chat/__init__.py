"""Renders chats as tokens and parses tool calls from sampled tokens."""

from mcprl.chat.loading import load_chat
from mcprl.chat.parsing import ParsedTurn, Thinking
from mcprl.chat.rendering import Chat

__all__ = ["Chat", "ParsedTurn", "Thinking", "load_chat"]
