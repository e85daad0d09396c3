"""BFCL's multi-turn tasks as an MCP server: the wheel's own simulators and documents, and none of its `eval`.

`wheel` reads what the wheel carries, `documents` makes tools of its function documents, `simulators` is the world of
one task, `server` serves it.
"""
