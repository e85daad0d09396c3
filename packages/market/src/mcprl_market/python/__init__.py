"""The Python server: runs code that a policy wrote, and keeps what it stores, each episode for itself.

`server` offers the tools; `sandbox` runs a program in a process that is used once, confined by bubblewrap, a filter of
system calls and limits; `monty` runs what it can of it in a small interpreter of its own. `docs/sandbox.md` says what
this protects against, and what not.
"""
