"""Evaluation: `harness` runs episodes, `outcomes` judges, `statistics` and `results` analyze, `report` writes."""
