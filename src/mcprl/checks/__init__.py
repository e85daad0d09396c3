"""Whether all is well: before a run (doctor), during it (health), and between sampler and learner (parity)."""
