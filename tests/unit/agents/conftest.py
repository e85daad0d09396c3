"""Episodes that an agent plays with scripted or real turns."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

sys.path.append(str(Path(__file__).parents[1] / "episodes"))

from staged_episodes import FunctionTools, RecordingSampler, make_config

from mcprl.config import AgentConfig
from mcprl_agents.runner import open_agents


@pytest.fixture
def agent_stage(chat, encode, tmp_path) -> Callable[..., Any]:
    """An episode's stage whose agent is this program: (runner, sampler), open while its context is."""

    @asynccontextmanager
    async def make(
        command: Sequence[str], *texts: Any, tools: FunctionTools | None = None, sampler: Any = None, **settings: Any
    ):
        config = make_config(agent=AgentConfig(command=tuple(command)), **settings)
        sampler = sampler or RecordingSampler(encode, texts)
        leases = tools or FunctionTools(echo=lambda text: text)
        async with open_agents((), tmp_path) as make_runner:
            yield make_runner(config, chat=chat, sampler=sampler, leases=leases, preamble=()), sampler

    return make
