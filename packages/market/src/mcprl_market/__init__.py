"""An offline stock market: a seeded world, five MCP servers that serve it, a Python sandbox, and generated tasks."""
