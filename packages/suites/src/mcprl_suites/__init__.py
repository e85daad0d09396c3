"""Public benchmarks as suites for `mcprl eval`."""
