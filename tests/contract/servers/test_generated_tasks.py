"""The shipped tasks, played against the shipped servers: solutions are worth exactly 1, anything wrong is worth less.

All of it runs in this process; a sample runs over real server processes as well.
"""

# R14, R19

from __future__ import annotations

import asyncio
import json
import re
import sys
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import pytest
from wrong_variants import Variant, wrong_variants

import mcprl_market
from mcprl.chat import load_chat
from mcprl.concurrency import run_all
from mcprl.config import EpisodesConfig, RewardsConfig, ServerSettings
from mcprl.episodes.demonstrations import Trial, play, play_gold
from mcprl.episodes.environment import Environment
from mcprl.episodes.loop import lease_for
from mcprl.episodes.rewards import numbers_in
from mcprl.goals import HasAll, HasNumber
from mcprl.records import Task
from mcprl.servers import make_server
from mcprl.tasks import load_preamble, load_tasks
from mcprl.tools import ServerSpec, Toolbox
from mcprl.tools.specs import load_server_specs
from mcprl_market.generation import generate
from mcprl_market.world import open_market

pytestmark = pytest.mark.process

WORLD = 7
SHIPPED = Path(mcprl_market.__file__).parent / "data"
REWARDS = RewardsConfig()
AT_ONCE = 16
FEWEST_VARIANTS = 10


def family_of(task: Task) -> str:
    return task.id.split("-", 1)[1].rsplit("-", 1)[0]


@asynccontextmanager
async def servers_in_this_process(log_dir: Path, *, world: int = WORLD, cache_s: float = 0.0) -> AsyncIterator[Toolbox]:
    stateless = ServerSettings(cache_s=cache_s)
    specs = [
        ServerSpec(name=name, make=partial(make_server, name, world=world), settings=stateless)
        for name in ("fmp", "polygon", "tavily")
    ]
    specs.append(ServerSpec(name="slack", make=partial(make_server, "slack", world=world)))
    # Small programs in the quick interpreter, those that need pandas in the sandbox.
    specs.append(ServerSpec(name="python", make=partial(make_server, "python", world=world)))
    async with Toolbox(specs, log_dir=log_dir) as toolbox:
        yield toolbox


@pytest.fixture(scope="module")
def tasks() -> tuple[Task, ...]:
    return load_tasks(SHIPPED / "train.jsonl") + load_tasks(SHIPPED / "validation.jsonl")


@pytest.fixture(scope="module")
def gold(tasks, tmp_path_factory) -> tuple[Trial, ...]:
    """The solution of every shipped task, played once for all tests here."""

    async def play_all() -> tuple[Trial, ...]:
        async with servers_in_this_process(tmp_path_factory.mktemp("logs")) as toolbox:
            return await play_gold(tasks, toolbox, REWARDS)

    return asyncio.run(play_all())


def test_the_shipped_files_are_what_the_generator_makes(tasks):
    train, validation = generate(WORLD)
    assert load_tasks(SHIPPED / "train.jsonl") == train
    assert load_tasks(SHIPPED / "validation.jsonl") == validation


def test_the_solution_of_every_task_is_worth_exactly_one(tasks, gold):
    assert len(gold) == len(tasks) >= 500
    assert [(trial.task_id, trial.reward, trial.parts) for trial in gold if trial.reward != 1.0] == []
    assert [(trial.task_id, trial.faults) for trial in gold if trial.faults] == []


def test_what_a_solution_answers_stands_in_what_its_tools_said(tasks, gold):
    """The truth of a task is computed from the world; here it is held against what the policy can read."""
    unread: list[str] = []
    for task, trial in zip(tasks, gold, strict=True):
        seen = "\n".join(observation.text for turn in trial.turns for observation in turn.observations)
        match task.goal.answer:
            case HasNumber(value=value, tolerance=tolerance):
                found = any(abs(float(number) - value) <= tolerance for number in numbers_in(seen))
            case HasAll(members=members):
                found = all(member in seen for member in members)
            case _:
                found = False
        if not found:
            unread.append(task.id)
    assert unread == []


async def test_solutions_are_worth_one_in_another_world_too(tmp_path):
    train, validation = generate(8, train=120, validation=60, seed=3)
    async with servers_in_this_process(tmp_path, world=8) as toolbox:
        trials = await play_gold((*train, *validation), toolbox, REWARDS)
    assert [(trial.task_id, trial.reward, trial.faults) for trial in trials if trial.reward != 1.0] == []


async def test_an_empty_answer_without_calls_is_worth_nothing(tasks, tmp_path):
    async with servers_in_this_process(tmp_path) as toolbox:
        trials = await run_all(play(task, toolbox, (), "", REWARDS) for task in tasks)
    assert [(trial.task_id, trial.parts) for trial in trials if trial.reward != 0.0] == []


def some_variants(place: int, task: Task, tasks: Sequence[Task], symbols: Sequence[str]) -> list[Variant]:
    """All variants for the first task of a family, ten for each other one: other ten from task to task."""
    others = (*tasks[place + 1 :], *tasks[:place])
    other = next(other for other in others if family_of(other) != family_of(task))
    variants = wrong_variants(task, other, symbols)
    if not any(family_of(earlier) == family_of(task) for earlier in tasks[:place]):
        return variants
    start = 3 * place % len(variants)
    return (variants[start:] + variants[:start])[:FEWEST_VARIANTS]


@pytest.mark.parametrize("every", [pytest.param(1, marks=pytest.mark.full), 10])
async def test_every_wrong_variant_of_every_task_is_worth_less_than_its_solution(
    tasks, every, tmp_path, record_property
):
    """Of all tasks before a release, and of each tenth task and the first of each family in the gate."""
    symbols = [company.symbol for company in open_market(WORLD).companies]
    places = asyncio.Semaphore(AT_ONCE)
    as_good: list[tuple[str, str, float]] = []
    played: Counter[str] = Counter()
    firsts = {family_of(task): task.id for task in reversed(tasks)}
    tried = [(n, task) for n, task in enumerate(tasks) if n % every == 0 or task.id in firsts.values()]

    async def play_variants(place: int, task: Task) -> None:
        for variant in some_variants(place, task, tasks, symbols):
            async with places:
                trial = await play(task, toolbox, variant.calls, variant.answer, REWARDS)
            played[task.id] += 1
            if not trial.reward < 1.0:
                as_good.append((task.id, variant.flaw, trial.reward))

    async with servers_in_this_process(tmp_path, cache_s=3600) as toolbox:
        await run_all(play_variants(place, task) for place, task in tried)
    record_property("variants_played", played.total())
    assert as_good == []
    assert len(played) == len(tried) >= len(tasks) / every
    assert min(played.values()) >= FEWEST_VARIANTS


async def test_prompts_with_their_tools_are_short_enough_for_a_small_model(tasks, smollm2, tmp_path, record_property):
    chat = load_chat(str(smollm2), "chatml")
    preamble = load_preamble(SHIPPED / "preamble.json")
    lengths: list[int] = []
    async with servers_in_this_process(tmp_path) as toolbox:
        for task in tasks:
            async with lease_for(task, toolbox, lives_s=60.0) as access:
                environment = Environment(task, access, preamble=preamble, max_turns=1, rewards=REWARDS)
                lengths.append(len(chat.open(environment.messages, environment.tool_specs)))
    p95 = sorted(lengths)[int(0.95 * len(lengths))]
    record_property("prompt_tokens_p95", p95)
    assert p95 < 1500


def test_the_preamble_shows_a_call_and_an_answer_about_nothing_in_the_world():
    preamble = load_preamble(SHIPPED / "preamble.json")
    assert [message["role"] for message in preamble] == ["system", "user", "assistant", "tool", "assistant"]
    words = set(re.findall(r"\w+", json.dumps(preamble)))
    assert words.isdisjoint(company.symbol for company in open_market(WORLD).companies)


async def test_a_solution_of_each_family_is_worth_one_over_real_server_processes(tasks, tmp_path):
    """The shipped servers file, as a user starts it; only the command is that of this environment."""
    shipped = json.loads((SHIPPED / "servers.json").read_text())
    for entry in shipped["mcpServers"].values():
        assert entry["command"] == "mcprl"
        entry["command"], entry["args"] = sys.executable, ["-m", "mcprl", *entry["args"]]
    servers = tmp_path / "servers.json"
    servers.write_text(json.dumps(shipped))
    sample = tuple({family_of(task): task for task in tasks}.values())
    async with Toolbox(load_server_specs(servers, {}), log_dir=tmp_path) as toolbox:
        trials = await play_gold(sample, toolbox, REWARDS, episodes=EpisodesConfig(max_concurrent=4))
        versions = {version for version, _ in toolbox.definitions.values()}
    assert [(trial.task_id, trial.reward, trial.faults) for trial in trials if trial.reward != 1.0] == []
    assert versions == {f"1+market-{WORLD}"}
