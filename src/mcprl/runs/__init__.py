"""What a run leaves on disk: its folder, journal, checkpoints and trajectories. Without torch."""
