"""`python -m mcprl` is `mcprl`."""

from mcprl.cli import main

if __name__ == "__main__":
    main()
