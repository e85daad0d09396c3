"""Checks before a run (doctor), checks during a run (health), and sampler against learner (parity)."""
