"""Checks before a run (doctor), checks during a run (health), and a comparison of sampler and learner (parity)."""
