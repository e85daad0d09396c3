"""Trackers for W&B, Weave, TensorBoard and OpenTelemetry. Each runs in a separate process."""
