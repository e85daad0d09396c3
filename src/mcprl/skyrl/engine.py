"""The SkyRL engine of a run: one adapter behind the Tinker API for training and sampling, restored if it is lost.

Everything on the server can be lost: the server may be killed, or drop a session. The weights and the optimizer are
saved there when the run saves a checkpoint, but not after each update, because with FSDP a save writes the whole model.
So this process keeps the gradients of all updates since the last save. A new server gets the saved state, then the same
gradients in the same order. Then the interrupted requests are repeated.

On JAX, the sampler loads its weights into the same adapter that is trained. If the trained weights were not yet handed
to the sampler, sampling would overwrite them without an error, so the engine then refuses to sample.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Collection, Coroutine, Sequence
from pathlib import Path
from typing import Any, TypeVar

from mcprl.config import RunConfig
from mcprl.errors import EngineLostError, EngineStartError, InfrastructureError, UnfitEngineError
from mcprl.seeds import derive_seed
from mcprl.skyrl.client import AdamStep, Drawn, Model, ScoredRow, SkyrlClient
from mcprl.skyrl.server import SkyrlServer

T = TypeVar("T")

# How long responses are kept, so that they can be fetched again.
_ANSWERS_KEPT_S = 900.0
_REQUEST_S = 1800.0  # the first request compiles the model
_MAX_RESTARTS = 3  # maximum number of restarts in a row without a completed request
# A step that changes no weights. It clears the gradients on JAX.
_NO_STEP = AdamStep(learning_rate=0.0)
# Larger seeds do not fit JAX's integer type.
_SEED_MASK = 0x7FFFFFFF


_Step = tuple[tuple[ScoredRow, ...], AdamStep]


class SkyrlEngine:
    """A run's adapter on a server, at version 0 on entry. On exit, its processes end. `folder` holds their files."""

    def __init__(
        self, config: RunConfig, *, folder: Path, log: Path, tell: Callable[[str], None] = lambda _: None
    ) -> None:
        """`tell` is called with a message whenever the server is lost."""
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
        self._snapshot: str | None = None
        self._version = 0
        self._learnt: list[_Step] = []  # steps from the snapshot to the newest version
        self._unsaved: list[_Step] = []  # steps since the newest version
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

    async def __aexit__(self, *_: object) -> None:
        await self._close()

    @property
    def snapshot(self) -> str:
        """The path of the newest saved weights and optimizer, such as "tinker://model_1a2b/weights/v3-9f0c". Recovery
        loads them and repeats the later steps."""
        assert self._snapshot is not None, "the engine is not open"
        return self._snapshot

    @property
    def version(self) -> int:
        """The newest version of the weights, which recovery restores."""
        return self._version

    @property
    def reference_state(self) -> str | None:
        """The saved state of the reference policy; None if it is the base model."""
        return self._reference_state

    @property
    def server(self) -> SkyrlServer | None:
        """The server that this process started, if any."""
        return self._server

    def from_thread(self, asked: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine in the event loop, and return its result. Must be called from another thread."""
        return asyncio.run_coroutine_threadsafe(asked, self._loop).result()

    async def attempt(self, work: Callable[[], Awaitable[T]]) -> T:
        """Return the result of `work`. If the server is lost, restore the engine and run `work` again."""
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
        """Return, for each row, the logprobs of all tokens except the first."""
        model = self._reference if reference else self._policy
        assert model is not None
        return await self._asked.forward(model, token_ids)

    async def learn(self, rows: Sequence[ScoredRow], step: AdamStep) -> dict[str, float]:
        """Take one optimizer step with these gradients. After this, JAX cannot sample until `finish` is called."""
        self._moved = True
        told = await self._step(rows, step)
        self._unsaved.append((tuple(rows), step))
        return told

    async def finish(self, version: int) -> None:
        """Make the trained weights the newest version, and hand them to the sampler."""
        await self._hand_over()
        self._learnt += self._unsaved
        self._unsaved.clear()
        self._version = version
        self._moved = False
        await self._tidy()

    async def save(self) -> str:
        """Save the newest version with its optimizer, if it is not saved yet, and forget its steps. Return its path."""
        assert not self._moved, "an update is under way"
        if self._learnt:
            self._snapshot = await self._saved()
            self._learnt.clear()
        return self.snapshot

    async def reload(self) -> None:
        """Undo the steps since the newest version."""
        await self._restore()

    async def become(self, version: int, state: str, reference_state: str | None) -> None:
        """Load a saved state, as version `version`. The state may have been saved by an earlier server."""
        self._version, self._snapshot = version, state
        self._learnt.clear()
        await self._restore()
        await self._hand_over()
        if self._reference is not None and reference_state is not None:
            await self._asked.load_state(self._reference, reference_state)
            self._reference_state = reference_state

    async def open_reference(self) -> None:
        """Create an adapter for the reference policy. It is not trained, and at first changes nothing in the output."""
        self._reference = await self._fresh_model()

    async def sync_reference(self) -> None:
        """Set the reference to the current policy."""
        assert self._policy is not None
        assert self._reference is not None
        self._reference_state = await self._asked.save_state(self._policy, _new_name("reference"))
        await self._asked.load_state(self._reference, self._reference_state)

    async def publish(self, version: int) -> None:
        """Use the newest version for sampling from now on."""
        if version != self._version:
            raise UnfitEngineError(
                f"version {version} of the weights was requested for sampling, but the engine's newest version is "
                f"{self._version}; sampling from an older version would undo training",
                fix="report this bug in mcprl",
            )
        await self._publish()

    async def sample(
        self,
        prompt_ids: Sequence[int],
        *,
        max_tokens: int,
        stop: Sequence[int] | Sequence[str],
        temperature: float,
        seed: int,
    ) -> tuple[Drawn, int]:
        """Sample a turn. Return it with the version of the weights that sampled it."""
        version = self._published
        if self._skyrl.backend == "jax" and (self._moved or version != self._version):
            raise UnfitEngineError(
                f"the weights were trained beyond version {version}, and sampling from it now would overwrite them",
                fix="report this bug in mcprl",
            )
        drawn = await self._asked.sample(
            self._sampler, prompt_ids, max_tokens=max_tokens, stop=stop, temperature=temperature, seed=seed & _SEED_MASK
        )
        return drawn, version

    async def download(self) -> bytes:
        """Download the adapter of the newest version as an archive."""
        assert self._policy is not None
        path = await self._asked.save_for_sampler(self._policy, _new_name(f"v{self._version}"))
        return await self._asked.download(path)

    def state_bytes(self) -> int:
        """Return the size of the snapshot in bytes, or 0 if the server is remote."""
        return 0 if self._server is None else self._server.state.bytes_of(self.snapshot)

    async def keep_only(self, states: Collection[str]) -> None:
        """Delete all saved states except these and the newest, if this process started the server."""
        self._pinned = frozenset(states)
        await self._tidy()

    @property
    def _asked(self) -> SkyrlClient:
        if self._client is None:
            raise EngineLostError("the engine was lost and could not be restored", fix="resume the run")
        return self._client

    def _scale(self, rows: int) -> Callable[[int], float]:
        """Return a function from a row's number of scored tokens to the factor that undoes the backend's averaging.

        JAX averages over a row's tokens and then over rows; the other backends sum over all tokens.
        """
        if self._skyrl.backend == "jax":
            return lambda scored: float(scored * rows)
        return lambda _: 1.0

    async def _recover(self, generation: int, lost: InfrastructureError) -> None:
        """Restore the engine at its newest version. Callers that notice the same loss share one recovery."""
        async with self._recovering:
            while generation == self.generation:
                self._losses_in_a_row += 1
                if self._losses_in_a_row > _MAX_RESTARTS:
                    raise EngineLostError(
                        f"the engine was lost {self._losses_in_a_row} times in a row, most recently because "
                        f"{lost.what}",
                        fix=lost.fix,
                    ) from lost
                self._tell(f"{lost.what}; restoring the engine at version {self._version}")
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
            url, key=key, hosted=skyrl.backend == "hosted", deadline_s=_REQUEST_S, ended=self._end_of_server
        )

    async def _end_of_server(self) -> None:
        if self._server is None:
            await asyncio.Event().wait()  # the end of a remote server cannot be observed
        else:
            await self._server.wait()

    async def _set_up(self) -> None:
        """Create the adapters, and restore the newest version if one was saved. Then open a sampler."""
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
            # The adapter's slot may have pending gradients of an earlier, dropped adapter. Apply them with a step that
            # changes no weights, then reset the optimizer.
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
        """Set the policy to the newest version: load its snapshot and repeat the later steps."""
        assert self._policy is not None
        self._unsaved.clear()
        await self._asked.load_state(self._policy, self.snapshot)
        for rows, step in self._learnt:
            await self._step(rows, step)
        self._moved = False

    async def _saved(self) -> str:
        assert self._policy is not None
        return await self._asked.save_state(self._policy, _new_name(f"v{self._version}"))

    async def _hand_over(self) -> None:
        assert self._policy is not None
        self._session = await self._asked.hand_to_sampler(self._policy)

    async def _tidy(self) -> None:
        """Delete old data. The server never deletes it on its own."""
        if self._server is None:
            return
        await asyncio.to_thread(self._server.state.prune, older_than_s=_ANSWERS_KEPT_S)
        if self._pinned is not None:
            sampled = await asyncio.to_thread(self._server.state.sampled_in, self._session)
            own = (self.snapshot, sampled, *filter(None, [self._reference_state]))
            await asyncio.to_thread(self._server.state.keep_only, {*self._pinned, *own})

    async def _close(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            await client.close()
        server, self._server = self._server, None
        if server is not None:
            await server.stop()


def _new_name(kind: str) -> str:
    """Return a name that is new to the server. The server rejects names in use, and may outlive many runs."""
    return f"{kind}-{secrets.token_hex(6)}"
