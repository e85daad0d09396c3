"""Evaluation. Episodes are run by `harness`, judged by `outcomes`, analyzed by `statistics`, compared by `results`."""
