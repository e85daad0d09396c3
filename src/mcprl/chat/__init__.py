"""Chats as tokens: rendering, parsing of tool calls."""

from mcprl.chat.rendering import Chat, ParsedTurn, load_chat

__all__ = ["Chat", "ParsedTurn", "load_chat"]
