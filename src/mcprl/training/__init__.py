"""Training: a run, its loop, the pipeline of collected steps, and how a run stops. Import the modules, not this."""
