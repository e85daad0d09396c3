"""Runs that no model made, for measuring and trying the dashboard."""
