"""Child processes that end, with all their descendants, when this process ends, in whatever way it ends.

mcprl starts every process this way: tool servers, and vLLM, whose engine is a separate process behind its server.

Three mechanisms end them. The kernel kills a child when we die. Each child leads its own process group, and has two
marks, of our process and of the child, which its descendants inherit even if they leave the group: in the environment,
and in a resource limit, for descendants that clear the environment (`guard.limit_of`). And one guard for our whole
process, a shell that waits for the end of a pipe that only we hold open, then kills every group and every process with
our mark.

A descendant escapes if it leaves the group, clears its environment and changes that limit. Outside Linux there is no
/proc to read the marks from, so only the groups are ended.
"""

from mcprl.processes.child import ChildProcess, free_port, private_folder, require_linux, search_path
from mcprl.processes.guard import CHILD_MARK, OWNER_MARK

__all__ = ["CHILD_MARK", "OWNER_MARK", "ChildProcess", "free_port", "private_folder", "require_linux", "search_path"]
