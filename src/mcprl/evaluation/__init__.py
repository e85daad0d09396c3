"""Evaluation: `harness` plays, `outcomes` judges, `statistics` and `results` count and compare, `report` writes."""
