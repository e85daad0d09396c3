"""The Python server: runs code that the policy writes, and stores results per episode.

`server` offers the tools. `sandbox` runs each program in a new process, confined by bubblewrap, a seccomp filter and
limits. `docs/market.md` says what this does and does not protect against.
"""
