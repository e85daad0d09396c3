"""Evaluation: any model or adapter on any tasks, with honest intervals, compared and reported.

`suites` says what is played and what counts as solved, `harness` plays it, `outcomes` reduces each episode to what is
counted, `statistics` and `results` count, `comparing` holds two evaluations against each other, `report` writes.
"""
