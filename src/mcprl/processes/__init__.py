"""Child processes that are ended, with all their descendants, when this process ends for any reason.

mcprl starts all processes this way: the tool servers, and vLLM, which runs its engine in a separate process.

Three mechanisms end them:

- The kernel kills a child when our process dies.
- Each child leads a process group, which is killed as a whole. Descendants that leave the group still inherit two
  marks in the environment: one identifies our process, the other the child. In case a descendant clears its
  environment, the marks are also in a resource limit (`guard.limit_of`).
- A guard, which is a shell, waits on a pipe that closes when our process ends. It then kills every group and every
  process with our mark.

A descendant escapes if it leaves the group, clears its environment and changes that limit. Outside Linux there is no
/proc to read the marks from, so only the groups are ended.
"""

from mcprl.processes.child import ChildProcess, free_port, private_folder, require_linux, search_path
from mcprl.processes.guard import CHILD_MARK, OWNER_MARK

__all__ = ["CHILD_MARK", "OWNER_MARK", "ChildProcess", "free_port", "private_folder", "require_linux", "search_path"]
