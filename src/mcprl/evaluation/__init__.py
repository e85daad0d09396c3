"""Evaluation of policies: running episodes, judging their outcomes, statistics, and reports."""
