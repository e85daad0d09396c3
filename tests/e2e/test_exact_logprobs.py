"""Under a grammar the sampler's logprobs are those the learner computes: real vLLM, SmolLM2 in float32, 25 tools.

One vLLM samples everything first; the tests then look at what it returned.
"""
# R8

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from mcp import Client
from shared_vllm import ANSWER_S, MAX_SEQUENCES, SharedVllm
from transformers import AutoModelForCausalLM

from mcprl.chat import Chat, load_chat
from mcprl.config import LearnerConfig, ModelConfig
from mcprl.errors import GrammarError, InadmissibleTokenError, McprlError
from mcprl.grammar.calls import make_grammar
from mcprl.grammar.masks import Grammars, load_grammars
from mcprl.learning.attention import TREE_ATTENTION, lay_out_tree
from mcprl.learning.packing import Policy, Replayer, make_pack, plain_examples
from mcprl.records import FinishReason, StopReason, Trajectory, Turn
from mcprl.samplers import Completion, SampleRequest
from mcprl.samplers.transformers import TransformersSampler
from mcprl.samplers.vllm import VllmSampler
from mcprl.servers import make_server

pytestmark = [pytest.mark.process, pytest.mark.timeout(900)]

SERVERS = ("fmp", "polygon", "tavily", "python", "slack")
TEMPERATURES = (1.0, 0.7)
TURNS = {1.0: 20, 0.7: 26}  # of each mode; the colder, the shorter
QUESTIONS = ("What does Sony cost?", "Find news about Nokia.", "Post 'done' to #research.", "And Nvidia?")
STOPS = {"act": (), "calls": ("</tool_call>",)}
END_OF_TEXT = 0  # a stop beside the <|im_end|> that the model's own files name
OPENING, CLOSING = 1, 3  # tokens that a grammar names: <|im_start|> and <repo_name>


def tag(content: dict) -> str:
    return json.dumps({"type": "structural_tag", "format": content})


def const(text: str) -> dict:
    return {"type": "const_string", "value": text}


@dataclass
class Sampled:
    """What vLLM answered."""

    turns: list[tuple[SampleRequest, Completion]] = field(default_factory=list)
    own_grammars: list[tuple[SampleRequest, Completion]] = field(default_factory=list)
    marked: list[tuple[SampleRequest, Completion]] = field(default_factory=list)
    refusals: dict[str, McprlError | None] = field(default_factory=dict)


@pytest.fixture(scope="module")
def model(shared_vllm) -> ModelConfig:
    return shared_vllm.model


@pytest.fixture(scope="module")
def chat(model) -> Chat:
    return load_chat(model.path, model.renderer)


@pytest.fixture(scope="module")
def grammars(model) -> Grammars:
    return load_grammars(model.path)


@pytest.fixture(scope="module")
def policy(model):
    return AutoModelForCausalLM.from_pretrained(model.path, dtype=torch.float32).eval()


async def market_tools() -> list[dict]:
    """The tools of the offline market, as a chat sees them."""
    tools = []
    for name in SERVERS:
        async with Client(make_server(name, world=7)) as client:
            tools += [
                {"name": tool.name, "description": tool.description, "parameters": tool.input_schema}
                for tool in (await client.list_tools()).tools
            ]
    return tools


def opening(chat: Chat, question: str) -> tuple[int, ...]:
    """A short prompt. That a call was made before makes the model likely to make another."""
    call = '<tool_call>\n{"name": "fmp_get_quote", "arguments": {"symbol": "AAPL"}}\n</tool_call>'
    return chat.open(
        [
            {"role": "user", "content": "What does Apple cost?"},
            {"role": "assistant", "content": call},
            {"role": "tool", "content": "189.30", "name": "fmp_get_quote"},
            {"role": "user", "content": question},
        ],
        [],
    )


def requests(chat: Chat, tools: Sequence[dict]) -> list[SampleRequest]:
    modes = [(temperature, mode) for temperature in TEMPERATURES for mode in STOPS]
    return [
        SampleRequest(
            prompt_ids=opening(chat, QUESTIONS[number % len(QUESTIONS)]),
            max_tokens=96,
            temperature=temperature,
            stop=STOPS[mode],
            stop_token_ids=(*chat.stop_token_ids, END_OF_TEXT),
            seed=len(modes) * number + place,
            grammar=make_grammar(chat, tools, mode, stop=STOPS[mode]),
        )
        for place, (temperature, mode) in enumerate(modes)
        for number in range(TURNS[temperature])
    ]


def distinct_grammars(request: SampleRequest) -> list[SampleRequest]:
    """As many grammars as requests, each a choice of two numbers."""
    return [
        replace(
            request,
            max_tokens=12,
            seed=number,
            grammar=tag({"type": "or", "elements": [const(f"{number}"), const(f"{number + 1}")]}),
        )
        for number in range(24)
    ]


def marked_grammar(request: SampleRequest) -> SampleRequest:
    """A choice between a marker token and text, then a JSON value, closed by another marker."""
    begin = {"type": "or", "elements": [{"type": "token", "token": OPENING}, const("call: ")]}
    value = {"type": "json_schema", "json_schema": {"type": "array", "items": {"enum": ["one", "two"]}, "maxItems": 3}}
    close = {"type": "tag", "begin": "", "content": value, "end": {"type": "token", "token": CLOSING}}
    return replace(request, grammar=tag({"type": "sequence", "elements": [begin, close]}))


async def collect(vllm: SharedVllm, chat: Chat, log: Path) -> Sampled:
    found = Sampled()
    tools = await market_tools()
    assert len(tools) == 25
    asked = requests(chat, tools)
    async with VllmSampler(
        vllm.model, vllm.sampling, LearnerConfig(), max_sequences=MAX_SEQUENCES, turn_deadline_s=ANSWER_S, log=log
    ) as sampler:

        async def answers(to: list[SampleRequest]) -> list[tuple[SampleRequest, Completion]]:
            return list(zip(to, await asyncio.gather(*(sampler.sample(request) for request in to)), strict=True))

        async def refusal(request: SampleRequest) -> McprlError | None:
            try:
                await sampler.sample(request)
            except McprlError as error:
                return error
            return None

        found.turns = await answers(asked)
        found.own_grammars = await answers(distinct_grammars(asked[0]))
        found.marked = await answers([replace(marked_grammar(asked[0]), seed=n) for n in range(4)])
        found.refusals["no grammar"] = await refusal(replace(asked[0], grammar='{"type": "structural_tag"}'))
        deep: dict = {"type": "string"}
        for _ in range(90):
            deep = {"type": "array", "items": deep}
        found.refusals["too deep"] = await refusal(
            replace(asked[0], grammar=tag({"type": "json_schema", "json_schema": deep}))
        )
        short = replace(asked[0], grammar=tag(const("Yes.")), stop_token_ids=(END_OF_TEXT,))
        found.refusals["other stops"] = await refusal(short)
    return found


@pytest.fixture(scope="module")
def sampled(shared_vllm, chat, tmp_path_factory) -> Sampled:
    with shared_vllm.lent():
        return asyncio.run(collect(shared_vllm, chat, tmp_path_factory.mktemp("vllm") / "vllm.log"))


@dataclass
class Scored:
    """|Δlogprob| of the tokens of a turn between vLLM and a plain forward pass."""

    request: SampleRequest
    done: Completion
    error: np.ndarray
    error_not_renormalised: np.ndarray
    forced: tuple[bool, ...]


class Scorer:
    """Scores turns by the formula: the logit of a token over those of all that were admissible, in double precision."""

    def __init__(self, policy, grammars: Grammars) -> None:
        self._policy = policy
        self._grammars = grammars
        self._prompts: dict[tuple[int, ...], tuple] = {}

    @torch.inference_mode()
    def logits(self, prompt_ids: tuple[int, ...], ids: tuple[int, ...]) -> torch.Tensor:
        """Those that each token was drawn from. The turns share few prompts, which are read once."""
        if prompt_ids not in self._prompts:
            read = self._policy(input_ids=torch.tensor([prompt_ids]), use_cache=True, logits_to_keep=1)
            self._prompts[prompt_ids] = (read.past_key_values, read.logits[0])
        cache, first = self._prompts[prompt_ids]
        rest = self._policy(input_ids=torch.tensor([ids]), past_key_values=cache, use_cache=True).logits[0]
        cache.crop(-len(ids))
        return torch.cat([first, rest[:-1]]).double()

    def score(self, request: SampleRequest, done: Completion) -> Scored:
        scaled = self.logits(request.prompt_ids, done.token_ids) / request.temperature
        chosen = scaled[torch.arange(len(scaled)), torch.tensor(done.token_ids)]
        over_all = chosen - torch.logsumexp(scaled, dim=1)
        replay = self._grammars.replay(request.grammar, request.stop_token_ids, done.token_ids)
        bits = np.unpackbits(replay.admissible.numpy().view(np.uint8), axis=1, bitorder="little")
        scaled[torch.from_numpy(bits[:, : scaled.shape[1]] == 0)] = -math.inf
        over_admissible = chosen - torch.logsumexp(scaled, dim=1)
        sampled = np.array(done.logprobs)
        return Scored(
            request,
            done,
            error=np.abs(sampled - over_admissible.numpy()),
            error_not_renormalised=np.abs(sampled - over_all.numpy()),
            forced=replay.forced,
        )


@pytest.fixture(scope="module")
def scorer(policy, grammars) -> Scorer:
    return Scorer(policy, grammars)


@pytest.fixture(scope="module")
def scored(sampled, scorer) -> list[Scored]:
    return [scorer.score(request, done) for request, done in sampled.turns]


@pytest.mark.parametrize("temperature", TEMPERATURES)
def test_renormalised_over_what_the_grammar_admits_the_logprobs_agree_and_otherwise_they_do_not(
    scored, chat, temperature, record_property
):
    turns = [turn for turn in scored if turn.request.temperature == temperature]
    exact = np.concatenate([turn.error for turn in turns])
    naive = np.concatenate([turn.error_not_renormalised for turn in turns])
    figures = {
        "tokens": len(exact),
        "ended": sum(turn.done.finish is FinishReason.STOP for turn in turns),
        "with_calls": sum("<tool_call>" in chat.decode(turn.done.token_ids) for turn in turns),
        "max_error": float(exact.max()),
        "mean_error": float(exact.mean()),
        "max_error_not_renormalised": float(naive.max()),
        "mean_error_not_renormalised": float(naive.mean()),
    }
    for name, figure in figures.items():
        record_property(name, figure)
    assert figures["tokens"] >= 2000
    assert figures["ended"] >= 5  # a stop that one side admits and the other does not would show there
    assert figures["with_calls"] >= 5
    assert figures["max_error"] <= 1e-3
    assert figures["mean_error"] <= 5e-5
    assert figures["max_error_not_renormalised"] > 1.0


def trajectory_of(request: SampleRequest, done: Completion, grammars: Grammars) -> Trajectory:
    """A turn as an episode would record it."""
    replay = grammars.replay(request.grammar, request.stop_token_ids, done.token_ids)
    context, own = len(request.prompt_ids), len(done.token_ids)
    return Trajectory(
        task_id="exact",
        step=0,
        member=0,
        attempt=0,
        temperature=request.temperature,
        token_ids=request.prompt_ids + done.token_ids,
        sampled=(False,) * context + (True,) * own,
        forced=(False,) * context + replay.forced,
        fixed=(False,) * context + replay.fixed,
        logprobs=(0.0,) * context + done.logprobs,
        turn_index=(-1,) * context + (0,) * own,
        weights_version=(-1,) * context + (0,) * own,
        turns=(Turn(text="", sampled_ids=done.token_ids, finish=done.finish, weights_version=0),),
        stop=StopReason.ANSWERED,
        reward=0.0,
        reward_parts={},
        grammar=request.grammar,
        stop_token_ids=request.stop_token_ids,
    )


def test_the_learner_scores_the_same_tokens_the_same(sampled, model, grammars, record_property):
    trajectories = [trajectory_of(request, done, grammars) for request, done in sampled.turns[::2]]
    shared = AutoModelForCausalLM.from_pretrained(
        model.path, dtype=torch.float32, attn_implementation=TREE_ATTENTION
    ).eval()
    learner = Policy(shared, critic=False, entropy_gradient=False)
    errors = []
    for start in range(0, len(trajectories), 4):
        part = trajectories[start : start + 4]
        own = [t.sampled for t in part]
        layout = lay_out_tree([t.token_ids for t in part], torch.device("cpu"))
        admissible = Replayer(grammars).admissible(part, own)
        pack = make_pack(plain_examples(part, own), layout, admissible, torch.device("cpu"))
        sampled_N = torch.tensor([p for t in part for p, s in zip(t.logprobs, t.sampled, strict=True) if s])
        with torch.inference_mode():
            errors.append((learner(pack).logprob_N - sampled_N).abs())
    error_N = torch.cat(errors)
    own = sum(sum(t.sampled) for t in trajectories)
    figures = {
        "tokens": len(error_N),
        "max_error": float(error_N.max()),
        "mean_error": float(error_N.mean()),
        "forced_share": sum(sum(t.forced) for t in trajectories) / own,
        "fixed_text_share": sum(sum(t.fixed) for t in trajectories) / own,
    }
    for name, figure in figures.items():
        record_property(name, figure)
    assert figures["tokens"] >= 2000
    assert figures["max_error"] <= 1e-3
    assert figures["mean_error"] <= 5e-5
    assert figures["forced_share"] > 0
    assert figures["fixed_text_share"] > 0


def test_a_stop_text_ends_a_turn_with_the_token_that_completes_it(sampled, chat):
    ended = [
        (chat.decode(done.token_ids), chat.decode(done.token_ids[:-1]))
        for request, done in sampled.turns
        if done.finish is FinishReason.STOP and done.token_ids[-1] not in request.stop_token_ids
    ]
    assert len(ended) >= 3
    assert all("</tool_call>" in whole and "</tool_call>" not in before for whole, before in ended)


def test_a_forced_token_has_logprob_0(scored):
    columns = [pair for turn in scored for pair in zip(turn.done.logprobs, turn.forced, strict=True)]
    forced = [logprob for logprob, one in columns if one]
    assert len(forced) > 20
    assert set(forced) == {0.0}


async def test_the_transformers_sampler_gives_the_ids_of_vllm_the_same_logprobs(scored, model, grammars, monkeypatch):
    async with TransformersSampler(model, grammars) as sampler:
        for temperature in TEMPERATURES:
            turn = next(turn for turn in scored if turn.request.temperature == temperature and any(turn.forced))
            request, done = turn.request, turn.done
            drawn = iter(done.token_ids)
            monkeypatch.setattr(torch, "multinomial", lambda *_args, drawn=drawn, **_options: next(drawn))
            again = await sampler.sample(replace(request, max_tokens=len(done.token_ids)))
            assert again.token_ids == done.token_ids
            assert again.logprobs == pytest.approx(done.logprobs, abs=1e-3)


def test_each_request_has_a_grammar_of_its_own(sampled, chat, scorer):
    for number, (request, done) in enumerate(sampled.own_grammars):
        assert done.token_ids[-1] in request.stop_token_ids
        assert chat.decode(done.token_ids[:-1]) in {f"{number}", f"{number + 1}"}
        assert scorer.score(request, done).error.max() <= 1e-3


def test_where_a_grammar_names_tokens_the_logprobs_agree_too(sampled, scorer):
    for request, done in sampled.marked:
        assert scorer.score(request, done).error.max() <= 1e-3
        assert CLOSING in done.token_ids


def test_what_cannot_be_sampled_as_asked_is_the_configurations_fault(sampled):
    assert isinstance(sampled.refusals["no grammar"], GrammarError)
    assert isinstance(sampled.refusals["too deep"], GrammarError)
    # vLLM always adds the model's own end of text to the stops that it is given.
    assert isinstance(sampled.refusals["other stops"], InadmissibleTokenError)
