"""Workers on Ray: actors that play the episodes of a run, on this machine or on the nodes of a cluster.

Each worker has tool servers, a chat, grammars and a judge of its own, made from the run's configuration. Sampler,
learner, journal and the limits of the tool servers stay in the run. So a node needs no accelerator, but it needs:

- mcprl with the extras `ray` and those of the recipe, of the same version and under the same Python;
- the folder that the run was started in, with the files that its recipe names, under the same path;
- the keys of its tool servers, in `servers.env_file` or in the environment that Ray was started with there.

The logs of its tool servers are on its node, in the folder `worker-N` of the run's logs.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import os
import pickle
import secrets
import sys
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Self, cast

from mcprl.config import RunConfig
from mcprl.episodes.player import open_kit
from mcprl.episodes.worker_crew import Crew
from mcprl.episodes.worker_letters import Figures, FromWorker, ToWorker, pack, unpack
from mcprl.episodes.worker_player import AskedDesk, AskedSampler, Player, PostBox
from mcprl.errors import BadValueError, McprlError, MissingExtraError, WorkerLostError, WorkersStartError
from mcprl.processes import private_folder
from mcprl.records import Task, Trajectory
from mcprl.samplers import Sampler
from mcprl.tools import Toolbox, open_toolbox
from mcprl.tools.limits import LimitsDesk, desk_settings
from mcprl.tools.stats import StatsDocument, merge_stats

__all__ = ["RayWorkers", "WorkerActor", "open_desk"]

_START_S = 600.0  # a cluster that grows on demand takes minutes to give a node
_END_S = 20.0
_STORE_BYTES = 100 * 2**20
# Ray reports to its makers, collects metrics that nobody reads here, and lets its workers stand back behind everything
# else on the machine, their tool servers with them, unless it is told not to.
_RAY_SETTINGS = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_enable_metrics_collection": "0",
    "RAY_worker_niceness": "0",
}


def open_desk(config: RunConfig) -> LimitsDesk:
    """The limits that all workers share. Says what workers lack before anything is started."""
    _secure(config)
    _load_ray()
    if config.servers.cassette_mode in ("record", "replay_else_live"):
        raise BadValueError(
            f"workers.kind is ray and servers.cassette_mode {config.servers.cassette_mode}, but several workers cannot "
            "write one cassette",
            fix="record with workers.kind local; replay works with both",
        )
    return LimitsDesk(desk_settings(config.servers))


class RayWorkers:
    """Runs episodes on Ray. Entering starts the workers, leaving ends them, and Ray too where it was started here.

    `toolbox` is the run's own, which checks tasks and plays demonstrations: its figures count with the workers'.

    async with RayWorkers(config, sampler=sampler, desk=desk, toolbox=toolbox, logs=folder.logs) as workers:
        collector = Collector(workers, config.episodes, journal)
    """

    def __init__(self, config: RunConfig, *, sampler: Sampler, desk: LimitsDesk, toolbox: Toolbox, logs: Path) -> None:
        count = config.workers.count
        self._config = config
        self._desk = desk
        self._toolbox = toolbox
        self._logs = logs.absolute()
        self._links: dict[int, _RayLink] = {}
        self._relayed_before = 0
        self._spent: dict[str, tuple[int, float]] = {}
        self._stack = AsyncExitStack()
        most = math.ceil(config.episodes.max_concurrent / count)
        self._crew = Crew(self._hire, sampler=sampler, desk=desk, count=count, most=most)

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as stack:
            folder = stack.enter_context(private_folder())  # Ray's own is one that every user may write to
            if await asyncio.to_thread(_connect, self._config, folder):
                stack.push_async_callback(asyncio.to_thread, _load_ray().shutdown)
            await stack.enter_async_context(self._crew)
            self._stack = stack.pop_all()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    async def run(self, task: Task, *, step: int, member: int, attempt: int) -> Trajectory:
        """One episode, on whichever worker. A worker that dies under it is nobody's loss but its time."""
        try:
            return await self._crew.run(task, step=step, member=member, attempt=attempt)
        finally:
            # Not left to the figures of the workers: one that died never told its last calls. Only a server with
            # settings has limits.
            self._spent = {server: await self._desk.spent(server) for server in self._config.servers.settings}

    def stats(self) -> StatsDocument:
        """What happened to the calls of all workers, those of the last second perhaps excepted."""
        told = [each.stats for each in self._crew.figures]
        return merge_stats([self._toolbox.stats(), *told], spent=self._spent)

    @property
    def restarts(self) -> int:
        """How often any tool server had to be started again."""
        return self._toolbox.restarts + sum(each.restarts for each in self._crew.figures)

    @property
    def pids(self) -> Sequence[int]:
        """The processes of the workers that live, each on its node."""
        return [link.pid for link in self._links.values() if not link.is_closed]

    @property
    def relayed_bytes(self) -> int:
        """What went to and from the workers so far."""
        return self._relayed_before + sum(link.relayed_bytes for link in self._links.values())

    async def _hire(self, number: int) -> _RayLink:
        ray = _load_ray()
        options = {
            "num_cpus": self._config.workers.cpus,
            "max_restarts": 0,  # ours, and not Ray's: only we know which episodes to play again
            "scheduling_strategy": "SPREAD",
        }
        make_actor: Any = ray.remote(**options)(WorkerActor)
        actor = make_actor.remote(self._config, str(Path.cwd()), str(self._logs / f"worker-{number}"))
        link = _RayLink(number, actor)
        try:
            await link.open(self._config.workers.cpus)
        except BaseException:
            link.kill()
            raise
        before = self._links.get(number)
        self._relayed_before += 0 if before is None else before.relayed_bytes
        self._links[number] = link
        return link


class WorkerActor:
    """What Ray runs on a node. Its methods carry letters as bytes; an error of ours is a result, not Ray's wrapping."""

    def __init__(self, config: RunConfig, folder: str, logs: str) -> None:
        self._config = config
        self._folder = folder
        self._logs = Path(logs)
        self._stack = AsyncExitStack()
        self._post: PostBox | None = None
        self._player: Player | None = None

    async def open(self) -> tuple[int, bytes | None]:
        """Start the tool servers and make ready to play. The process, and what is wrong with it."""
        try:
            await self._open()
        except McprlError as error:
            return os.getpid(), pickle.dumps(error)
        return os.getpid(), None

    async def deliver(self, post: bytes) -> None:
        """Letters from the run."""
        assert self._player is not None
        self._player.hear(cast("list[ToWorker]", unpack(post)))

    async def collect(self) -> bytes:
        """Letters to the run, once there is one."""
        assert self._post is not None
        return pack(await self._post.empty())

    async def close(self) -> None:
        """End all episodes, then the tool servers."""
        if self._player is not None and self._post is not None:
            await self._player.close()
            self._post.close()
        await self._stack.aclose()

    async def _open(self) -> None:
        try:
            os.chdir(self._folder)
        except OSError as error:
            raise WorkersStartError(
                f"node {os.uname().nodename} lacks the folder that the run was started in: {error}",
                fix="give every node the same files under the same paths: a shared disk, or the same image",
            ) from error
        post = PostBox()
        async with AsyncExitStack() as stack:
            toolbox = await stack.enter_async_context(
                open_toolbox(self._config.servers, log_dir=self._logs, limits=AskedDesk(post))
            )
            kit = await stack.enter_async_context(open_kit(self._config, toolbox))
            runner = kit.runner(AskedSampler(post))
            self._player = Player(runner, post, lambda: Figures(toolbox.stats(), toolbox.restarts))
            self._post = post
            self._stack = stack.pop_all()


class _RayLink:
    """The post to one actor."""

    def __init__(self, number: int, actor: Any) -> None:
        self.pid = 0
        self.relayed_bytes = 0
        self.is_closed = False
        self._number = number
        self._actor = actor
        self._ray_error: type[Exception] = _load_ray().exceptions.RayError

    async def open(self, cpus: float) -> None:
        try:
            async with asyncio.timeout(_START_S):
                self.pid, wrong = await self._actor.open.remote()
        except TimeoutError as error:
            raise WorkersStartError(
                f"worker {self._number} did not start within {_START_S:g} s",
                fix=f"see whether the cluster has {cpus:g} free cores for it (ray status), or lower workers.count",
            ) from error
        except self._ray_error as error:
            raise WorkersStartError(
                f"worker {self._number} did not start: {_first_line(error)}",
                fix="see that every node has the mcprl and the Python of this one; Ray's logs say more",
            ) from error
        if wrong is not None:
            raise pickle.loads(wrong)

    async def send(self, letters: Sequence[ToWorker]) -> None:
        post = pack(letters)
        self.relayed_bytes += len(post)
        try:
            await self._actor.deliver.remote(post)
        except self._ray_error as error:
            raise self._lost(error) from error

    async def receive(self) -> Sequence[FromWorker]:
        try:
            post = cast("bytes", await self._actor.collect.remote())
        except self._ray_error as error:
            raise self._lost(error) from error
        self.relayed_bytes += len(post)
        return cast("list[FromWorker]", unpack(post))

    async def close(self) -> None:
        if self.is_closed:
            return
        self.is_closed = True
        with contextlib.suppress(TimeoutError, self._ray_error):
            async with asyncio.timeout(_END_S):
                await self._actor.close.remote()
        self.kill()

    def kill(self) -> None:
        """End the actor's process at once; its tool servers end with it."""
        self.is_closed = True
        _load_ray().kill(self._actor, no_restart=True)

    def _lost(self, error: Exception) -> WorkerLostError:
        # One that is only out of reach must not go on: its episodes are being played by others.
        self.kill()
        return WorkerLostError(
            f"worker {self._number}, process {self.pid}, went away: {_first_line(error)}",
            fix="see Ray's logs of its node, and whether the node ran out of memory",
        )


def _secure(config: RunConfig) -> None:
    """Before Ray is loaded: let a cluster of our own listen on loopback only, and ask for a token.

    Whoever can talk to Ray can run code in it. The token is new, because Ray would keep its own in a file that others
    can read under the usual umask. Who may talk to another cluster is for those to decide who started it; and a Ray
    that somebody loaded before us has read its settings already.
    """
    if config.workers.address is not None or "ray" in sys.modules:
        return
    os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")  # on Linux too, in spite of its name
    os.environ.setdefault("RAY_AUTH_MODE", "token")
    if not {"RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"} & os.environ.keys():
        os.environ["RAY_AUTH_TOKEN"] = secrets.token_hex(32)


def _load_ray() -> Any:
    """The library, which only workers on Ray need."""
    for name, value in _RAY_SETTINGS.items():
        os.environ.setdefault(name, value)
    try:
        import ray
    except ModuleNotFoundError as error:
        raise MissingExtraError(
            "workers.kind is ray, but the package ray is not installed",
            fix="pip install 'mcprl[ray]', or set workers.kind to local",
        ) from error
    return ray


def _connect(config: RunConfig, folder: Path) -> bool:
    """Join the cluster, or start one of our own that fits the workers, with its sockets in `folder`. Whether there is
    something to leave."""
    ray = _load_ray()
    if ray.is_initialized():
        return False
    workers = config.workers
    own = {
        "num_cpus": max(os.cpu_count() or 1, math.ceil(workers.count * workers.cpus)),
        "object_store_memory": _STORE_BYTES,
        "include_dashboard": False,
        "_temp_dir": str(folder / "ray"),
    }
    try:
        ray.init(
            address=workers.address or "local",
            log_to_driver=False,
            logging_level=logging.ERROR,
            **({} if workers.address is not None else own),
        )
    except (OSError, RuntimeError, ValueError, ray.exceptions.RayError) as error:
        raise WorkersStartError(
            f"Ray at {workers.address or 'this machine'} cannot be used: {_first_line(error)}",
            fix="start the cluster (ray start --head), give its address as workers.address, or set it to null",
        ) from error
    return True


def _first_line(error: BaseException) -> str:
    return next((line.strip(" .") for line in str(error).splitlines() if line.strip(" .")), type(error).__name__)
