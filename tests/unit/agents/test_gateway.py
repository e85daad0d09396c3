"""The model side, asked with OpenAI's own client, and the tool side with the MCP SDK's."""

from __future__ import annotations

import asyncio
import json
import sys
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import httpx2
import openai
import pytest
from mcp import Client
from mcp.client.stdio import StdioServerParameters, stdio_client
from staged_episodes import FunctionTools, make_config, make_task

from mcprl.config import RewardsConfig
from mcprl.episodes.environment import Environment
from mcprl.episodes.loop import LiveEpisode
from mcprl.records import FinishReason
from mcprl.samplers import Completion
from mcprl_agents.gateway import Gateway
from mcprl_agents.requests import RefusedError, Request, read_chat, read_responses
from mcprl_agents.session import Session, warn_of_override

END = "<|im_end|>"
ECHO = {"type": "object", "properties": {"text": {"type": "string"}}}
TOOL = {"name": "echo", "description": "A tool.", "parameters": ECHO}
CHAT_TOOLS: Any = [{"type": "function", "function": TOOL}]
TOOLS: Any = [{"type": "function", "strict": False, **TOOL}]
HELLO: Any = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi."}]


def calling(*texts: str) -> str:
    calls = [json.dumps({"name": "echo", "arguments": {"text": text}}) for text in texts]
    return "\n".join(f"<tool_call>\n{call}\n</tool_call>" for call in calls) + END


@dataclass
class Model:
    """Says these texts, each when its event is set, if it has one."""

    encode: Any
    texts: list[str]
    prompts: list[tuple[int, ...]] = field(default_factory=list)
    held: asyncio.Event | None = None
    asked: asyncio.Event = field(default_factory=asyncio.Event)

    async def sample(self, ids: tuple[int, ...], request: Request, number: int) -> Any:
        self.prompts.append(ids)
        self.asked.set()
        text = self.texts[len(self.prompts) - 1]
        if self.held is not None:
            await self.held.wait()
        own = tuple(self.encode(text))
        no = (False,) * len(own)
        completion = Completion(
            token_ids=own, logprobs=(-0.5,) * len(own), finish=FinishReason.STOP, weights_versions=(0,) * len(own)
        )
        return completion, no, no, None


class WatchedSession(Session):
    """Says when an agent has hung up before its answer."""

    kept: asyncio.Event

    def keep(self, body: str, task: asyncio.Task[Any]) -> None:
        super().keep(body, task)
        self.kept.set()


@pytest.fixture
def opened(chat, encode):
    """A client of an episode whose model says these texts: (client, session, model, url)."""

    @asynccontextmanager
    async def make(*texts: str, **settings: Any):
        model = Model(encode, list(texts))
        tools = FunctionTools(echo=lambda text: text)
        tools.tools[0].parameters = ECHO
        environment = Environment(make_task(), tools, preamble=(), max_turns=20, rewards=RewardsConfig())
        config = make_config(**{"context_tokens": 4096} | settings)
        episode = LiveEpisode(task=replace(make_task(max_turns=20), must_fit=False), seed_path=(0, "task", 0))
        session = WatchedSession(config, chat, episode, environment, model.sample)
        session.kept = asyncio.Event()
        async with Gateway().open() as gateway:
            with gateway.serve(session) as token:
                url = f"{gateway.address}/{token}"
                async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key=token) as client:
                    yield client, session, model, url
                await session.close()

    return make


def sequence(session: Session) -> tuple[int, ...]:
    assert session.tree.forks == []
    return tuple(session.tree.columns.token_ids)


async def completed(client: openai.AsyncOpenAI, stream: bool, **asked: Any) -> dict[str, Any]:
    """The message of an answer, as an agent puts it together."""
    if not stream:
        answer = await client.chat.completions.create(model="m", **asked)
        return answer.choices[0].message.model_dump(exclude_none=True)
    message: dict[str, Any] = {"role": "assistant", "content": "", "tool_calls": []}
    async for chunk in await client.chat.completions.create(model="m", stream=True, **asked):
        message["content"] += chunk.choices[0].delta.content or ""
        message["tool_calls"] += [c.model_dump(exclude={"index"}) for c in chunk.choices[0].delta.tool_calls or ()]
    return {name: value for name, value in message.items() if value}


@pytest.mark.parametrize("stream", [False, True])
async def test_chat_turns_with_parallel_calls_are_one_branch(stream, opened, chat, encode):
    async with opened(calling("a", "b"), f"Done.{END}") as (client, session, _, _):
        first = await completed(client, stream, messages=HELLO, tools=CHAT_TOOLS)
        assert [call["function"]["name"] for call in first["tool_calls"]] == ["echo", "echo"]
        arguments = [json.loads(call["function"]["arguments"]) for call in first["tool_calls"]]
        assert arguments == [{"text": "a"}, {"text": "b"}]
        results: Any = [{"role": "tool", "tool_call_id": c["id"], "content": "ok"} for c in first["tool_calls"]]
        # What SDKs change: null for "", arguments serialized in another way.
        for call in first["tool_calls"]:
            call["function"]["arguments"] = json.dumps(json.loads(call["function"]["arguments"]), indent=2)
        again = {**first, "content": None}
        last = await completed(client, stream, messages=[*HELLO, again, *results], tools=CHAT_TOOLS)
        assert last["content"] == "Done."
    prompt, turn = chat.open(HELLO, [TOOL]), tuple(encode(calling("a", "b")))
    shown: Any = [{"role": "tool", "name": "echo", "content": "ok"}] * 2
    extension = chat.extend(prompt, turn, shown, [TOOL])
    assert sequence(session) == (*prompt, *turn, *extension, *encode(f"Done.{END}"))


@pytest.mark.parametrize("stream", [False, True])
async def test_responses_turns_are_one_branch_with_items_references_or_the_id_of_the_last(stream, opened):
    async with opened(calling("a"), calling("b"), f"So.{END}", f"Bye.{END}") as (client, session, _, _):

        async def ask(**asked: Any) -> Any:
            if not stream:
                return await client.responses.create(model="m", tools=TOOLS, instructions="Be brief.", **asked)
            async with client.responses.stream(model="m", tools=TOOLS, instructions="Be brief.", **asked) as events:
                return await events.get_final_response()

        given: list[Any] = [{"role": "user", "content": [{"type": "input_text", "text": "Hi."}]}]
        for text in ("a", "b"):
            response = await ask(input=given)
            [call] = response.output
            assert (call.type, call.name, json.loads(call.arguments)) == ("function_call", "echo", {"text": text})
            given.append(call.model_dump(exclude_none=True))
            given.append({"type": "function_call_output", "call_id": call.call_id, "output": text})
        third = await ask(input=given)
        assert (third.output_text, third.status) == ("So.", "completed")
        assert third.usage.total_tokens == third.usage.input_tokens + third.usage.output_tokens
        reference = {"type": "item_reference", "id": third.output[0].id}
        fourth = await ask(input=[*given, reference, {"role": "user", "content": "And?"}])
        assert fourth.output_text == "Bye."
    assert len(session.actions) == 4
    assert session.tree.forks == []


async def test_previous_response_id_continues_the_conversation(opened):
    async with opened(f"One.{END}", f"Two.{END}") as (client, session, _, _):
        first = await client.responses.create(model="m", input="Hi.")
        second = await client.responses.create(model="m", input="More.", previous_response_id=first.id)
        assert second.output_text == "Two."
        with pytest.raises(openai.NotFoundError):
            await client.responses.create(model="m", input="More.", previous_response_id="resp_9")
    assert session.tree.forks == []


async def test_an_edited_message_starts_a_branch_at_the_last_common_token(opened, chat, encode):
    async with opened(f"It is blue.{END}", f"Sure.{END}", f"Hm.{END}") as (client, session, model, _):
        first = await completed(client, False, messages=HELLO)
        why: Any = {"role": "user", "content": "Why?"}
        await completed(client, False, messages=[*HELLO, {**first, "content": "It is red."}, why])
        await completed(client, False, messages=[*HELLO, first, why])
    edited = tuple(encode(f"It is red.{END}"))
    prompt = chat.open(HELLO, [])
    assert model.prompts[1] == (*prompt, *edited, *chat.extend(prompt, edited, [why], []))
    shared = len(prompt) + len(encode("It is"))
    assert session.tree.forks[0] == (len(prompt) + len(encode(f"It is blue.{END}")), shared - 1)
    sampled = tuple(encode(f"It is blue.{END}"))
    assert model.prompts[2] == (*prompt, *sampled, *chat.extend(prompt, sampled, [why], []))


async def test_dropped_turns_keep_the_sampled_ids_of_those_that_stay(opened, chat, encode):
    async with opened(calling("a"), calling("b"), f"Done.{END}") as (client, session, model, _):
        messages: list[Any] = list(HELLO)
        for _ in range(2):
            said = await completed(client, False, messages=messages, tools=CHAT_TOOLS)
            result = {"role": "tool", "tool_call_id": said["tool_calls"][0]["id"], "content": "ok"}
            messages += [said, result]
        await completed(client, False, messages=[*HELLO, *messages[4:]], tools=CHAT_TOOLS)
    prompt, kept = chat.open(HELLO, [TOOL]), tuple(encode(calling("b")))
    assert model.prompts[2][: len(prompt) + len(kept)] == (*prompt, *kept)
    assert len(session.tree.forks) == 1
    assert sum(session.tree.columns.sampled) == sum(len(action.sampled_ids) for action in session.actions)


async def test_a_repeat_gets_the_stored_answer_only_if_the_first_was_not_delivered(opened):
    async with opened(f"One.{END}", f"Two.{END}") as (client, session, model, _):
        model.held = asyncio.Event()
        impatient = asyncio.create_task(completed(client.with_options(max_retries=0), False, messages=HELLO))
        await model.asked.wait()
        impatient.cancel()
        await session.kept.wait()
        model.held.set()
        assert (await completed(client, False, messages=HELLO))["content"] == "One."
        assert (await completed(client, False, messages=HELLO))["content"] == "Two."
    assert len(model.prompts) == len(session.actions) == 2


async def test_two_sub_agents_with_equal_requests_are_two_branches(opened):
    async with opened(f"One.{END}", f"Two.{END}") as (client, session, _, _):
        asked = (completed(client, False, messages=HELLO) for _ in range(2))
        assert {message["content"] for message in await asyncio.gather(*asked)} == {"One.", "Two."}
    assert len(session.tree.forks) == 1


async def test_sampling_settings_are_the_runs_and_said_once(opened, caplog):
    warn_of_override.cache_clear()
    async with opened(f"One.{END}", f"Two.{END}") as (client, session, _, _):
        for _ in range(2):
            await completed(client, False, messages=HELLO, temperature=0.1, top_p=0.5)
    assert len(session.actions) == 2
    assert caplog.text.count("top_p") == 1
    assert caplog.text.count("temperature") == 1


async def test_a_call_that_cannot_be_parsed_is_text(opened):
    async with opened(f'<tool_call>\n{{"name": "echo", "arguments": {{\n</tool_call>{END}') as (client, session, _, _):
        said = await completed(client, False, messages=HELLO, tools=CHAT_TOOLS)
        assert "tool_calls" not in said
        assert said["content"].startswith("<tool_call>")
        assert END not in said["content"]
        [seen] = session.observations(0)
        assert seen.fault is not None


async def test_errors_have_the_form_that_clients_expect(opened):
    async with opened(f"One.{END}", context_tokens=64) as (client, _, _, url):
        long: Any = [{"role": "user", "content": "word " * 100}]
        with pytest.raises(openai.BadRequestError) as raised:
            await completed(client, False, messages=long)
        assert raised.value.code == "context_length_exceeded"
        picture: Any = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:"}}]}]
        with pytest.raises(openai.BadRequestError, match="reads only text"):
            await completed(client, False, messages=picture)
        with pytest.raises(openai.NotFoundError):
            await client.embeddings.create(model="m", input="a")
        async with httpx2.AsyncClient() as plain:
            key = {"authorization": f"Bearer {client.api_key}"}
            response = await plain.post(f"{url}/v1/chat/completions", content=b"{", headers=key)
            assert (response.status_code, response.json()["error"]["message"]) == (400, "the request body is not JSON")


async def test_other_tokens_keys_web_pages_and_hosts_are_refused(opened):
    async with opened(f"One.{END}") as (client, session, _, url), httpx2.AsyncClient() as plain:
        body: Any = {"model": "m", "messages": HELLO}
        key = {"authorization": f"Bearer {client.api_key}"}
        other = url[:-3] + "abc"
        for target, headers, status in (
            (url, {}, 401),
            (url, {"authorization": "Bearer other"}, 401),
            (other, key, 404),
            (url, {**key, "origin": "https://evil.example"}, 403),
            (url, {**key, "host": "evil.example"}, 403),
        ):
            response = await plain.post(f"{target}/v1/chat/completions", json=body, headers=headers)
            assert response.status_code == status
            mcp = await plain.post(f"{target}/mcp", json={}, headers={n: v for n, v in headers.items() if n != "host"})
            assert mcp.status_code == status or status == 401 or "host" in headers
        assert session.actions == []


def tools_over(transport: str, url: str) -> Client:
    if transport == "http":
        return Client(f"{url}/mcp")
    if transport == "older http":
        return Client(f"{url}/mcp", mode="legacy")
    env = {"MCPRL_MCP_URL": f"{url}/mcp"}
    return Client(
        stdio_client(StdioServerParameters(command=sys.executable, args=["-m", "mcprl_agents.stdio"], env=env))
    )


@pytest.mark.parametrize(
    ("choice", "mode", "names"),
    [
        (None, "auto", ["echo", "ping"]),
        ("auto", "auto", ["echo", "ping"]),
        ("none", "none", []),
        ("required", "required", ["echo", "ping"]),
        ({"type": "function", "name": "ping"}, "required", ["ping"]),
        ({"type": "function", "function": {"name": "ping"}}, "required", ["ping"]),
        ({"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "ping"}]}, "auto", ["ping"]),
        (
            {
                "type": "allowed_tools",
                "allowed_tools": {"mode": "required", "tools": [{"type": "function", "function": {"name": "echo"}}]},
            },
            "required",
            ["echo"],
        ),
    ],
)
def test_tool_choice_says_which_tools_a_turn_may_or_must_call(choice, mode, names):
    tools = [TOOL, {**TOOL, "name": "ping"}]
    chat = read_chat(
        {"messages": HELLO, "tool_choice": choice, "tools": [{"type": "function", "function": t} for t in tools]}
    )
    responses = read_responses(
        {"input": "Hi.", "tool_choice": choice, "tools": [{"type": "function", **t} for t in tools]}, {}, {}
    )
    for request in (chat, responses):
        assert (request.choice, [spec["name"] for spec in request.callable_specs]) == (mode, names)
        assert request.overridden == ()


@pytest.mark.parametrize(
    "choice",
    ["any", {"type": "function", "name": "fly"}, {"type": "allowed_tools", "mode": "auto", "tools": []}, 7],
)
def test_a_tool_choice_of_nothing_is_refused(choice):
    with pytest.raises(RefusedError):
        read_chat({"messages": HELLO, "tools": CHAT_TOOLS, "tool_choice": choice})
    with pytest.raises(RefusedError, match="no tools"):
        read_chat({"messages": HELLO, "tool_choice": "required"})


@pytest.mark.process
@pytest.mark.parametrize("transport", ["http", "older http", "stdio"])
async def test_tools_are_those_of_the_episode_and_their_results_those_of_its_turns(transport, opened):
    async with opened(calling("a", "b")) as (client, session, _, url):
        async with tools_over(transport, url) as servers:
            [tool] = (await servers.list_tools()).tools
            assert (tool.name, tool.description, tool.input_schema) == ("echo", "A tool.", ECHO)
            await completed(client, False, messages=HELLO, tools=CHAT_TOOLS)
            made = await servers.call_tool("echo", {"text": "b"})
            assert (made.content[0].text, made.is_error) == ("b", False)
            assert (await servers.call_tool("nothing", {})).is_error
        first, second = session.observations(0)
    assert (first.source, first.worked) == ("agent", False)
    assert (second.text, second.server, second.worked) == ("b", "functions", True)
