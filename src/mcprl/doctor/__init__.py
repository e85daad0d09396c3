"""The doctor: everything that can be known of a recipe before a step is spent, found by name and with its fix."""

from mcprl.doctor.examination import Check, Examination, Opened, examine, passed
from mcprl.doctor.findings import Finding

__all__ = ["Check", "Examination", "Finding", "Opened", "examine", "passed"]
