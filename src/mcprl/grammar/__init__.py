"""Grammars of tool calls. They convert the JSON Schemas of tools to masks of the tokens that may come next."""
