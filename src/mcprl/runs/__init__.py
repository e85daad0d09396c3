"""The files of a run: its folder, journal, checkpoints and trajectories. Works without torch."""
