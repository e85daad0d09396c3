"""Grammars for tool calls. They turn the JSON Schemas of tools into masks of the tokens that may come next."""
