"""Monitoring: what a person sees of a run."""
