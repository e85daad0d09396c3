"""The doctor: everything that can be known of a recipe before a step is spent, found by name and with its fix."""

from mcprl.checks.doctor.examination import Check, Examination, Finding, Opened, examine, passed

__all__ = ["Check", "Examination", "Finding", "Opened", "examine", "passed"]
