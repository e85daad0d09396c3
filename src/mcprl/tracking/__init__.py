"""Trackers for W&B, Weave and TensorBoard. Each runs in a separate process."""
