"""Child processes that end, with all their descendants, when this process ends for any reason.

mcprl starts every process this way: tool servers, and vLLM, whose engine is a separate process behind its server.

Three mechanisms end them:

- The kernel kills a child when our process dies.
- Each child leads a process group, which is killed as a whole. Descendants that leave the group still inherit two
  marks, one of our process and one of the child, in the environment. In case they clear the environment, the marks are
  also in a resource limit (`guard.limit_of`).
- A guard, a shell, waits until our process closes a pipe by ending, then kills every group and every process with our
  mark.

A descendant escapes if it leaves the group, clears its environment and changes that limit. Outside Linux there is no
/proc to read the marks from, so only the groups are ended.
"""

from mcprl.processes.child import ChildProcess, free_port, private_folder, require_linux, search_path
from mcprl.processes.guard import CHILD_MARK, OWNER_MARK

__all__ = ["CHILD_MARK", "OWNER_MARK", "ChildProcess", "free_port", "private_folder", "require_linux", "search_path"]
