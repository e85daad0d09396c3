"""The SkyRL engine of a run: one adapter behind the Tinker API, trained and sampled from, and set up again when lost.

All that the server holds can be lost: it is killed, or forgets a session. So after each update the weights and the
optimiser are saved there as a snapshot, and whoever was asking starts again from that. On JAX, what is sampled from is
loaded into the very adapter that is trained: weights that were not saved would be gone, and no error would say so. The
engine refuses to.
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
# A step that moves nothing, by which JAX forgets gradients.
_NO_STEP = AdamStep(learning_rate=0.0)
# Larger seeds do not fit into what JAX takes them for.
_SEED_MASK = 0x7FFFFFFF


def _nobody(_: str) -> None:
    pass


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """A version of the weights on the server: with the optimiser, to train on from; and alone, to sample from.

    Snapshot(version=3, state="tinker://model_1a2b/weights/v3-9f0c", sampler="tinker://model_1a2b/v3-9f0c")
    """

    version: int
    state: str
    sampler: str


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
        """The newest version that was saved: where everything starts again from."""
        assert self._snapshot is not None, "the engine is not open"
        return self._snapshot

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
        """What `work` gives. Where the server is lost meanwhile, the engine is set up again at its snapshot, and so is
        the work begun."""
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
        """One optimiser step against these gradients. From here until `save`, JAX can sample nothing."""
        assert self._policy is not None
        self._moved = True
        if rows:
            await self._asked.forward_backward(self._policy, rows, self._scale(len(rows)))
        return await self._asked.optim_step(self._policy, step)

    async def save(self, version: int) -> Snapshot:
        """Make what was learnt the newest snapshot."""
        self._snapshot = await self._save(version)
        self._moved = False
        await self._tidy()
        return self._snapshot

    async def reload(self) -> None:
        """Undo what was learnt since the newest snapshot."""
        assert self._policy is not None
        await self._asked.load_state(self._policy, self.snapshot.state)
        self._moved = False

    async def become(self, version: int, state: str, reference_state: str | None) -> None:
        """Take over a state that was saved, perhaps by a server of before, as this version."""
        assert self._policy is not None
        await self._asked.load_state(self._policy, state)
        self._snapshot = await self._save(version)
        self._moved = False
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
        """Sample from the newest snapshot from now on."""
        if version != self.snapshot.version:
            raise UnfitEngineError(
                f"version {version} of the weights is to be sampled from, the engine's newest is "
                f"{self.snapshot.version}; sampling an older one would undo what was learnt",
                fix="report this: it is a fault in mcprl",
            )
        await self._publish()

    async def sample(
        self, prompt_ids: Sequence[int], *, max_tokens: int, stop_token_ids: Sequence[int], seed: int
    ) -> tuple[Drawn, int]:
        """Draw a turn at temperature 1, and the version of the weights that drew it."""
        version = self._published
        if self._skyrl.backend == "jax" and (self._moved or version != self.snapshot.version):
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
        """The adapter of the newest snapshot, as an archive."""
        return await self._asked.download(self.snapshot.sampler)

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
        """Set the engine up at its snapshot. Of several who ask for the same loss, one does it, and all wait."""
        async with self._recovering:
            while generation == self.generation:
                self._losses_in_a_row += 1
                if self._losses_in_a_row > self._skyrl.max_restarts:
                    raise EngineLostError(
                        f"the engine was lost {self._losses_in_a_row} times in a row, last: {lost.what}", fix=lost.fix
                    ) from lost
                self._tell(f"{lost.what}; setting the engine up again at version {self.snapshot.version}")
                try:
                    await self._close()
                    await self._connect()
                    await self._set_up()
                except (EngineLostError, EngineStartError) as error:
                    lost = error
                else:
                    self.generation += 1

    async def _connect(self) -> None:
        skyrl, url = self._skyrl, self._skyrl.url
        if url is None:
            self._server = await SkyrlServer.start(
                skyrl, model=self._config.model, learner=self._config.learner, folder=self._folder, log=self._log
            )
            url = self._server.url
        self._client = await SkyrlClient.connect(
            url, hosted=skyrl.backend == "hosted", deadline_s=skyrl.request_deadline_s, ended=self._end_of_server
        )

    async def _end_of_server(self) -> None:
        if self._server is None:
            await asyncio.Event().wait()  # nobody tells us of its end
        else:
            await self._server.wait()

    async def _set_up(self) -> None:
        """Adapters as the newest snapshot has them, or fresh ones, ready to be trained and sampled from."""
        last = self._snapshot
        self._policy = await self._fresh_model()
        if last is not None:
            await self._asked.load_state(self._policy, last.state)
        self._snapshot = await self._save(0 if last is None else last.version)
        self._moved = False
        if self._reference is not None:
            self._reference = await self._fresh_model()
            if self._reference_state is not None:
                await self._asked.load_state(self._reference, self._reference_state)
        await self._publish()

    async def _publish(self) -> None:
        self._sampler = await self._asked.open_sampler(self.snapshot.sampler)
        self._published = self.snapshot.version

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

    async def _save(self, version: int) -> Snapshot:
        assert self._policy is not None
        name = _new_name(f"v{version}")
        state = await self._asked.save_state(self._policy, name)
        return Snapshot(version=version, state=state, sampler=await self._asked.save_for_sampler(self._policy, name))

    async def _tidy(self) -> None:
        """The server never deletes anything by itself."""
        if self._server is None:
            return
        await asyncio.to_thread(self._server.state.prune, older_than_s=_ANSWERS_KEPT_S)
        if self._pinned is not None:
            own = (self.snapshot.state, self.snapshot.sampler, *filter(None, [self._reference_state]))
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
