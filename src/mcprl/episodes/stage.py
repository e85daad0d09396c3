"""Opens everything that the episodes of a run need: tool servers, chat, grammars, judge and sampler.

Training, evaluation, the doctor and `mcprl try` open a stage. A stage consists of a kit and a sampler. With workers,
each worker opens its own kit from the same configuration.
"""

from __future__ import annotations

import asyncio
import importlib.util
import time
from collections.abc import AsyncGenerator, Callable, Generator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from importlib.metadata import entry_points
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Protocol, cast

from mcprl.chat import Chat, load_chat
from mcprl.config import RunConfig
from mcprl.episodes.collector import Collector, Journal, RunsEpisodes
from mcprl.episodes.demonstrations import Demonstrator
from mcprl.episodes.endpoint import EndpointSettings, EndpointUse, SettingNames, authorization
from mcprl.episodes.endpoint_runner import EndpointRunner, make_client
from mcprl.episodes.environment import require_grammar, require_tools, require_users, require_worlds
from mcprl.episodes.judge import Judge
from mcprl.episodes.loop import EpisodeRunner
from mcprl.episodes.reward_functions import RewardFunctions, code_of, open_functions
from mcprl.episodes.rewards import require_scorable
from mcprl.errors import BadValueError, MissingExtraError
from mcprl.functions import Code
from mcprl.placement import gpu_memories, place
from mcprl.progress import Watcher
from mcprl.records import Task, Weights
from mcprl.samplers import Completion, Sampler, SampleRequest
from mcprl.samplers.model_folder import check_adapter
from mcprl.samplers.sampler import ScriptedSampler
from mcprl.tasks import load_preamble
from mcprl.tools import Catalog, Toolbox, open_toolbox
from mcprl.tools.keys import load_keys
from mcprl.tools.limits import SharedLimits
from mcprl.tools.stats import StatsDocument

if TYPE_CHECKING:
    from mcprl.grammar.masks import Grammars, TurnGrammars
    from mcprl.samplers.vllm import Send, VllmSampler
    from mcprl.skyrl.engine import SkyrlEngine

_VLLM: Final = SettingNames("vLLM", "placement.sampler.urls", "model.path", "placement.sampler.key_env")


@dataclass(frozen=True, slots=True, kw_only=True)
class PlayerKit:
    """Everything that the episodes of a process share, except the sampler.

    `runner` creates an episode runner for a sampler. `grammars` is None without constraints. `demonstrator` is None if
    nothing is imitated.
    """

    chat: Chat
    grammars: Grammars | None
    functions: RewardFunctions | None
    runner: Callable[[Sampler], EpisodeRunner]
    demonstrator: Demonstrator | None


@asynccontextmanager
async def open_kit(
    config: RunConfig,
    toolbox: Toolbox,
    *,
    logs: Path,
    tasks: Sequence[Task] = (),
    code: Code | None = None,
    tell: Callable[[str], None] | None = None,
) -> AsyncGenerator[PlayerKit]:
    """Open the kit of `config` with an open toolbox. Raises if a tool that `tasks` offer has no grammar.

    `code` is the code of the reward functions and checks, if another process has read it. `tell` is called with a
    message before each slow step.
    """
    preamble = load_preamble(config.tasks.preamble)
    async with AsyncExitStack() as stack:
        chat = await asyncio.to_thread(
            load_chat, config.model.path, config.model.renderer, thinking=config.model.thinking
        )
        grammars, turn_grammars = None, None
        if config.sampling.constrain != "off":
            if tell is not None:
                tell("compiling the grammar of the tools")
            grammars, turn_grammars = await asyncio.to_thread(_make_grammars, config, chat, tasks, toolbox.catalog)
        graders = open_graders(config, toolbox, logs, code or code_of(config.rewards, tasks))
        judge, functions = await stack.enter_async_context(graders)

        runner_class = EpisodeRunner
        if config.episodes.agent is not None:
            runner_class = await stack.enter_async_context(_open_agents(tasks, logs))

        def make_runner(sampler: Sampler) -> EpisodeRunner:
            return runner_class(
                config,
                chat=chat,
                sampler=sampler,
                leases=toolbox,
                preamble=preamble,
                judge=judge,
                functions=functions,
                grammars=turn_grammars,
            )

        demonstrator = None
        if config.algorithm.warm_start.weight > 0 or config.sft is not None:
            demonstrator = Demonstrator(
                config,
                chat=chat,
                leases=toolbox,
                preamble=preamble,
                grammars=turn_grammars,
                judge=judge,
                functions=functions,
                runner_class=runner_class,
            )
        yield PlayerKit(
            chat=chat, grammars=grammars, functions=functions, runner=make_runner, demonstrator=demonstrator
        )


@asynccontextmanager
async def open_graders(
    config: RunConfig, toolbox: Toolbox, logs: Path, code: Code
) -> AsyncGenerator[tuple[Judge | None, RewardFunctions | None]]:
    """Open the judge and the reward functions of a recipe, if it has any."""
    async with AsyncExitStack() as stack:
        judge = None
        if config.rewards.judge is not None:
            judge = await stack.enter_async_context(Judge(config.rewards.judge, load_keys()))
        user, share = config.tasks.user, 1 / (1 + config.workers.count)
        opening = open_functions(config.rewards, toolbox.catalog, logs=logs, code=code, user=user, share=share)
        yield judge, await stack.enter_async_context(opening)


def _open_agents(tasks: Sequence[Task], logs: Path) -> AbstractAsyncContextManager[Callable[..., EpisodeRunner]]:
    """Open the server that agents connect to. Its package is found through the entry point group `mcprl.agents`."""
    entry = next(iter(entry_points(group="mcprl.agents")), None)
    if entry is None:
        raise MissingExtraError(
            "episodes.agent is set, but the extra `agents` is not installed", fix="pip install 'mcprl[agents]'"
        )
    return entry.load()(tasks, logs)


def _make_grammars(
    config: RunConfig, chat: Chat, tasks: Sequence[Task], catalog: Catalog
) -> tuple[Grammars, TurnGrammars]:
    """Load the grammars, and check that each tool offered by a task has one."""
    from mcprl.grammar.masks import TurnGrammars, load_grammars

    catalog.require(config.sampling.loose_tools, wanted_by="sampling.loose_tools")
    grammars = load_grammars(config.model.path)
    turn_grammars = TurnGrammars(chat, grammars, config.sampling)
    require_grammar(tasks, catalog, turn_grammars)
    return grammars, turn_grammars


class Occupancy:
    """Measures the time during which work is in progress: work from 0 s to 3 s and from 2 s to 5 s counts as 5 s."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._under_way = 0
        self._busy_since = 0.0
        self._busy_s = 0.0

    @contextmanager
    def working(self) -> Generator[None]:
        if not self._under_way:
            self._busy_since = self._clock()
        self._under_way += 1
        try:
            yield
        finally:
            self._under_way -= 1
            if not self._under_way:
                self._busy_s += self._clock() - self._busy_since

    def take(self) -> float:
        """Return the busy seconds since the last call, including work that has not ended."""
        if self._under_way:
            now = self._clock()
            self._busy_s += now - self._busy_since
            self._busy_since = now
        taken, self._busy_s = self._busy_s, 0.0
        return taken


class MeteredSampler:
    """A sampler that measures how long it is busy."""

    def __init__(self, sampler: Sampler) -> None:
        self._sampler = sampler
        self.occupancy = Occupancy()

    async def __aenter__(self) -> MeteredSampler:
        await self._sampler.__aenter__()
        return self

    async def __aexit__(self, *error: Any) -> None:
        await self._sampler.__aexit__(*error)

    @property
    def restarts(self) -> int:
        return self._sampler.restarts

    async def sample(self, request: SampleRequest) -> Completion:
        with self.occupancy.working():
            return await self._sampler.sample(request)

    async def publish(self, weights: Weights) -> Weights:
        return await self._sampler.publish(weights)

    def receive_from(self, send: Send) -> None:
        """Let vLLM get all weights from the learner instead of from files."""
        cast("VllmSampler", self._sampler).receive_from(send)

    async def sleep(self) -> None:
        """Leave the GPUs to the learner, if the placement lets vLLM and the learner take turns."""
        await cast("VllmSampler", self._sampler).sleep()

    async def wake(self, weights: Weights) -> None:
        await cast("VllmSampler", self._sampler).wake(weights)


class ToolFigures(Protocol):
    """Statistics of a run's tool calls, over all workers."""

    @property
    def restarts(self) -> int: ...

    def stats(self) -> StatsDocument: ...


@dataclass(slots=True)
class Stage:
    """Everything that episodes need: tools and a sampler. Training adds a learner.

    `grammars` is None without constraints, `engine` is None unless the engine is SkyRL, `functions` is None without
    reward functions, and `demonstrator` is None if nothing is imitated. `toolbox` belongs to this process; `figures`
    cover all workers.
    """

    toolbox: Toolbox
    figures: ToolFigures
    chat: Chat
    grammars: Grammars | None
    engine: SkyrlEngine | None
    sampler: MeteredSampler
    runner: RunsEpisodes
    functions: RewardFunctions | None
    demonstrator: Demonstrator | None

    @property
    def code(self) -> Code | None:
        """The code of the reward functions and checks."""
        return None if self.functions is None else self.functions.code

    def collector(self, config: RunConfig, journal: Journal | None = None) -> Collector:
        return Collector(self.runner, config.episodes, journal, config.rewards, self.functions)


@asynccontextmanager
async def open_stage(
    config: RunConfig,
    tasks: Sequence[Task],
    watcher: Watcher,
    *,
    logs: Path,
    earlier_calls: Mapping[str, int] = MappingProxyType({}),
) -> AsyncGenerator[Stage]:
    """Start the tool servers, check the tasks against the tools, and then load the model.

    `earlier_calls`, keyed by server, count towards the servers' budgets.
    """
    require_scorable(tasks, config.rewards)
    require_users(tasks, config.tasks)
    start = config.model.adapter
    if start is not None:
        check_adapter(start, config.model.path, config.learner)
    limits: SharedLimits | None = None
    if config.workers.count:
        from mcprl.episodes.ray_workers import make_shared_limits

        limits = make_shared_limits(config, earlier_calls)
    async with AsyncExitStack() as stack:
        opening = open_toolbox(config.servers, log_dir=logs, limits=limits, earlier_calls=earlier_calls)
        toolbox = await stack.enter_async_context(_checked(opening, tasks, watcher))
        kit = await stack.enter_async_context(open_kit(config, toolbox, logs=logs, tasks=tasks, tell=watcher.stage))
        engine = None
        if config.engine == "skyrl":
            watcher.stage(f"starting SkyRL ({config.skyrl.url or config.skyrl.backend})")
            engine = await stack.enter_async_context(make_engine(config, logs, watcher))
        elif _samples(config):
            watcher.stage(f"starting the sampler ({config.engine})")
        sampler = await stack.enter_async_context(MeteredSampler(make_sampler(config, logs, kit.grammars, engine)))
        if start is not None:
            await sampler.publish(Weights(version=0, adapter=start))
        runner, figures = kit.runner(sampler), toolbox
        if limits is not None:
            from mcprl.episodes.ray_workers import RayWorkers

            watcher.stage(f"starting {config.workers.count} workers")
            code = None if kit.functions is None else kit.functions.code
            workers = RayWorkers(config, sampler=sampler, limits=limits, toolbox=toolbox, logs=logs, code=code)
            runner = figures = await stack.enter_async_context(workers)
        yield Stage(
            toolbox=toolbox,
            figures=figures,
            chat=kit.chat,
            grammars=kit.grammars,
            engine=engine,
            sampler=sampler,
            runner=runner,
            functions=kit.functions,
            demonstrator=kit.demonstrator,
        )


@asynccontextmanager
async def open_endpoint_runner(
    config: RunConfig, settings: EndpointSettings, tasks: Sequence[Task], watcher: Watcher, *, logs: Path
) -> AsyncGenerator[tuple[EndpointRunner, Toolbox, RewardFunctions | None, EndpointUse]]:
    """Start the tool servers, with an endpoint's model as the policy. Loads no model and no chat template."""
    require_scorable(tasks, config.rewards)
    require_users(tasks, config.tasks)
    if config.episodes.agent is not None:
        raise BadValueError("an agent cannot use an endpoint", fix="remove episodes.agent to use mcprl's own loop")
    if config.workers.count:
        raise BadValueError(
            "Ray workers cannot use an endpoint", fix="add --set workers.count=0 to run all episodes in this process"
        )
    client = make_client(settings, load_keys())
    async with (
        client,
        _checked(open_toolbox(config.servers, log_dir=logs), tasks, watcher) as toolbox,
        open_graders(config, toolbox, logs, code_of(config.rewards, tasks)) as (judge, functions),
    ):
        runner = EndpointRunner(
            config,
            settings=settings,
            client=client,
            leases=toolbox,
            preamble=load_preamble(config.tasks.preamble),
            judge=judge,
            functions=functions,
        )
        yield runner, toolbox, functions, client.use


@asynccontextmanager
async def _checked(
    opening: AbstractAsyncContextManager[Toolbox], tasks: Sequence[Task], watcher: Watcher
) -> AsyncGenerator[Toolbox]:
    """Open the toolbox, and check that the tasks fit its tools and worlds."""
    watcher.stage("starting the tool servers")
    async with opening as toolbox:
        require_tools(tasks, toolbox.catalog)
        require_worlds(tasks, toolbox)
        yield toolbox


def make_engine(config: RunConfig, logs: Path, watcher: Watcher) -> SkyrlEngine:
    """Create the engine that the sampler and the learner share. Its server stores its files next to the logs."""
    if importlib.util.find_spec("tinker") is None:
        raise MissingExtraError("engine is skyrl, but tinker is not installed", fix="pip install 'mcprl[skyrl]'")
    from mcprl.skyrl.engine import SkyrlEngine

    return SkyrlEngine(config, folder=logs.parent / "skyrl", log=logs / "skyrl.log", tell=watcher.stage)


def _samples(config: RunConfig) -> bool:
    """Return False for fine-tuning without validation tasks, which needs no sampler."""
    return config.sft is None or config.tasks.validation is not None


def make_sampler(
    config: RunConfig, logs: Path, grammars: Grammars | None, engine: SkyrlEngine | None = None
) -> Sampler:
    """Create the sampler of the configured engine. Only the libraries of that engine are imported."""
    if engine is not None:
        from mcprl.samplers.skyrl import SkyrlSampler

        return SkyrlSampler(engine, model=config.model.path)
    if not _samples(config):
        return ScriptedSampler(lambda request: ())
    if config.engine == "transformers":
        from mcprl.samplers.transformers import TransformersSampler

        return TransformersSampler(config.model, grammars)
    from mcprl.samplers.vllm import VllmSampler

    headers = authorization(_VLLM, config.placement.sampler.key_env, load_keys())
    return VllmSampler(
        config.model,
        config.sampling,
        config.learner,
        placement=replace(place(config, len(gpu_memories())), headers=headers),
        group_size=config.episodes.group_size,
        max_sequences=config.episodes.max_concurrent,
        turn_deadline_s=config.episodes.deadline_s,
        log=logs / "vllm.log",
    )
