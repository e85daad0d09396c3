"""Child processes that end, with all their descendants, when this process ends, in whatever way it ends.

mcprl starts every process this way: tool servers, and vLLM, whose engine is a separate process behind its server.

Three mechanisms end the children:

1. The kernel kills a child when our process dies.
2. Each child leads its own process group. Its environment has two marks, one for our process and one for the child,
   which its descendants inherit even if they leave the group.
3. One guard per process: a shell that waits until a pipe, which only our process holds open, is closed. Then it kills
   every group and every process with our mark.

A descendant escapes if it leaves the group and also clears its environment. Outside Linux there is no /proc to read the
marks from, so only the groups are ended.
"""

from mcprl.processes.child import ChildProcess, free_port, private_folder, require_linux, search_path
from mcprl.processes.guard import CHILD_MARK, OWNER_MARK

__all__ = ["CHILD_MARK", "OWNER_MARK", "ChildProcess", "free_port", "private_folder", "require_linux", "search_path"]
