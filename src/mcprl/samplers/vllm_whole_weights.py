"""Whole weights in a vLLM server: others in place of the ones it has, while turns are being sampled.

They are those of a folder, or those it was started with and an adapter added to them.

The server stops between two tokens, and its turns stay where they are. It throws away all keys and values, those of the
turns in flight too, loads the new weights, and goes on: it first reads each turn again from its first token, under the
new weights. So the logprob of each token is exactly that of the weights that it is stamped with, given all before it;
what is new about such a turn is only that its tokens are stamped with several versions. The price is reading the turns
in flight once more.
"""

from __future__ import annotations

from pathlib import Path

from mcprl.errors import BadValueError
from mcprl.records import Weights
from mcprl.samplers.model_folder import check_files
from mcprl.samplers.vllm_process import VllmProcess

__all__ = ["check_whole_weights", "put_whole_weights"]

# Requests in flight are kept, and lose their keys and values.
_PAUSE = "/pause?mode=keep&clear_cache=true"


async def check_whole_weights(server: VllmProcess, folder: Path | None, *, started_with: str) -> None:
    """Raise BadValueError where `folder` is not all of the model that the server was started with."""
    if folder is None:
        return
    check_files(folder)
    differences = await _ask_workers(server, "compare_model_folder", folder=folder)
    if differences:
        raise BadValueError(
            f"{folder} holds another model than {started_with}: {'; '.join(differences)}",
            fix="publish weights of the model that model.path names",
        )


async def put_whole_weights(server: VllmProcess, weights: Weights) -> None:
    """Have the server go on with `weights`. Where that fails, some layers may be new and others old: it is ended."""
    try:
        await server.post(_PAUSE, {})
        objections = await _ask_workers(server, "load_model_folder", folder=weights.model, adapter=weights.adapter)
        if objections:
            raise BadValueError(
                f"vLLM cannot sample from {weights.model or weights.adapter}: {'; '.join(objections[:3])}",
                fix="have the learner write all weights, and start anew from the last checkpoint",
            )
        await server.post("/update_weight_version", {"new_version": str(weights.version)})
        await server.post("/resume", {})
    except BaseException:  # also where it is cancelled
        server.kill()
        raise


async def _ask_workers(server: VllmProcess, method: str, **folders: Path | None) -> list[str]:
    """What the workers object to folders, see `mcprl.samplers.vllm_worker`."""
    given = {name: _location(folder) for name, folder in folders.items()}
    answer = await server.post("/collective_rpc", {"method": method, "kwargs": given})
    return sorted({objection for worker in answer["results"] for objection in worker["objections"]})


def _location(folder: Path | None) -> str | None:
    return None if folder is None else str(folder.resolve())
