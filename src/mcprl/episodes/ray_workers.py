"""Episodes on Ray: one async actor per worker, on this machine or on the nodes of a cluster.

Each worker opens its own tool servers, chat, grammars and judge from the run's configuration, and runs the reward
functions that the driver has read. The driver has what all workers share: the sampler, and the rate limits and budgets
of the tool servers. So a node needs no accelerator. It does need:

- mcprl of the same version, under the same Python, with the extra `ray` and those of the recipe;
- the folder in which the run was started, with the files that its recipe names, at the same path;
- the keys of its tool servers, in `.env` or in the environment in which Ray was started on the node.

The logs of a worker's tool servers are on its node, in the folder `worker-N` of the run's logs.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import os
import secrets
import sys
import traceback
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, Self

from mcprl.concurrency import run_all
from mcprl.config import RunConfig
from mcprl.episodes.ray_actor import (
    Cancel,
    EpisodeEnd,
    EpisodeWorker,
    Method,
    Request,
    Response,
    WorkerStats,
    open_runner,
    take_all,
)
from mcprl.errors import (
    BadValueError,
    ConfigurationError,
    InfrastructureError,
    McprlError,
    MissingExtraError,
    WorkerLostError,
    WorkersStartError,
)
from mcprl.functions import Code
from mcprl.processes import private_folder
from mcprl.records import Task, Trajectory
from mcprl.samplers import Sampler
from mcprl.tools import Toolbox
from mcprl.tools.limits import LimitsService, SharedLimits, limit_settings
from mcprl.tools.stats import StatsDocument, merge_stats

_logger = logging.getLogger(__name__)

_MAX_DEATHS = 5  # worker deaths during one episode
_MAX_FAILURES = 5  # failures of one worker in a row, if no episode ended on any worker in between
_FIRST_BACKOFF_S = 0.5
_MAX_BACKOFF_S = 10.0
_START_S = 600.0  # a cluster that scales on demand needs minutes to add a node
_CLOSE_S = 20.0
_OBJECT_STORE_BYTES = 100 * 2**20
# By default Ray reports usage to its authors, collects metrics that are not used here, and lowers the priority of its
# workers and their tool servers.
_ADDRESS = "RAY_ADDRESS"  # Ray's own variable for the address of a cluster that is already running
_RAY_SETTINGS = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_enable_metrics_collection": "0",
    "RAY_worker_niceness": "0",
}


class WorkerHandle:
    """The driver's handle to an EpisodeWorker (`actor`). If it has died, all methods but `close` and `kill` raise."""

    def __init__(self, ray: Any, number: int, actor: Any) -> None:
        self.pid = 0
        self.is_closed = False
        self.playing = 0  # number of running episodes
        self.stats: WorkerStats | None = None  # as last reported
        self._ray = ray
        self._number = number
        self._actor = actor

    async def open(self) -> None:
        """Start the tool servers of the worker. Raises the worker's own error if one does not start."""
        try:
            async with asyncio.timeout(_START_S):
                self.pid, failed = await self._actor.open.remote()
        except TimeoutError as error:
            raise WorkersStartError(
                f"worker {self._number} did not start within {_START_S:g} s",
                fix="check with `ray status` whether the cluster has a free core, or lower workers.count",
            ) from error
        except self._ray.exceptions.RayError as error:
            raise WorkersStartError(
                f"worker {self._number} did not start: {_first_line(error)}",
                fix="check that every node has the same versions of mcprl and Python as this one; Ray's logs have "
                "details",
            ) from error
        if failed is not None:
            raise failed

    async def run_episode(self, task: Task, step: int, member: int, attempt: int) -> EpisodeEnd:
        return await self._result(self._actor.run_episode.remote(task, step, member, attempt))

    async def take_requests(self) -> Sequence[Request | Cancel]:
        return await self._result(self._actor.take_requests.remote())

    async def respond(self, responses: Sequence[Response]) -> None:
        await self._result(self._actor.respond.remote(responses))

    async def close(self) -> None:
        """Stop the worker and its tool servers, even if it no longer responds."""
        if self.is_closed:
            return
        self.is_closed = True
        with contextlib.suppress(TimeoutError, self._ray.exceptions.RayError):
            async with asyncio.timeout(_CLOSE_S):
                await self._actor.close.remote()
        self.kill()

    def kill(self) -> None:
        """Kill the actor's process. Its tool servers end with it."""
        self.is_closed = True
        self._ray.kill(self._actor, no_restart=True)

    async def _result(self, ref: Any) -> Any:
        """Return the result of a call to the actor. On cancellation, cancel the call and wait until it has ended."""
        errors = self._ray.exceptions
        try:
            return await ref
        except asyncio.CancelledError:
            self._ray.cancel(ref)
            with contextlib.suppress(errors.RayError):
                await ref
            raise
        except errors.RayError as error:
            if isinstance(error, errors.RayTaskError) and not isinstance(error, errors.TaskCancelledError):
                # A bug on the worker. Ray's exception also inherits from its cause, so an `except` elsewhere might
                # catch it.
                raise RuntimeError(str(error)) from error
            # The worker may only be unreachable. It must not continue, because other workers run its episodes.
            self.kill()
            raise WorkerLostError(
                f"worker {self._number}, process {self.pid}, died: {_first_line(error)}",
                fix="read Ray's logs on this worker's node, and check whether the node ran out of memory",
            ) from error


class _RequestServer:
    """Handles the requests of one worker in the driver, as long as the worker is alive."""

    def __init__(self, worker: WorkerHandle, sampler: Sampler, limits: LimitsService) -> None:
        self._worker = worker
        self._limits = limits
        self._methods: dict[Method, Callable[..., Awaitable[Any]]] = {
            "sample": sampler.sample,
            "spend": limits.spend,
            "refund": limits.refund,
            "pause": limits.pause,
            "spent": limits.spent,
        }
        self._running: dict[int, asyncio.Task[Any]] = {}
        self._outbox: asyncio.Queue[Response] = asyncio.Queue()
        self._places: dict[int, tuple[str, int]] = {}  # server and ticket, by the request that took the place

    async def serve(self) -> None:
        """Handle requests until the worker is lost, then free its rate-limit places and raise WorkerLostError."""
        try:
            await run_all([self._receive(), self._send()])
        finally:
            running = list(self._running.values())
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)
            for request_id in list(self._places):
                await self._free_place(request_id)

    async def _receive(self) -> None:
        while True:
            for message in await self._worker.take_requests():
                if isinstance(message, Request):
                    task = asyncio.ensure_future(self._run(message))
                    self._running[message.id] = task
                    task.add_done_callback(partial(self._finish, message.id))
                elif (task := self._running.get(message.id)) is None or not task.cancel():
                    await self._free_place(message.id)

    async def _send(self) -> None:
        while True:
            await self._worker.respond(await take_all(self._outbox))

    async def _run(self, request: Request) -> Any:
        if request.method == "take_place":
            [server] = request.args
            ticket = await self._limits.take_place(server)
            if ticket is None:
                return None
            self._places[request.id] = (server, ticket)
            return request.id  # the worker's ticket: on cancellation it does not know the service's ticket
        if request.method == "free_place":
            _, request_id = request.args
            return await self._free_place(request_id)
        return await self._methods[request.method](*request.args)

    async def _free_place(self, request_id: int) -> None:
        place = self._places.pop(request_id, None)
        if place is not None:
            await self._limits.free_place(*place)

    def _finish(self, request_id: int, done: asyncio.Task[Any]) -> None:
        del self._running[request_id]
        if done.cancelled():
            return  # the caller needs no response
        error = done.exception()
        if error is None:
            self._outbox.put_nowait(Response(request_id, done.result()))
        else:
            self._outbox.put_nowait(Response(request_id, error=_portable(error)))


class WorkerPool:
    """Runs episodes on workers. Entering the context starts the workers; leaving it stops them.

    `start(N)` starts worker N, or raises the worker's error. An episode goes to the worker with the fewest
    running episodes; each runs at most `max_per_worker` at a time. If a worker dies, others run its episodes from the
    start. Ray's max_restarts and max_task_retries are unused: they would retry the episodes on the same actor, restart
    it without backoff, and not free its rate-limit places.
    """

    def __init__(
        self,
        start: Callable[[int], Awaitable[WorkerHandle]],
        *,
        sampler: Sampler,
        limits: LimitsService,
        count: int,
        max_per_worker: int,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._start = start
        self._sampler = sampler
        self._limits = limits
        self._max_per_worker = max_per_worker
        self._sleep = sleep
        self.alive: list[WorkerHandle] = []
        self._failures = [0] * count  # per worker, since an episode last ended on any worker
        self._calls: set[asyncio.Future[EpisodeEnd]] = set()
        self._supervisors: list[asyncio.Task[None]] = []
        self._stats_of_lost: list[WorkerStats] = []
        self._failure: BaseException | None = None
        self._changed = asyncio.Event()  # replaced by a new one each time it is set

    async def __aenter__(self) -> Self:
        try:
            workers = await run_all(self._start_worker(number) for number in range(len(self._failures)))
        except BaseException:
            await self._close_workers()
            raise
        for number, worker in enumerate(workers):
            supervisor = asyncio.create_task(self._supervise(number, worker))
            supervisor.add_done_callback(self._on_supervisor_end)
            self._supervisors.append(supervisor)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._fail(
            self._failure
            or WorkerLostError("the workers are being stopped", fix="ignore this error: the run is shutting down")
        )
        await self._close_workers()  # their requests are still handled, so that they give back what they took
        for supervisor in self._supervisors:
            supervisor.cancel()
        await asyncio.gather(*self._supervisors, return_exceptions=True)
        await self._close_workers()  # one may have started in the meantime

    @property
    def stats(self) -> list[WorkerStats]:
        """Return the stats of all workers' tool servers. For a worker that died, its last report."""
        return self._stats_of_lost + [each.stats for each in self.alive if each.stats is not None]

    async def run(self, task: Task, *, step: int, member: int, attempt: int) -> Trajectory:
        """Run one episode. Raises the error that the episode raised on its worker.

        Raises WorkerLostError if several workers died during the episode, or if no worker can be started any more.
        """
        deaths: list[WorkerLostError] = []
        while len(deaths) < _MAX_DEATHS:
            worker = await self._reserve()
            call = asyncio.ensure_future(worker.run_episode(task, step, member, attempt))
            self._calls.add(call)
            try:
                outcome, stats = await call
            except WorkerLostError as error:
                self._drop(worker)
                deaths.append(error)
                continue
            except asyncio.CancelledError:
                current = asyncio.current_task()
                if self._failure is None or (current is not None and current.cancelling()):
                    raise
                raise self._failure from None
            finally:
                self._calls.discard(call)
                worker.playing -= 1
                self._notify()
            worker.stats = stats or worker.stats
            # An episode ended, so workers can start and run episodes: retry those that were given up.
            self._failures = [0] * len(self._failures)
            if isinstance(outcome, McprlError):
                raise outcome
            return outcome
        raise WorkerLostError(
            f"{len(deaths)} workers in a row died while running episode {member} of task {task.id}; the last cause: "
            f"{deaths[-1].what}",
            fix="check the log of this worker and the memory of its node",
        )

    async def _reserve(self) -> WorkerHandle:
        """Wait until a worker has a free slot. Take a slot of the worker with the fewest running episodes."""
        while self._failure is None:
            idlest = min(self.alive, key=lambda each: each.playing, default=None)
            if idlest is not None and idlest.playing < self._max_per_worker:
                idlest.playing += 1
                return idlest
            await self._changed.wait()
        raise self._failure

    def _drop(self, worker: WorkerHandle) -> None:
        """Send a lost worker no more episodes. Its supervisor and its episodes notice its death in any order."""
        if worker in self.alive:
            self.alive.remove(worker)
            if worker.stats is not None:
                self._stats_of_lost.append(worker.stats)

    def _notify(self) -> None:
        """Wake up all tasks that wait for a worker, for an episode to end, or for the pool to close."""
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    async def _start_worker(self, number: int) -> WorkerHandle:
        worker = await self._start(number)
        self.alive.append(worker)
        self._notify()
        return worker

    async def _supervise(self, number: int, worker: WorkerHandle | None) -> None:
        """Handle the worker's requests. Replace the worker whenever it dies."""
        while worker is not None and self._failure is None:
            try:
                await _RequestServer(worker, self._sampler, self._limits).serve()
            except WorkerLostError as error:
                if self._failure is not None:
                    return  # the worker was stopped on purpose
                self._drop(worker)
                _logger.warning("replacing worker %d: %s", number, error)
                self._failures[number] += 1
                worker = await self._restart(number, error)

    async def _restart(self, number: int, error: McprlError) -> WorkerHandle | None:
        """Restart a worker, with exponential backoff. Fail the pool if all workers have been given up."""
        while self._failure is None:
            failures = self._failures[number]
            if min(self._failures) > _MAX_FAILURES:
                self._fail(
                    WorkerLostError(
                        f"all workers keep failing: each failed {_MAX_FAILURES} times in a row without finishing an "
                        f"episode, most recently with {error.code} {error.what}",
                        fix=error.fix,
                    )
                )
                break
            if failures > _MAX_FAILURES:
                await self._changed.wait()
                continue
            if failures > 1:
                await self._sleep(min(_MAX_BACKOFF_S, _FIRST_BACKOFF_S * 2.0 ** (failures - 2)))
            try:
                return await self._start_worker(number)
            except ConfigurationError as wrong:
                self._fail(wrong)
            except InfrastructureError as failed:
                _logger.warning("worker %d did not start: %s", number, failed)
                self._failures[number] += 1
                error = failed
        return None

    def _on_supervisor_end(self, supervisor: asyncio.Task[None]) -> None:
        """If a supervisor has a bug, fail all episodes: its worker's requests are no longer handled."""
        if not supervisor.cancelled() and (error := supervisor.exception()) is not None:
            self._fail(error)

    def _fail(self, error: BaseException) -> None:
        """Raise this error from every episode, running or future."""
        self._failure = error
        for call in self._calls:
            call.cancel()
        self._notify()

    async def _close_workers(self) -> None:
        await run_all(worker.close() for worker in self.alive)


def make_shared_limits(config: RunConfig, earlier_calls: Mapping[str, int] = MappingProxyType({})) -> SharedLimits:
    """Create the rate limits and budgets that all workers share. First checks that the run can use workers."""
    _secure(config)
    _load_ray()
    if config.servers.cassette_mode in ("record", "replay_else_live"):
        raise BadValueError(
            f"servers.cassette_mode is {config.servers.cassette_mode}, but Ray workers cannot share one cassette",
            fix="record with workers.count=0; replaying works with any number of workers",
        )
    return SharedLimits(limit_settings(config.servers), earlier_calls)


class RayWorkers:
    """Runs episodes on Ray. Entering the context starts the workers. Leaving it stops them, and Ray if mcprl
    started it.

    `toolbox` is the driver's own, for checking tasks and running demonstrations. Its stats are added to the workers'.

    async with RayWorkers(config, sampler=sampler, limits=limits, toolbox=toolbox, logs=folder.logs) as workers:
        collector = Collector(workers, config.episodes, journal)
    """

    def __init__(
        self,
        config: RunConfig,
        *,
        sampler: Sampler,
        limits: SharedLimits,
        toolbox: Toolbox,
        logs: Path,
        code: Code | None = None,
    ) -> None:
        count = config.workers.count
        self._config = config
        self._limits = limits
        self._toolbox = toolbox
        self._code = code
        self._logs = logs.absolute()
        self._max_per_worker = math.ceil(config.episodes.max_concurrent / count)
        self._spent: dict[str, tuple[int, float]] = {}
        self._stack = AsyncExitStack()
        self._pool = WorkerPool(
            self._start, sampler=sampler, limits=limits, count=count, max_per_worker=self._max_per_worker
        )

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as stack:
            folder = stack.enter_context(private_folder())  # Ray's default folder is writable for every user
            if await asyncio.to_thread(_connect, self._config, folder):
                stack.push_async_callback(asyncio.to_thread, _load_ray().shutdown)
            await stack.enter_async_context(self._pool)
            self._stack = stack.pop_all()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    async def run(self, task: Task, *, step: int, member: int, attempt: int) -> Trajectory:
        """Run one episode. If its worker dies, another worker runs it."""
        try:
            return await self._pool.run(task, step=step, member=member, attempt=attempt)
        finally:
            # Not from the stats of the workers: a worker that died never reported its last calls. Only servers with
            # settings have limits.
            self._spent = {server: await self._limits.spent(server) for server in self._config.servers.settings}

    def stats(self) -> StatsDocument:
        """Return the stats of all workers' calls. Calls of the last second may be missing."""
        return merge_stats([self._toolbox.stats(), *(each.tools for each in self._pool.stats)], spent=self._spent)

    @property
    def restarts(self) -> int:
        """Return how many times tool servers were restarted."""
        return self._toolbox.restarts + sum(each.restarts for each in self._pool.stats)

    @property
    def pids(self) -> Sequence[int]:
        """Return the process ids of the workers that are alive, each on its node."""
        return [worker.pid for worker in self._pool.alive if not worker.is_closed]

    async def _start(self, number: int) -> WorkerHandle:
        options = {
            "num_cpus": 1,
            "max_restarts": 0,  # WorkerPool itself restarts workers
            "max_concurrency": self._max_per_worker + 8,  # plus calls that handle requests and close it
            "scheduling_strategy": "SPREAD",
        }
        ray = _load_ray()
        make_actor: Any = ray.remote(**options)(EpisodeWorker)
        log_dir = str(self._logs / f"worker-{number}")
        actor = make_actor.remote(partial(open_runner, self._config, str(Path.cwd()), log_dir, self._code))
        worker = WorkerHandle(ray, number, actor)
        try:
            await worker.open()
        except BaseException:
            worker.kill()
            raise
        return worker


def _secure(config: RunConfig) -> None:
    """For a cluster that we start, allow only loopback connections and require a token. Call this before Ray is loaded.

    Anyone who can connect to Ray can run code in it. The token is new, because Ray would store its own token in a file
    that others can read under the usual umask. Nothing changes for a cluster that somebody else started, or if Ray is
    already loaded, because it has already read its settings.
    """
    if os.environ.get(_ADDRESS) or "ray" in sys.modules:
        return
    os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")  # also applies to Linux, despite its name
    os.environ.setdefault("RAY_AUTH_MODE", "token")
    if not {"RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"} & os.environ.keys():
        os.environ["RAY_AUTH_TOKEN"] = secrets.token_hex(32)


def _load_ray() -> Any:
    """Import Ray, which is needed only with workers."""
    for name, value in _RAY_SETTINGS.items():
        os.environ.setdefault(name, value)
    try:
        import ray
    except ModuleNotFoundError as error:
        raise MissingExtraError(
            "workers.count is above 0, but the package ray is not installed",
            fix="pip install 'mcprl[ray]', or set workers.count to 0",
        ) from error
    return ray


def _connect(config: RunConfig, folder: Path) -> bool:
    """Join the cluster, or start one with its sockets in `folder`. Return False if Ray was already connected."""
    ray = _load_ray()
    if ray.is_initialized():
        return False
    address = os.environ.get(_ADDRESS)
    own = {
        "num_cpus": max(os.cpu_count() or 1, config.workers.count),
        "object_store_memory": _OBJECT_STORE_BYTES,
        "include_dashboard": False,
        "_temp_dir": str(folder / "ray"),
    }
    try:
        ray.init(
            address=address or "local", log_to_driver=False, logging_level=logging.ERROR, **({} if address else own)
        )
    except (OSError, RuntimeError, ValueError, ray.exceptions.RayError) as error:
        raise WorkersStartError(
            f"Ray at {address or 'this machine'} cannot be used: {_first_line(error)}",
            fix=f"start the cluster (ray start --head), set the environment variable {_ADDRESS} to its address, or "
            "unset it",
        ) from error
    return True


def _portable(error: BaseException) -> Exception:
    """Convert an error so that another process can load it: mcprl's own unchanged, others as text with a traceback."""
    if isinstance(error, McprlError):
        return error
    return RuntimeError("".join(traceback.format_exception(error)).rstrip())


def _first_line(error: BaseException) -> str:
    return next((line.strip(" .") for line in str(error).splitlines() if line.strip(" .")), type(error).__name__)
