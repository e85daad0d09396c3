"""W&B, Weave, TensorBoard and OpenTelemetry, each in a process of its own."""
