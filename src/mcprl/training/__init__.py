"""Training: a run put together, its loop, the folder it leaves behind, and how it goes on after it ended too soon.

Nothing is imported here: to look at a run's folder one needs neither torch nor a model.
"""
