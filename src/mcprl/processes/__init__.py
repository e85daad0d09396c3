"""Child processes that never outlive us, nor do their own children, however we end.

Used for what mcprl itself starts: tool servers, and vLLM, whose engine is a process behind its server.

Three things end them. The kernel kills a child when we die. Each child leads a process group of its own, and carries
two marks in its environment, which its descendants inherit even where they leave the group: one of our process, one of
the child. And one guard for our whole process, a shell that waits for the end of a pipe whose other end only we hold,
then kills every group and every process with our mark.

What escapes: a descendant that leaves the group and also drops its environment. And outside Linux, where there is no
/proc, the marks cannot be read: only the groups are ended.
"""

from mcprl.processes.child import ChildProcess, free_port, private_folder, search_path
from mcprl.processes.guard import CHILD_MARK, OWNER_MARK

__all__ = ["CHILD_MARK", "OWNER_MARK", "ChildProcess", "free_port", "private_folder", "search_path"]
