"""Commands to go on with, to be copied into a shell."""

from __future__ import annotations

import shlex
from pathlib import Path

__all__ = ["try_command"]


def try_command(recipe: Path, folder: Path, *, engine: str, whole_model: bool) -> str:
    """How to try what the run in a folder left: an adapter, or a whole model where all weights were trained.

    >>> try_command(Path("a.yaml"), Path("outputs/a"), engine="torch", whole_model=False)
    'mcprl try a.yaml --adapter outputs/a/adapter'
    """
    if whole_model:
        option = ["--set", f"model.path={folder.absolute() / 'model'}"]
    else:
        option = ["--adapter", str(folder / "adapter")]
    if engine == "skyrl":  # whose server samples only from what it saved itself
        option += ["--set", "engine=torch"]
    return shlex.join(["mcprl", "try", str(recipe), *option])
