"""Code for all programs that run in bubblewrap: finding `bwrap`, namespaces, and the fix if the kernel refuses."""

from __future__ import annotations

import shutil

from mcprl.errors import SandboxMissingError

NAMESPACES = ("--unshare-ipc", "--unshare-pid", "--unshare-uts", "--unshare-cgroup-try", "--hostname", "sandbox")
NO_NETWORK = "--unshare-net"
ALLOW_NAMESPACES = (
    "allow bubblewrap to create namespaces (kernel.unprivileged_userns_clone=1, "
    "kernel.apparmor_restrict_unprivileged_userns=0; in Docker --security-opt seccomp=unconfined "
    "--security-opt apparmor=unconfined --security-opt systempaths=unconfined)"
)


def find_bubblewrap(sandbox: str, otherwise: str) -> str:
    """Return the path of `bwrap`, or raise SandboxMissingError. `otherwise` is the alternative to installing it."""
    path = shutil.which("bwrap")
    if path is None:
        raise SandboxMissingError(
            f"bubblewrap is not installed (no bwrap on PATH), but {sandbox} needs it",
            fix=f"apt-get install bubblewrap, or {otherwise}",
        )
    return path
