"""The doctor: finds what is wrong with a recipe before a step is spent, and says how to fix it."""

from mcprl.checks.doctor.examination import Check, Examination, Finding, Opened, examine, passed

__all__ = ["Check", "Examination", "Finding", "Opened", "examine", "passed"]
