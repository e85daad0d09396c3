"""A turn is stamped with the version that drew it, also while a newer one is there and not yet published."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mcprl.config import ModelConfig, RunConfig, SamplingConfig, ServersConfig, SkyrlConfig, TasksConfig
from mcprl.errors import UnfitEngineError
from mcprl.samplers.sampler import SampleRequest
from mcprl.samplers.skyrl import SkyrlSampler
from mcprl.skyrl.client import AdamStep, Drawn
from mcprl.skyrl.engine import SkyrlEngine


class Server:
    """Answers as the client does, and remembers what was drawn from."""

    def __init__(self) -> None:
        self.drawn_from: list[str] = []
        self.asked: list[str] = []
        self.handed = 0

    def __getattr__(self, name: str) -> Any:
        async def answer(*arguments: Any, **_: Any) -> Any:
            match name:
                case "open_sampler" | "save_state":
                    self.asked.append(name)
                    return str(arguments[-1])
                case "hand_to_sampler":
                    self.asked.append(name)
                    self.handed += 1
                    return f"session-{self.handed}"
                case "sample":
                    self.drawn_from.append(arguments[0])
                    return Drawn(token_ids=(1,), logprobs=(-0.5,), stopped=True)
                case _:
                    return {}

        return answer


async def engine_on(backend: str) -> tuple[SkyrlEngine, Server]:
    url = None if backend == "jax" else "http://127.0.0.1:1"
    config = RunConfig(
        name="run",
        model=ModelConfig(path="model"),
        tasks=TasksConfig(train=Path("unused.jsonl")),
        servers=ServersConfig(file=Path("unused.json")),
        sampling=SamplingConfig(constrain="off"),
        skyrl=SkyrlConfig.model_validate({"backend": backend, "url": url}),
    )
    engine, server = SkyrlEngine(config, folder=Path("unused"), log=Path("unused")), Server()
    engine._client = server  # pyright: ignore[reportAttributeAccessIssue]
    await engine._set_up()
    await engine.learn([], AdamStep(learning_rate=0.1))
    await engine.finish(1)
    return engine, server


async def draw(engine: SkyrlEngine) -> int:
    return (await engine.sample((1, 2), max_tokens=1, stop=(), temperature=1.0, seed=0))[1]


async def test_until_it_is_published_the_older_version_is_drawn_from_and_named():
    engine, server = await engine_on("fsdp")
    assert await draw(engine) == 0
    await engine.publish(1)
    assert await draw(engine) == 1
    assert server.drawn_from == ["session-1", "session-2"]


async def test_on_jax_a_version_that_is_not_published_is_not_sampled_over():
    engine, server = await engine_on("jax")
    with pytest.raises(UnfitEngineError, match="would overwrite them"):
        await draw(engine)
    assert server.drawn_from == []
    await engine.publish(1)
    assert await draw(engine) == 1


async def test_an_update_hands_weights_over_once_and_only_a_checkpoint_saves_a_state():
    engine, server = await engine_on("fsdp")
    server.asked.clear()
    for version in (2, 3):
        await engine.learn([], AdamStep(learning_rate=0.1))
        await engine.finish(version)
        await engine.publish(version)
    assert server.asked == ["hand_to_sampler", "open_sampler"] * 2
    assert (await engine.save()).startswith("v3-")
    assert await engine.save() == engine.snapshot  # saved already
    assert server.asked[4:] == ["save_state"]


class Asked:
    """An engine that remembers what a sampler asked for."""

    def __init__(self) -> None:
        self.given: dict[str, Any] = {}

    async def attempt(self, work: Any) -> Any:
        return await work()

    async def sample(self, prompt_ids: Any, **given: Any) -> tuple[Drawn, int]:
        self.given = given
        return Drawn(token_ids=(1,), logprobs=(-0.5,), stopped=True), 0


async def test_temperature_seed_and_stop_texts_are_the_servers_to_apply(tiny_qwen3: Path):
    engine: Any = Asked()
    sampler = SkyrlSampler(engine, model=str(tiny_qwen3))
    asked = SampleRequest(
        prompt_ids=(1,), max_tokens=5, temperature=0.7, stop=("</tool_call>",), stop_token_ids=(151645,), seed=8
    )
    await sampler.sample(asked)
    # All stops are texts, because the server refuses a mixture.
    assert engine.given == {"max_tokens": 5, "temperature": 0.7, "seed": 8, "stop": ["</tool_call>", "<|im_end|>"]}
    await sampler.sample(replace(asked, stop=()))
    assert engine.given["stop"] == [151645]
