"""The doctor: finds problems in a recipe before training starts, and suggests fixes."""

from mcprl.checks.doctor.examination import Check, Examination, Finding, Opened, examine, passed

__all__ = ["Check", "Examination", "Finding", "Opened", "examine", "passed"]
