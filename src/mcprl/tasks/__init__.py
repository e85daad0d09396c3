"""Tasks: their files, the order in which steps use them, and checks that find problems before a run starts."""

from mcprl.tasks.files import TaskFile, load_preamble, load_tasks, read_task_file, write_tasks
from mcprl.tasks.order import Curriculum, Deal, Dealer, TaskOrder, make_order

__all__ = [
    "Curriculum",
    "Deal",
    "Dealer",
    "TaskFile",
    "TaskOrder",
    "load_preamble",
    "load_tasks",
    "make_order",
    "read_task_file",
    "write_tasks",
]
