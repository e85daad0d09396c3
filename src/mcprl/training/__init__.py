"""Training: the run, its loop, the pipeline that collects steps, and shutdown. Import the modules, not this package."""
