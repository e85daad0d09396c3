"""A model behind a scripted endpoint plays tasks: real formats, every kind of fault, limits of money and length."""
# R19

from __future__ import annotations

import asyncio
import dataclasses
import json
from contextlib import asynccontextmanager

import pytest
from staged_episodes import FunctionTools, make_config, make_task

from mcprl.config import RewardFunctionConfig, RewardsConfig
from mcprl.episodes import endpoint_runner
from mcprl.episodes.endpoint import EndpointSettings
from mcprl.episodes.endpoint_runner import EndpointRunner, make_client
from mcprl.episodes.reward_functions import RewardFunctions
from mcprl.errors import BadValueError, BudgetExceededError, Fault, MissingKeyError, SamplerLostError, UserCodeError
from mcprl.evaluation.outcomes import Judged, outcome_of
from mcprl.goals import ExpectedCall
from mcprl.records import Batch, Group, StopReason
from mcprl.runs.trajectories import decode_trajectory, encode_trajectory, read_trajectories, write_trajectories
from scripted_endpoint import endpoint, response

KEY = "sk-player-3f9a77c1d2e84b60"
PREAMBLE = ({"role": "system", "content": "Use the tools."},)


def call(name: str, arguments: object, call_id: str | None = "call_a") -> dict:
    written = arguments if isinstance(arguments, str) else json.dumps(arguments)
    entry = {"type": "function", "function": {"name": name, "arguments": written}}
    return entry if call_id is None else {"id": call_id, **entry}


def turn(text: str | None = None, *calls: dict, usage: tuple[int, int] = (50, 5), finish: str = "stop") -> bytes:
    message = {"role": "assistant", "content": text, "refusal": None, **({"tool_calls": calls} if calls else {})}
    counts = {"prompt_tokens": usage[0], "completion_tokens": usage[1], "total_tokens": sum(usage)}
    choice = {"index": 0, "message": message, "finish_reason": finish}
    return response("200 OK", json.dumps({"object": "chat.completion", "choices": [choice], "usage": counts}))


@pytest.fixture(autouse=True)
def no_waits(monkeypatch):
    monkeypatch.setattr(endpoint_runner, "_WAITS_S", (0.0, 0.0))


@asynccontextmanager
async def playing(*answers: bytes | None, tools=None, config=None, keys=None, functions=None, **settings):
    """A runner whose endpoint gives these answers, the last one for ever; and the endpoint."""
    async with endpoint(lambda number: answers[min(number, len(answers) - 1)]) as served:
        wanted = EndpointSettings(url=served.url, model="big", **settings)
        async with make_client(wanted, keys or {}) as client:
            leases, config = tools or FunctionTools(echo=lambda text: text), config or make_config()
            others = {"leases": leases, "preamble": PREAMBLE, "functions": functions}
            yield EndpointRunner(config, settings=wanted, client=client, **others), served, client.use


async def play(runner: EndpointRunner, **task):
    return await runner.run(make_task(**task), step=0, member=0, attempt=0)


async def test_tool_calls_run_through_the_lease_and_are_scored():
    expected = [ExpectedCall(tool="echo", arguments={"text": "blue"})]
    async with playing(turn(None, call("echo", {"text": "blue"})), turn("It is blue.", usage=(70, 6))) as (
        runner,
        at,
        use,
    ):
        trajectory = await play(runner, answer="blue", calls=expected)
    assert trajectory.stop is StopReason.ANSWERED
    assert {name: trajectory.reward_parts[name] for name in ("answer", "calls", "arguments")} == {
        "answer": 1.0,
        "calls": 1.0,
        "arguments": 1.0,
    }
    [first, second] = [body for _, body in at.requests]
    assert (first["model"], first["temperature"], first["max_tokens"]) == ("big", 0.7, 200)
    assert [message["role"] for message in first["messages"]] == ["system", "user"]
    assert [tool["function"]["name"] for tool in first["tools"]] == ["echo"]
    assert second["messages"][2:] == [
        {"role": "assistant", "content": "", "tool_calls": [call("echo", {"text": "blue"})]},
        {"role": "tool", "tool_call_id": "call_a", "content": "blue"},
    ]
    assert (use.requests, use.prompt_tokens, use.completion_tokens, use.usd) == (2, 120, 11, None)


async def test_tokens_are_the_endpoints_counts_each_read_once(tmp_path):
    async with playing(turn(None, call("echo", {"text": "x"})), turn("x", usage=(70, 6))) as (runner, _, _):
        trajectory = await play(runner, answer="x")
    outcome = outcome_of(make_task(answer="x"), trajectory, Judged(success=True))
    assert (outcome.prompt_tokens, outcome.sampled_tokens) == (65, 11)  # of 70 read last, the policy wrote 5
    assert decode_trajectory(encode_trajectory(trajectory)) == trajectory
    write_trajectories(tmp_path / "t.parquet", [trajectory])
    assert read_trajectories(tmp_path / "t.parquet") == [trajectory]


async def test_an_episode_of_an_endpoint_cannot_enter_an_update():
    async with playing(turn("x")) as (runner, _, _):
        first = await play(runner)
    assert first.token_ids == ()
    group = Group(task=make_task(), trajectories=(first, dataclasses.replace(first, member=1)))
    with pytest.raises(ValueError, match="cannot be trained on"):
        Batch(step=0, groups=(group,), learnable=((), ()), advantages=((), ()))
    with pytest.raises(ValueError, match="cannot be trained on"):
        Batch(step=0, groups=(), learnable=(), advantages=(), demonstrations=(first,), demonstration_weight=1.0)


@pytest.mark.parametrize(
    ("written", "said"),
    [
        (call("echo", '{"text": '), "the arguments are not JSON"),
        (call("echo", "[1]"), "the arguments are not an object"),
        (call("echo", '{"text": NaN}'), "NaN is not a JSON number"),
        (call("ecko?", {}), "There is no tool 'ecko?'"),
        (call("", {}), "the call does not name a tool"),
        (call("echo", {}, call_id=None), "x"),
    ],
)
async def test_a_call_that_cannot_be_made_is_the_policys_fault_and_is_answered(written, said):
    tools = FunctionTools(echo=lambda text="x": text)
    async with playing(turn(None, written), turn("Sorry."), tools=tools) as (runner, at, _):
        trajectory = await play(runner)
    [seen] = trajectory.turns[0].observations
    assert said in seen.text
    assert seen.fault is (None if said == "x" else Fault.POLICY)
    [sent] = at.requests[1][1]["messages"][-2]["tool_calls"]
    assert at.requests[1][1]["messages"][-1] == {"role": "tool", "tool_call_id": sent["id"], "content": seen.text}
    # Endpoints refuse a history with arguments that are not JSON, or with a name of other characters.
    json.loads(sent["function"]["arguments"])
    assert sent["function"]["name"]


async def test_calls_in_the_text_count_for_endpoints_without_a_parser():
    text = 'Let me see.<tool_call>{"name": "echo", "arguments": {"text": "blue"}}</tool_call>'
    async with playing(turn(text), turn("blue")) as (runner, at, _):
        trajectory = await play(runner, answer="blue")
    assert trajectory.turns[0].observations[0].text == "blue"
    sent = at.requests[1][1]["messages"][-2]
    assert (sent["content"], sent["tool_calls"][0]["function"]["name"]) == ("Let me see.", "echo")


async def test_failures_that_pass_cost_nothing():
    slow, broken = response("429 Slow", "", "retry-after: 0.01"), response("500 Oops", "")
    async with playing(slow, broken, turn("x")) as (runner, at, use):
        assert (await play(runner, answer="x")).reward > 0
    assert (len(at.requests), use.requests, use.completion_tokens) == (3, 3, 5)


@pytest.mark.parametrize(
    "answer",
    [
        response("429 Slow", ""),
        response("503 Down", ""),
        turn("x")[:-20],
        None,
        response("200 OK", '{"error": {"message": "upstream"}}'),
        response("200 OK", json.dumps({"choices": [{"message": {"content": "x"}}]})),
    ],
    ids=["429", "503", "cut", "hung up", "no completion", "no usage"],
)
async def test_an_endpoint_that_keeps_failing_loses_the_episode_and_scores_nothing(answer):
    async with playing(answer) as (runner, _, _):
        with pytest.raises(SamplerLostError):
            await play(runner)


@pytest.mark.parametrize("status", ["400 Bad", "401 No", "404 Not Found"])
async def test_a_refusal_stops_the_evaluation_and_names_the_option(status):
    async with playing(response(status, f"no such key {KEY}"), keys={"MY_KEY": KEY}, key_env="MY_KEY") as (
        runner,
        at,
        _,
    ):
        with pytest.raises(
            BadValueError, match=f"answered with {status[:3]}: no such key .*--(key-env|model)"
        ) as caught:
            await play(runner)
    assert KEY not in str(caught.value)
    assert f"authorization: bearer {KEY}" in at.requests[0][0].lower()


def test_only_an_endpoint_on_this_machine_does_without_a_key():
    make_client(EndpointSettings(url="http://127.0.0.1:1/v1", model="m"), {})
    with pytest.raises(MissingKeyError, match="OPENAI_API_KEY is not set"):
        make_client(EndpointSettings(url="https://api.example.com/v1", model="m"), {})


async def test_a_conversation_that_grows_too_long_ends_at_the_context_limit():
    config = make_config(context_tokens=100, max_tokens=60)
    calling = turn(None, call("echo", {"text": "x"}), usage=(40, 5))
    async with playing(calling, turn("x", usage=(101, 3)), config=config) as (runner, at, _):
        trajectory = await play(runner)
    assert (trajectory.stop, len(trajectory.turns)) == (StopReason.CONTEXT_LIMIT, 1)
    assert [body["max_tokens"] for _, body in at.requests] == [60, 55]
    async with playing(turn(None, call("echo", {"text": "x"}), usage=(95, 5)), config=config) as (runner, at, _):
        assert (await play(runner)).stop is StopReason.CONTEXT_LIMIT
    assert len(at.requests) == 1  # there is no room for another turn
    words = json.dumps({"error": {"message": "This model's maximum context length is 100 tokens."}})
    async with playing(calling, response("400 Bad", words), config=config) as (runner, _, _):
        assert (await play(runner)).stop is StopReason.CONTEXT_LIMIT


async def test_a_prompt_that_is_too_long_is_reported_unless_the_task_allows_it():
    task = make_task()
    async with playing(turn("x", usage=(3000, 1))) as (runner, _, _):
        with pytest.raises(BadValueError, match=r"prompt of task task .* do not fit into the context"):
            await play(runner)
        loose = await runner.run(dataclasses.replace(task, must_fit=False), step=0, member=0, attempt=0)
    assert (loose.stop, loose.turns, loose.reward, loose.endpoint_tokens) == (StopReason.CONTEXT_LIMIT, (), 0.0, (0, 0))


async def test_the_turn_limit_holds_and_a_cut_turn_is_no_answer():
    async with playing(turn(None, call("echo", {"text": "x"}))) as (runner, at, _):
        assert (await play(runner, max_turns=3)).stop is StopReason.TURN_LIMIT
    assert len(at.requests) == 3
    async with playing(turn("one two", finish="length")) as (runner, _, _):
        assert (await play(runner)).stop is StopReason.CUT_BY_LENGTH


async def test_body_fields_are_changed_and_removed():
    changes = {"max_tokens": None, "max_completion_tokens": 9, "reasoning_effort": "low"}
    async with playing(turn("x"), body=changes) as (runner, at, _):
        await play(runner)
    [(_, body)] = at.requests
    assert "max_tokens" not in body
    assert (body["max_completion_tokens"], body["reasoning_effort"]) == (9, "low")


async def test_costs_are_those_of_the_tokens_and_no_request_may_exceed_the_cap():
    # A request may cost $0.2 for 200 sampled tokens, and costs $0.005 for the five that it samples.
    settings = {"price": (0.0, 1000.0), "max_usd": 0.302}
    async with playing(turn("x"), **settings) as (runner, at, use):
        for _ in range(21):
            await play(runner)
        assert use.usd == pytest.approx(0.105)
        with pytest.raises(
            BudgetExceededError, match=r"may cost \$0\.2000, but \$0\.1050 of \$0\.302 is already spent.*--max-usd"
        ):
            await play(runner)
    assert len(at.requests) == 21


async def test_concurrent_episodes_wait_for_the_money_that_others_may_leave():
    async with playing(turn("x"), price=(0.0, 1000.0), max_usd=0.3) as (runner, _, use):
        await asyncio.gather(*(play(runner) for _ in range(8)))
    assert use.usd == pytest.approx(0.04)


async def test_an_answer_that_is_lost_counts_with_the_most_it_can_have_cost():
    async with playing(None, turn("x"), price=(0.0, 1000.0), max_usd=0.5) as (runner, _, use):
        await play(runner)
    assert use.usd == pytest.approx(0.205)


@pytest.mark.process
async def test_an_error_in_a_function_of_the_user_names_the_episode(tmp_path):
    (tmp_path / "rewards.py").write_text("def f(episode):\n    return 1 / 0\n")
    own = {"own": RewardFunctionConfig(function=f"{tmp_path}/rewards.py:f", weight=1.0)}
    config = make_config(rewards=RewardsConfig(functions=own))
    said = r"rewards\.py:2: ZeroDivisionError.*1 turns\), in episode 2, step 1"
    async with (
        RewardFunctions(own, environment={}, log=tmp_path / "log") as functions,
        playing(turn("x"), config=config, functions=functions) as (runner, *_),
    ):
        with pytest.raises(UserCodeError, match=said):
            await runner.run(make_task(answer="x"), step=0, member=2, attempt=0)


async def test_the_rate_limit_holds_requests_back():
    async with playing(turn("x"), per_minute=2) as (runner, at, _):
        tasks = [asyncio.create_task(play(runner)) for _ in range(3)]
        done, waiting = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        while len(done) < 2:
            done, waiting = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            await asyncio.sleep(0)
        assert len(at.requests) == 2
        for task in waiting:
            task.cancel()


def test_a_cap_without_prices_is_refused():
    with pytest.raises(BadValueError, match="--max-usd needs prices"):
        EndpointSettings(url="http://127.0.0.1:1/v1", model="m", max_usd=1.0)


async def test_an_injected_error_is_shown_as_in_training():
    config = make_config(injected_errors=0.999)
    async with playing(turn(None, call("echo", {"text": "x"})), turn("x"), config=config) as (runner, _, _):
        trajectory = await play(runner)
    assert not trajectory.turns[0].observations[0].worked
