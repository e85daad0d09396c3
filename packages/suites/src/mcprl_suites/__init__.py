"""Public benchmarks as suites of `mcprl eval`."""
