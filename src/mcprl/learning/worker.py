"""A process of a `DistributedLearner`, started as `python -m mcprl.learning.worker`.

It reads its rank and the socket from its environment, and handles requests in order until the connection closes.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable
from typing import TYPE_CHECKING, Any, cast

from mcprl.errors import McprlError
from mcprl.learning.distributed import SOCKET_VARIABLE, Answer, Plan, receive, send
from mcprl.learning.learner import in_torch_thread

if TYPE_CHECKING:
    from mcprl.learning.torch_learner import TorchLearner


__all__: list[str] = []


def _make_learner(plan: Plan) -> TorchLearner:
    from mcprl.learning.sharding import make_team
    from mcprl.learning.torch_learner import TorchLearner

    grammars = None
    if plan.constrained:
        from mcprl.grammar.masks import load_grammars

        grammars = load_grammars(plan.config.model.path)
    return TorchLearner(
        plan.config, folder=plan.folder, grammars=grammars, processes=make_team(plan.config, plan.rendezvous)
    )


async def _attempt(work: Awaitable[Any], *, first: bool) -> Answer:
    """Return the result or the McprlError of `work`. Any other exception ends the process, which logs it."""
    try:
        result = await work
    except McprlError as error:
        return Answer(error=error)
    return Answer(result=result if first else None)


async def _serve(rank: int) -> None:
    reader, writer = await asyncio.open_unix_connection(os.environ[SOCKET_VARIABLE])
    await send(writer, rank)
    plan = cast("Plan", await receive(reader))
    learner: TorchLearner | None = None

    async def load() -> None:
        nonlocal learner
        learner = await in_torch_thread(_make_learner, plan)

    await send(writer, answer := await _attempt(load(), first=rank == 0))
    while answer.error is None:
        try:
            method, *arguments = cast("tuple[str, Any]", await receive(reader))
        except asyncio.IncompleteReadError:
            break
        await send(writer, answer := await _attempt(getattr(learner, method)(*arguments), first=rank == 0))
    writer.close()


if __name__ == "__main__":
    asyncio.run(_serve(int(os.environ["RANK"])))
