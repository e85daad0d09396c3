"""Plays episodes with an agent: starts its program, and decides how each episode ended and who is to blame.

The program reads its task from stdin and writes its answer to stdout.

    exit code 0, and text on stdout or in the last turn     ANSWERED
    a turn too many, a prompt too long, the deadline        TURN_LIMIT, CONTEXT_LIMIT, DEADLINE
    no answer, or an error after a mistake by the policy    AGENT_ENDED
    any other error, no model call, or a hang               AgentError: the episode is played again

Many agents exit with an error if the policy calls an unknown tool, so the exit code alone does not show who is to
blame. If an agent fails TRIALS times at one episode but has finished others, the policy's turns are taken as the cause.
"""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import sys
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from mcprl.config import RunConfig
from mcprl.episodes.environment import Environment
from mcprl.episodes.loop import TRIALS, EpisodeRunner, LiveEpisode, end_at_deadline
from mcprl.errors import (
    AgentError,
    AgentFailedError,
    AgentHungError,
    AgentRequestError,
    AgentSilentError,
    BadValueError,
    EpisodeDeadlineError,
    InfrastructureError,
)
from mcprl.processes.child import ChildProcess, private_folder, search_path
from mcprl.records import FinishReason, StopReason, Task
from mcprl.secrets import SECRETS
from mcprl_agents.gateway import Gateway
from mcprl_agents.requests import Request
from mcprl_agents.session import Sampled, Session, warn_of_override

_READ_LOG = "read logs/agent.log in the run's folder, and correct the agent"


_MAX_OUTPUT_BYTES = 1 << 20
_PIPE_BYTES = 1 << 16
_END_S = 1.0
# SDKs would export traces of every run, or route loopback through a proxy.
_QUIET = {
    **dict.fromkeys(("OPENAI_AGENTS_DISABLE_TRACING", "DO_NOT_TRACK"), "1"),
    **dict.fromkeys(("LANGSMITH_TRACING", "LANGCHAIN_TRACING_V2"), "false"),
    **dict.fromkeys(("NO_PROXY", "no_proxy"), "127.0.0.1,localhost"),
    "OTEL_SDK_DISABLED": "true",
}
_REMOVED = ("http_proxy", "https_proxy", "all_proxy", "openai_proxy", "openai_org_id", "openai_api_base")


class Program:
    """A running agent. `on_error` is called if the agent writes too much to stdout."""

    def __init__(self, process: ChildProcess, stderr: deque[str], on_error: Callable[[BaseException], None]) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self.process = process
        self._stdin, self._stdout = process.stdin, process.stdout
        self._stderr, self._on_error = stderr, on_error
        self._written = bytearray()
        os.set_blocking(self._stdout.fileno(), False)
        asyncio.get_running_loop().add_reader(self._stdout, self._read)

    @property
    def answer(self) -> str:
        """What the agent has written to stdout."""
        while self._read():
            pass
        return self._written.decode(errors="replace").strip()

    @property
    def last_words(self) -> str:
        """The last line that the agent wrote to stderr, for an error message."""
        return f": {' '.join(self._stderr[-1].split())[:300]}" if self._stderr else ""

    def hand_over(self, given: bytes) -> None:
        """Write the task to stdin without waiting for the agent, which need not read it."""
        if len(given) > _PIPE_BYTES:
            fcntl.fcntl(self._stdin, fcntl.F_SETPIPE_SZ, len(given))
        with suppress(BrokenPipeError):
            os.write(self._stdin.fileno(), given)
        self._stdin.close()

    async def stop(self) -> None:
        asyncio.get_running_loop().remove_reader(self._stdout)
        await self.process.stop(grace_s=_END_S)

    def _read(self) -> bool:
        try:
            data = os.read(self._stdout.fileno(), _PIPE_BYTES)
        except BlockingIOError:
            return False
        self._written += data
        if len(self._written) > _MAX_OUTPUT_BYTES:
            self._written.clear()
            what = "the agent wrote more than 1 MiB to stdout"
            self._on_error(AgentRequestError(what, fix="write only the answer to stdout, and all else to stderr"))
        if not data:
            asyncio.get_running_loop().remove_reader(self._stdout)
        return bool(data)


def task_json(task: Task, messages: Sequence[Mapping[str, Any]], model: str) -> str:
    """Return the JSON that the agent reads from stdin.

    {"id": "meet-ana", "prompt": "It is 09:30 …", "messages": [{"role": "user", "content": "It is 09:30 …"}],
     "model": "hello", "metadata": {}}
    """
    fields = {"id": task.id, "prompt": task.prompt[-1]["content"], "messages": list(messages), "model": model}
    return json.dumps({**fields, "metadata": dict(task.metadata)}, ensure_ascii=False, default=str)


@asynccontextmanager
async def started(
    command: Sequence[str], given: str, *, url: str, token: str, log: Path, on_error: Callable[[BaseException], None]
) -> AsyncGenerator[Program]:
    """Start an agent with its task. On exit, stop it and every process that it started."""
    stderr: deque[str] = deque(maxlen=1)

    def clean(line: str) -> str:
        shown = SECRETS.redact(line).replace(token, "[token]")
        if shown.strip():
            stderr.append(shown)
        return shown

    with private_folder() as folder:
        # The URL is a secret, and other users can read the arguments of a process.
        tools = {"MCPRL_MCP_URL": f"{url}/mcp"}
        proxy = {"command": sys.executable, "args": ["-m", "mcprl_agents.stdio"], "env": tools}
        for name, entry in {"http": {"type": "http", "url": f"{url}/mcp"}, "stdio": proxy}.items():
            (folder / f"{name}.json").write_text(json.dumps({"mcpServers": {"mcprl": entry}}), encoding="utf-8")
        (folder / "task.json").write_text(given, encoding="utf-8", errors="replace")
        env = {
            **{name: value for name, value in os.environ.items() if name.lower() not in _REMOVED},
            **_QUIET,
            **tools,
            "PATH": search_path(),
            "OPENAI_BASE_URL": f"{url}/v1",
            "OPENAI_API_KEY": token,
            "MCPRL_MCP_SERVERS": str(folder / "http.json"),
            "MCPRL_MCP_STDIO_SERVERS": str(folder / "stdio.json"),
            "MCPRL_TASK": str(folder / "task.json"),
        }
        try:
            process = await ChildProcess.start(command, env=env, log=log, pipes=True, clean=clean)
        except OSError as error:
            raise AgentFailedError(
                f"the agent {command[0]!r} cannot be started: {error.strerror}", fix="correct episodes.agent.command"
            ) from error
        program = Program(process, stderr, on_error)
        try:
            program.hand_over(given.encode("utf-8", "replace"))
            yield program
        finally:
            await program.stop()


@dataclass(slots=True)
class _AgentEpisode(LiveEpisode):
    """An episode with its session. `waited` is True if the agent was waiting for a turn or a tool at the end."""

    session: Session | None = None
    waited: bool = False


@asynccontextmanager
async def open_agents(tasks: Sequence[Task], logs: Path) -> AsyncGenerator[Callable[..., EpisodeRunner]]:
    """Start the server that agents connect to, and yield a function that creates the runner of their episodes."""
    for task in tasks:
        if task.follow_ups or task.user is not None:
            raise BadValueError(
                f"task {task.id} has further user messages, but an agent is given only the first prompt",
                fix="remove the task, or remove episodes.agent",
            )
    async with Gateway().open() as gateway:
        yield partial(AgentRunner, gateway=gateway, log=logs / "agent.log")


class AgentRunner(EpisodeRunner):
    """Runs episodes with the program in `episodes.agent`. Differs from `EpisodeRunner` only in how turns are played."""

    live = _AgentEpisode

    def __init__(self, config: RunConfig, *, gateway: Gateway, log: Path, **parts: Any) -> None:
        super().__init__(config, **parts)
        self._gateway = gateway
        self._log = log
        self._finished = 0

    async def _offer(self, episode: LiveEpisode, tools: list[dict[str, Any]]) -> None:
        episode.tools = tools  # each request has its own tools, and so its own grammar

    async def _add_prompt(self, episode: LiveEpisode, environment: Environment) -> bool:
        return True  # the agent makes it

    async def _play(self, episode: LiveEpisode, environment: Environment) -> StopReason:
        assert isinstance(episode, _AgentEpisode)
        agent = self._config.episodes.agent
        assert agent is not None
        sample = partial(self._sampled, episode)
        session = episode.session = Session(self._config, self._chat, episode, environment, sample)
        given = task_json(episode.task, environment.messages, self._config.name)
        try:
            with self._gateway.serve(session) as token:
                url = f"{self._gateway.address}/{token}"
                starting = started(agent.command, given, url=url, token=token, log=self._log, on_error=session.fail)
                async with starting as program:
                    return await self._played(episode, session, environment, program)
        except InfrastructureError as error:
            self._note(session, environment, all_but_faulty=not isinstance(error, AgentError))
            raise
        finally:
            await session.close()

    async def _played(
        self, episode: _AgentEpisode, session: Session, environment: Environment, program: Program
    ) -> StopReason:
        """Wait until the agent or the episode ends, then score the episode."""
        ending = asyncio.create_task(program.process.wait())
        try:
            await asyncio.wait({ending, session.ended}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            ending.cancel()
            episode.waited = session.in_flight > 0
        if session.ended.done():
            stop, answer = session.ended.result(), None
        else:
            stop, answer = self._ended(episode, session, program)
        self._note(session, environment)
        if session.actions:
            await environment.end(stop, answer)
        return stop

    def _ended(self, episode: _AgentEpisode, session: Session, program: Program) -> tuple[StopReason, str | None]:
        """Return why an agent ended by itself, and its answer. Raises AgentError if the agent is to blame."""
        code, last = program.process.exit_code, session.actions[-1] if session.actions else None
        if session.is_full:
            return StopReason.CONTEXT_LIMIT, None
        if last is None and code == 0:
            raise AgentSilentError(
                f"the agent ended without calling the model{program.last_words}",
                fix="make it use the base URL in OPENAI_BASE_URL and the key in OPENAI_API_KEY",
            )
        if code == 0 and last is not None:
            self._finished += 1
            answer = program.answer or ("" if last.calls else last.prose)
            if last.finish is FinishReason.LENGTH and not last.calls:
                return StopReason.CUT_BY_LENGTH, None
            return (StopReason.ANSWERED, answer) if answer else (StopReason.AGENT_ENDED, None)
        if last is not None and (session.ends_in_a_mistake or self._is_caused(episode)):
            return StopReason.AGENT_ENDED, None
        when = f"after {len(session.actions)} turns" if last else "before it called the model"
        how = f"exit code {code}" if code is None or code >= 0 else f"signal {-code}"
        raise AgentFailedError(f"the agent ended with {how} {when}{program.last_words}", fix=_READ_LOG)

    def _is_caused(self, episode: _AgentEpisode) -> bool:
        """Whether to blame the policy: each attempt fails, with the same seeds, but other episodes finish."""
        return episode.attempt + 1 >= TRIALS and self._finished > 0

    def _note(self, session: Session, environment: Environment, *, all_but_faulty: bool = False) -> None:
        """Append the turns to the environment. `all_but_faulty` omits the last one if its calls made a server fail."""
        if environment.turns:
            return  # the episode was already over
        last = len(session.actions) - 1
        for turn, action in enumerate(session.actions):
            if not (all_but_faulty and turn == last == session.faulty_turn):
                environment.note(action, session.observations(turn))
                self._reproduction.note(environment.turns[-1])

    async def _end_late(self, episode: LiveEpisode, task: Task) -> StopReason:
        assert isinstance(episode, _AgentEpisode)
        session, environment, deadline_s = episode.session, episode.environment, self._config.episodes.deadline_s
        if session is None or environment is None or not session.actions:
            environment, waited_s = None, deadline_s
        else:
            self._note(session, environment)
            waited_s = time.monotonic() - session.last_event_s
        what = f"the agent did nothing for {waited_s:.3g} s before the episode's deadline"
        late: InfrastructureError = AgentHungError(what, fix=_READ_LOG)
        if session is None or episode.waited:
            late = EpisodeDeadlineError(
                f"episode {episode.seed_path[2]} of task {task.id} took longer than {deadline_s:g} s, of which it "
                f"spent {waited_s:.3g} s waiting for the sampler or a tool server",
                fix="find out whether a tool server or the sampler is slow, or raise episodes.deadline_s",
            )
        elif self._is_caused(episode):
            waited_s = 0.0
        await end_at_deadline(environment, played_s=deadline_s - waited_s, deadline_s=deadline_s, late=late)
        return StopReason.DEADLINE

    async def _sampled(self, episode: LiveEpisode, ids: tuple[int, ...], request: Request, number: int) -> Sampled:
        grammar = None
        if self._grammars is not None:
            must_call = request.choice == "required"
            grammar = await asyncio.to_thread(self._grammars.grammar_of, request.callable_specs, must_call=must_call)
        elif request.choice == "required" or request.chosen:
            warn_of_override("tool_choice")
        completion = await self._sampler.sample(self._request(ids, grammar, (*episode.seed_path, number)))
        forced, fixed = await self._choices(grammar, completion)
        return completion, forced, fixed, grammar

    def _tokens_of(self, episode: LiveEpisode, turns: int) -> dict[str, Any]:
        assert isinstance(episode, _AgentEpisode)
        assert episode.session is not None
        return super()._tokens_of(episode, turns) | {"forks": tuple(episode.session.tree.forks)}
