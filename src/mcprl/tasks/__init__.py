"""Tasks: files and the order in which they are dealt."""

from mcprl.tasks.files import load_preamble, load_tasks
from mcprl.tasks.order import TaskOrder

__all__ = ["TaskOrder", "load_preamble", "load_tasks"]
