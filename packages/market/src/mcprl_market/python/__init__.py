"""The Python server: runs code that a policy wrote, and stores results per episode.

`server` offers the tools. `sandbox` runs each program in a new process, confined by bubblewrap, a seccomp filter and
limits; `monty` runs it in a small interpreter. `docs/sandbox.md` says what this protects against, and what not.
"""
