"""One task over three servers at once (quote, python, slack), played by a scripted policy in several episodes."""
# R14, R16, R19

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from served_specs import served_spec
from transformers import AutoTokenizer

from mcprl.chat import load_chat
from mcprl.config import RunConfig
from mcprl.episodes import EpisodeRunner
from mcprl.goals import Contains, ExpectedCall, ExpectedState, Goal, HasNumber
from mcprl.recipe import load_recipe
from mcprl.records import StopReason, Task, ToolCall, Trajectory
from mcprl.samplers.sampler import ScriptedSampler
from mcprl.tools import Toolbox
from mcprl_market.world import open_market

pytestmark = pytest.mark.process

SYMBOL = "CLNR"
PRICE = open_market(7).quote(SYMBOL).price
SHARES = 120
VALUE = round(SHARES * PRICE, 2)
IS_VALUE = HasNumber(value=VALUE, tolerance=0.005)
TASK = Task(
    id="value",
    prompt=({"role": "user", "content": f"Post what {SHARES} shares of {SYMBOL} are worth to #portfolio."},),
    goal=Goal(
        answer=IS_VALUE,
        calls=tuple(ExpectedCall(tool=tool) for tool in ("fmp_get_quote", "execute_python", "send_slack_message")),
        state=(
            ExpectedState(
                tool="get_slack_channel_history",
                arguments={"channel_id": "portfolio", "limit": 1},
                texts=(Contains(text=SYMBOL), IS_VALUE),
            ),
        ),
    ),
    tools=("fmp_get_quote", "execute_python", "send_slack_message"),
    world="market-7",
)


def written(name: str, **arguments) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


def turns(*, channel: str = "portfolio", value: float = VALUE) -> list[str]:
    return [
        written("fmp_get_quote", symbol=SYMBOL),
        written("execute_python", code=f"print({SHARES} * {PRICE})"),
        written("send_slack_message", channel=channel, message=f"{SYMBOL}: ${value:,.2f}"),
        f"They are worth ${VALUE:,.2f}.<|im_end|>",
    ]


@pytest.fixture
def config(smollm2: Path) -> RunConfig:
    recipe = Path(__file__).parents[3] / "recipes" / "finance-cpu.yaml"
    return load_recipe(recipe, [f"model.path={smollm2}", "sampling.constrain=off"])


def specs():
    """Two of the servers over their standard streams, one over HTTP."""
    transports = {"fmp": "http", "python": "stdio", "slack": "stdio"}
    return [served_spec(name, transport, "--world", "7", env={}) for name, transport in transports.items()]


async def play(config: RunConfig, toolbox: Toolbox, said: list[str], member: int) -> Trajectory:
    tokenizer = AutoTokenizer.from_pretrained(config.model.path)
    script = iter(said)
    sampler = ScriptedSampler(lambda _: tuple(tokenizer.encode(next(script), add_special_tokens=False)))
    chat = load_chat(config.model.path, "chatml")
    runner = EpisodeRunner(config, chat=chat, sampler=sampler, leases=toolbox, preamble=())
    return await runner.run(TASK, step=0, member=member, attempt=0)


async def test_episodes_over_three_servers_are_scored_by_what_each_left_behind(config, bubblewrap, tmp_path):
    scripts = [turns(), turns(channel="random"), turns(value=VALUE + 1.0), turns()]
    async with Toolbox(specs(), log_dir=tmp_path) as toolbox:
        played = await asyncio.gather(*(play(config, toolbox, said, member) for member, said in enumerate(scripts)))
        async with toolbox.lease(["get_slack_channel_history"]) as afterwards:
            look = ToolCall(name="get_slack_channel_history", arguments={"channel_id": "portfolio"})
            left = (await afterwards.call(look)).text
    assert [t.stop for t in played] == [StopReason.ANSWERED] * 4
    assert [t.reward_parts["state"] for t in played] == [1.0, 0.0, 0.0, 1.0]
    assert [t.reward for t in played][::3] == [1.0, 1.0]
    assert max(t.reward for t in played[1:3]) < 1.0
    servers = [seen.server for turn in played[0].turns for seen in turn.observations]
    assert servers == ["fmp", "python", "slack"]
    assert f"{VALUE:,.2f}" not in left
