"""W&B, Weave, TensorBoard and OpenTelemetry, each in a separate process."""
