"""Grammars of tool calls: from a JSON Schema to the tokens that may come next."""
