"""The SkyRL engine of a run: one adapter behind the Tinker API, trained and sampled from, and set up again when lost.

All that the server holds can be lost: it is killed, or forgets a session. A state of weights and optimiser is saved
there when the run saves a checkpoint, and not after each update: with FSDP that is the whole model. What was learnt
since is kept here, as the gradients that were sent. A server that was lost is given the saved state, then the same
gradients in the same order, and whoever was asking starts again.

On JAX, what is sampled from is loaded into the very adapter that is trained: weights that were not handed to the
sampler would be gone, and no error would say so. The engine refuses to.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Collection, Coroutine, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

from mcprl.config import RunConfig
from mcprl.errors import EngineLostError, EngineStartError, InfrastructureError, UnfitEngineError
from mcprl.seeds import derive_seed
from mcprl.skyrl.client import AdamStep, Drawn, Model, ScoredRow, SkyrlClient
from mcprl.skyrl.server import SkyrlServer

__all__ = ["SkyrlEngine", "Snapshot"]

T = TypeVar("T")

# An answer may be fetched again for as long as this.
_ANSWERS_KEPT_S = 900.0
_REQUEST_S = 1800.0  # the first request compiles
_MAX_RESTARTS = 3  # in a row, with nothing done in between
# A step that moves nothing, by which JAX forgets gradients.
_NO_STEP = AdamStep(learning_rate=0.0)
# Larger seeds do not fit into what JAX takes them for.
_SEED_MASK = 0x7FFFFFFF


def _nobody(_: str) -> None:
    pass


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """A version of the weights that is saved on the server, with its optimiser.

    Snapshot(version=3, state="tinker://model_1a2b/weights/v3-9f0c")
    """

    version: int
    state: str


_Step = tuple[tuple[ScoredRow, ...], AdamStep]


class SkyrlEngine:
    """Entered: an adapter is there, at version 0. Left: nothing that was started here remains but files in `folder`."""

    def __init__(self, config: RunConfig, *, folder: Path, log: Path, tell: Callable[[str], None] = _nobody) -> None:
        """`tell` hears of every loss of the server."""
        self._config = config
        self._tell = tell
        self._skyrl = config.skyrl
        self._folder = folder
        self._log = log
        self._server: SkyrlServer | None = None
        self._client: SkyrlClient | None = None
        self._policy: Model | None = None
        self._reference: Model | None = None
        self._reference_state: str | None = None
        self._snapshot: Snapshot | None = None
        self._version = 0
        self._learnt: list[_Step] = []  # from the snapshot to the newest version
        self._unsaved: list[_Step] = []  # since the newest version
        self._session = ""
        self._sampler: Any = None
        self._published = 0
        self._moved = False
        self._recovering = asyncio.Lock()
        self._losses_in_a_row = 0
        self._pinned: frozenset[str] | None = None
        self._loop = asyncio.get_running_loop()
        self.generation = 0

    async def __aenter__(self) -> SkyrlEngine:
        try:
            await self._connect()
            await self._set_up()
        except BaseException:
            await self._close()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._close()

    @property
    def snapshot(self) -> Snapshot:
        """The newest version that was saved: what is replayed starts there."""
        assert self._snapshot is not None, "the engine is not open"
        return self._snapshot

    @property
    def version(self) -> int:
        """The newest version of the weights: where everything starts again from."""
        return self._version

    @property
    def reference_state(self) -> str | None:
        """The state that the reference holds; None for the untouched model."""
        return self._reference_state

    @property
    def server(self) -> SkyrlServer | None:
        """The server that was started here."""
        return self._server

    def from_thread(self, asked: Coroutine[Any, Any, T]) -> T:
        """Let the event loop do something, and wait for it in another thread."""
        return asyncio.run_coroutine_threadsafe(asked, self._loop).result()

    async def attempt(self, work: Callable[[], Awaitable[T]]) -> T:
        """What `work` gives. If the server is lost meanwhile, the engine is set up again at its newest version, and the
        work begins again."""
        while True:
            generation = self.generation
            try:
                result = await work()
            except EngineLostError as error:
                await self._recover(generation, error)
            else:
                self._losses_in_a_row = 0
                return result

    async def score(self, token_ids: Sequence[Sequence[int]], *, reference: bool = False) -> list[tuple[float, ...]]:
        """Of each row the logprobs of all tokens but the first."""
        model = self._reference if reference else self._policy
        assert model is not None
        return await self._asked.forward(model, token_ids)

    async def learn(self, rows: Sequence[ScoredRow], step: AdamStep) -> dict[str, float]:
        """One optimiser step against these gradients. From here until `finish`, JAX can sample nothing."""
        self._moved = True
        told = await self._step(rows, step)
        self._unsaved.append((tuple(rows), step))
        return told

    async def finish(self, version: int) -> None:
        """Make what was learnt the newest version, and hand it to the sampler."""
        await self._hand_over()
        self._learnt += self._unsaved
        self._unsaved.clear()
        self._version = version
        self._moved = False
        await self._tidy()

    async def save(self) -> Snapshot:
        """Save the newest version with its optimiser, unless it is saved. Earlier steps need not be kept then."""
        assert not self._moved, "an update is under way"
        if self._learnt:
            self._snapshot = await self._saved()
            self._learnt.clear()
        return self.snapshot

    async def reload(self) -> None:
        """Undo what was learnt since the newest version."""
        await self._restore()

    async def become(self, version: int, state: str, reference_state: str | None) -> None:
        """Take over a state that was saved, perhaps by a server of before, as this version."""
        self._version, self._snapshot = version, Snapshot(version=version, state=state)
        self._learnt.clear()
        await self._restore()
        await self._hand_over()
        if self._reference is not None and reference_state is not None:
            await self._asked.load_state(self._reference, reference_state)
            self._reference_state = reference_state

    async def open_reference(self) -> None:
        """A second adapter, which stays what it is: at first the untouched model."""
        self._reference = await self._fresh_model()

    async def sync_reference(self) -> None:
        """Let the reference be what the policy is at this moment."""
        assert self._policy is not None
        assert self._reference is not None
        self._reference_state = await self._asked.save_state(self._policy, _new_name("reference"))
        await self._asked.load_state(self._reference, self._reference_state)

    async def publish(self, version: int) -> None:
        """Sample from the newest version from now on."""
        if version != self._version:
            raise UnfitEngineError(
                f"version {version} of the weights is to be sampled from, the engine's newest is "
                f"{self._version}; sampling an older one would undo what was learnt",
                fix="report this: it is a fault in mcprl",
            )
        await self._publish()

    async def sample(
        self, prompt_ids: Sequence[int], *, max_tokens: int, stop_token_ids: Sequence[int], seed: int
    ) -> tuple[Drawn, int]:
        """Draw a turn at temperature 1, and the version of the weights that drew it."""
        version = self._published
        if self._skyrl.backend == "jax" and (self._moved or version != self._version):
            raise UnfitEngineError(
                f"the weights were trained past version {version}: to sample from that version now would load it over "
                "them",
                fix="report this: it is a fault in mcprl",
            )
        drawn = await self._asked.sample(
            self._sampler,
            prompt_ids,
            max_tokens=max_tokens,
            stop_token_ids=stop_token_ids,
            seed=seed & _SEED_MASK,
        )
        return drawn, version

    async def download(self) -> bytes:
        """The adapter of the newest version, as an archive."""
        assert self._policy is not None
        path = await self._asked.save_for_sampler(self._policy, _new_name(f"v{self._version}"))
        return await self._asked.download(path)

    def state_bytes(self) -> int:
        """What a snapshot's state takes of this disk: on a server elsewhere, nothing."""
        return 0 if self._server is None else self._server.state.bytes_of(self.snapshot.state)

    async def keep_only(self, states: Collection[str]) -> None:
        """From now on, of the states saved on a server that was started here, keep these and the newest."""
        self._pinned = frozenset(states)
        await self._tidy()

    @property
    def _asked(self) -> SkyrlClient:
        if self._client is None:
            raise EngineLostError("the engine is gone and was not set up again", fix="start the run again")
        return self._client

    def _scale(self, rows: int) -> Callable[[int], float]:
        """JAX takes the mean over a row's tokens and then over rows; the other backends add up all tokens."""
        if self._skyrl.backend == "jax":
            return lambda scored: float(scored * rows)
        return lambda _: 1.0

    async def _recover(self, generation: int, lost: InfrastructureError) -> None:
        """Set the engine up at its newest version. Of several who ask for the same loss, one does it, and all wait."""
        async with self._recovering:
            while generation == self.generation:
                self._losses_in_a_row += 1
                if self._losses_in_a_row > _MAX_RESTARTS:
                    raise EngineLostError(
                        f"the engine was lost {self._losses_in_a_row} times in a row, last: {lost.what}", fix=lost.fix
                    ) from lost
                self._tell(f"{lost.what}; setting the engine up again at version {self._version}")
                try:
                    await self._close()
                    await self._connect()
                    await self._set_up()
                except (EngineLostError, EngineStartError) as error:
                    lost = error
                else:
                    self.generation += 1

    async def _connect(self) -> None:
        skyrl, url, key = self._skyrl, self._skyrl.url, None
        if url is None:
            self._server = await SkyrlServer.start(
                skyrl, model=self._config.model, learner=self._config.learner, folder=self._folder, log=self._log
            )
            url, key = self._server.url, self._server.key
        self._client = await SkyrlClient.connect(
            url,
            key=key,
            hosted=skyrl.backend == "hosted",
            deadline_s=_REQUEST_S,
            ended=self._end_of_server,
        )

    async def _end_of_server(self) -> None:
        if self._server is None:
            await asyncio.Event().wait()  # nobody tells us of its end
        else:
            await self._server.wait()

    async def _set_up(self) -> None:
        """Adapters as the newest version has them, or fresh ones, ready to be trained and sampled from."""
        self._policy = await self._fresh_model()
        if self._snapshot is None:
            self._snapshot = await self._saved()
        else:
            await self._restore()
        await self._hand_over()
        if self._reference is not None:
            self._reference = await self._fresh_model()
            if self._reference_state is not None:
                await self._asked.load_state(self._reference, self._reference_state)
        await self._publish()

    async def _publish(self) -> None:
        self._sampler = await self._asked.open_sampler(self._session)
        self._published = self._version

    async def _fresh_model(self) -> Model:
        config = self._config
        seed = derive_seed(config.seed, "adapter") & _SEED_MASK
        model = await self._asked.create_model(config.model.path, rank=config.learner.lora_rank, seed=seed)
        if self._skyrl.backend == "jax":
            # Its place may be that of an adapter that was forgotten with gradients waiting for a step: make the step,
            # which moves no weights, and take back what it left in the optimiser.
            pristine = await self._asked.save_state(model, _new_name("fresh"))
            await self._asked.optim_step(model, _NO_STEP)
            await self._asked.load_state(model, pristine)
        return model

    async def _step(self, rows: Sequence[ScoredRow], step: AdamStep) -> dict[str, float]:
        assert self._policy is not None
        if rows:
            await self._asked.forward_backward(self._policy, rows, self._scale(len(rows)))
        return await self._asked.optim_step(self._policy, step)

    async def _restore(self) -> None:
        """Let the policy be the newest version: its snapshot, and the steps that were made since."""
        assert self._policy is not None
        self._unsaved.clear()
        await self._asked.load_state(self._policy, self.snapshot.state)
        for rows, step in self._learnt:
            await self._step(rows, step)
        self._moved = False

    async def _saved(self) -> Snapshot:
        assert self._policy is not None
        state = await self._asked.save_state(self._policy, _new_name(f"v{self._version}"))
        return Snapshot(version=self._version, state=state)

    async def _hand_over(self) -> None:
        assert self._policy is not None
        self._session = await self._asked.hand_to_sampler(self._policy)

    async def _tidy(self) -> None:
        """The server never deletes anything by itself."""
        if self._server is None:
            return
        await asyncio.to_thread(self._server.state.prune, older_than_s=_ANSWERS_KEPT_S)
        if self._pinned is not None:
            sampled = await asyncio.to_thread(self._server.state.sampled_in, self._session)
            own = (self.snapshot.state, sampled, *filter(None, [self._reference_state]))
            await asyncio.to_thread(self._server.state.keep_only, {*self._pinned, *own})

    async def _close(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            await client.close()
        server, self._server = self._server, None
        if server is not None:
            await server.stop()


def _new_name(kind: str) -> str:
    """A name that no server has seen: one that it has is refused, and a server may outlive many runs."""
    return f"{kind}-{secrets.token_hex(6)}"
