"""Training: the run, its loop, the pipeline that collects steps, and shutdown. Import names from its modules."""
