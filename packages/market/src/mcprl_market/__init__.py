"""An offline stock market: a world, five MCP servers over it, a Python sandbox, and generated tasks."""
