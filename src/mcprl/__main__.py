"""Runs the command `mcprl` for `python -m mcprl`."""

from mcprl.cli import main

if __name__ == "__main__":
    main()
