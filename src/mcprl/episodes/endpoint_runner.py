"""Lets a model behind an OpenAI-compatible endpoint play tasks, with the tools, limits and rewards of training.

It sends messages and tool definitions, and receives `tool_calls`, or calls written as `<tool_call>` in the text. An
endpoint returns no token ids and no logprobs, so a trajectory has turns, calls, observations and rewards, but no
tokens: `Trajectory.endpoint_tokens` has the endpoint's own counts. A `Batch` refuses such a trajectory, so it is never
trained on. `sampling.constrain` and `sampling.stop` depend on tokens, and are not sent.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final, cast

import httpx2
from pydantic import BaseModel, Field, ValidationError

from mcprl.config import RateSettings, RunConfig
from mcprl.conversations import WrittenCall, calls_in, prose_of, text_of
from mcprl.episodes.endpoint import ChatEndpoint, EndpointSettings, SettingNames, Spending, Usage, authorization
from mcprl.episodes.environment import Action, Environment, Functions, Grader
from mcprl.episodes.loop import EpisodeLoop, Leases, LiveEpisode
from mcprl.errors import BadValueError, SamplerLostError
from mcprl.records import FinishReason, Message, ToolCall
from mcprl.seeds import derive_seed

__all__ = ["EndpointRunner", "make_client", "read_reply"]

_NAMES: Final = SettingNames("the model", "--endpoint", "--model", "--key-env")
# Seconds before the second and later attempts, unless the endpoint says how long to wait.
_WAITS_S: Final = (1.0, 2.0, 4.0, 8.0, 16.0)
_SEEDS: Final = 2**31
# Endpoints refuse a conversation that is too long with 400, and each with other words.
_TOO_LONG: Final = re.compile(r"context[ _](length|window)|(prompt|input) is too long|input token count", re.IGNORECASE)
_FORBIDDEN: Final = re.compile(r"[^a-zA-Z0-9_-]")


class _Choice(BaseModel):
    message: dict[str, Any]
    finish_reason: str | None = None


class _Reply(BaseModel):
    choices: list[_Choice] = Field(min_length=1)
    usage: Usage


def make_client(settings: EndpointSettings, keys: Mapping[str, str], names: SettingNames = _NAMES) -> ChatEndpoint:
    """Return a client of the endpoint. The API key is looked up in `keys`."""
    return ChatEndpoint(
        settings.url,
        names=names,
        fail=SamplerLostError,
        headers=authorization(names, settings.key_env, keys, settings.url),
        rate=None if settings.per_minute is None else RateSettings(calls=settings.per_minute, per_s=60.0),
        spending=Spending(settings.price, settings.max_usd),
    )


class EndpointRunner(EpisodeLoop):
    """Runs episodes with the model behind an endpoint. `client` must be open."""

    def __init__(
        self,
        config: RunConfig,
        *,
        settings: EndpointSettings,
        client: ChatEndpoint,
        leases: Leases,
        preamble: Sequence[Message],
        judge: Grader | None = None,
        functions: Functions | None = None,
    ) -> None:
        super().__init__(config, leases=leases, preamble=preamble, judge=judge, functions=functions)
        self._settings = settings
        self._client = client

    async def _add_prompt(self, episode: LiveEpisode, environment: Environment) -> bool:
        episode.messages = [dict(message) for message in environment.messages]
        return True  # only the endpoint can count the tokens

    async def _act(self, episode: LiveEpisode, environment: Environment) -> Action | None:
        most = self._config.model.context_tokens
        if sum(episode.usages[-1] if episode.usages else ()) >= most:
            return None
        deadline_s = self._config.episodes.deadline_s
        response = await self._client.ask(
            self._request(episode, len(environment.turns)), waits_s=_WAITS_S, longest_wait_s=deadline_s
        )
        if not response.is_success and not (response.status_code in (400, 413) and _TOO_LONG.search(response.text)):
            raise self._client.refusal(response)
        reply = read_reply(response) if response.is_success else None
        if reply is None or reply.usage.prompt_tokens + reply.usage.completion_tokens > most:
            if episode.task.must_fit and not environment.turns:
                raise BadValueError(
                    f"the prompt of task {episode.task.id} and its first turn do not fit into the context"
                    + ("" if reply else f": {' '.join(response.text.split())[:200]}"),
                    fix="raise model.context_tokens, lower sampling.max_tokens, or offer fewer tools",
                )
            return None
        episode.usages.append((reply.usage.prompt_tokens, reply.usage.completion_tokens))
        return _action(episode, reply.choices[0], len(environment.turns))

    def _show(self, episode: LiveEpisode, shown: Sequence[Message]) -> bool:
        ids = [call["id"] for call in episode.messages[-1].get("tool_calls", ())]
        for message in shown:
            if message["role"] == "tool":
                episode.messages.append({"role": "tool", "tool_call_id": ids.pop(0), "content": message["content"]})
            else:
                episode.messages.append(dict(message))
        return True

    def _tokens_of(self, episode: LiveEpisode, turns: int) -> dict[str, Any]:
        """Count each token once, as for other models: the last prompt contains the conversation so far."""
        kept = episode.usages[:turns]
        sampled = sum(completion for _, completion in kept)
        read = kept[-1][0] - (sampled - kept[-1][1]) if kept else 0
        # Reasoning is sampled but not part of later prompts.
        return {**episode.columns.named(), "endpoint_tokens": (max(read, 0), sampled)}

    def _request(self, episode: LiveEpisode, turn: int) -> dict[str, Any]:
        sampling = self._config.sampling
        used = sum(episode.usages[-1] if episode.usages else ())
        body: dict[str, Any] = {
            "model": self._settings.model,
            "messages": episode.messages,
            "temperature": sampling.temperature,
            "max_tokens": min(sampling.max_tokens, self._config.model.context_tokens - used),
            "seed": derive_seed(self._config.seed, "turn", *episode.seed_path, turn) % _SEEDS,
        }
        if episode.tools:
            body["tools"] = [{"type": "function", "function": spec} for spec in episode.tools]
        body |= self._settings.body
        return {name: value for name, value in body.items() if value is not None}


def read_reply(response: httpx2.Response) -> _Reply:
    """Return the message and the token usage in an endpoint's response."""
    try:
        return _Reply.model_validate_json(response.content)
    except ValidationError as error:
        raise SamplerLostError(
            "the endpoint's response is not a chat completion that reports its token usage",
            fix="set --endpoint to an OpenAI-compatible endpoint that reports usage, such as http://127.0.0.1:8000/v1",
        ) from error


def _action(episode: LiveEpisode, choice: _Choice, turn: int) -> Action:
    """Append the model's message to the conversation, and return it as a turn."""
    message = choice.message
    entries: Any = message.get("tool_calls")
    originals = cast("list[Any]", entries) if isinstance(entries, list) else []
    written = calls_in(message)
    prose = prose_of(message).encode("utf-8", "replace").decode()
    sent = [
        _as_sent(call, originals[index] if originals else None, f"call_{turn}_{index}")
        for index, call in enumerate(written)
    ]
    episode.messages.append({"role": "assistant", "content": prose, **({"tool_calls": sent} if sent else {})})
    text = text_of(message).encode("utf-8", "replace").decode()
    if originals:  # otherwise the text has the calls
        shown = [json.dumps(entry, ensure_ascii=False) for entry in originals]
        text = "\n".join([*([text] if text else []), *(f"<tool_call>{call}</tool_call>" for call in shown)])
    return Action(
        text=text,
        prose=prose,
        calls=tuple(ToolCall(name=c.name, arguments=c.arguments or {}, problem=c.problem) for c in written),
        sampled_ids=(),
        finish=FinishReason.LENGTH if choice.finish_reason == "length" else FinishReason.STOP,
        weights_version=-1,
    )


def _as_sent(call: WrittenCall, original: Any, new_id: str) -> dict[str, Any]:
    """Return a call for the history. If endpoints would reject it, it is corrected; its result states the problem."""
    if call.problem is None and call.id is not None and isinstance(original, dict):
        return cast("dict[str, Any]", original)
    arguments = json.dumps({} if call.arguments is None else dict(call.arguments))
    name = _FORBIDDEN.sub("_", call.name)[:64] or "unnamed"
    return {"id": call.id or new_id, "type": "function", "function": {"name": name, "arguments": arguments}}
