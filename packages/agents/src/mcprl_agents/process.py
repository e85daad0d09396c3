"""The program of an agent: its environment, its task on stdin, its answer on stdout."""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
from collections import deque
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mcprl.errors import AgentFailedError, AgentRequestError
from mcprl.processes.child import ChildProcess, private_folder, search_path
from mcprl.records import Task
from mcprl.secrets import SECRETS

_MAX_OUTPUT_BYTES = 1 << 20
_PIPE_BYTES = 1 << 16
_END_S = 1.0
_KEPT_LINES = 5
# SDKs would export traces of every run, or route loopback through a proxy.
_QUIET = {
    "OPENAI_AGENTS_DISABLE_TRACING": "1",
    "LANGSMITH_TRACING": "false",
    "LANGCHAIN_TRACING_V2": "false",
    "OTEL_SDK_DISABLED": "true",
    "DO_NOT_TRACK": "1",
    "NO_PROXY": "127.0.0.1,localhost",
    "no_proxy": "127.0.0.1,localhost",
}
_REMOVED = ("http_proxy", "https_proxy", "all_proxy", "openai_proxy", "openai_org_id", "openai_api_base")


@dataclass(slots=True)
class Program:
    """A running agent."""

    process: ChildProcess
    stderr: deque[str]
    on_flood: Callable[[BaseException], None]
    stdout: bytearray = field(default_factory=bytearray)

    @property
    def answer(self) -> str:
        """What the agent has written to stdout."""
        while self.read():
            pass
        return self.stdout.decode(errors="replace").strip()

    def read(self) -> bool:
        """Read more of stdout, up to a limit. Return whether there was more."""
        assert self.process.stdout is not None
        try:
            data = os.read(self.process.stdout.fileno(), _PIPE_BYTES)
        except BlockingIOError:
            return False
        self.stdout += data
        if len(self.stdout) > _MAX_OUTPUT_BYTES:
            self.stdout.clear()
            what = "the agent wrote more than 1 MiB to stdout"
            self.on_flood(AgentRequestError(what, fix="write only the answer to stdout, and the rest to stderr"))
        if not data:
            asyncio.get_running_loop().remove_reader(self.process.stdout)
        return bool(data)

    @property
    def last_words(self) -> str:
        """The end of stderr, for an error message."""
        return f": {' '.join(self.stderr[-1].split())[:300]}" if self.stderr else ""


def task_json(task: Task, messages: Sequence[Mapping[str, Any]], model: str) -> str:
    """Return what the agent gets on stdin.

    {"id": "meet-ana", "prompt": "It is 09:30 …", "messages": [{"role": "user", "content": "It is 09:30 …"}],
     "model": "hello", "metadata": {}}
    """
    fields = {"id": task.id, "prompt": task.prompt[-1]["content"], "messages": list(messages), "model": model}
    fields["metadata"] = dict(task.metadata)
    return json.dumps(fields, ensure_ascii=False, default=str)


@asynccontextmanager
async def started(
    command: Sequence[str], given: str, *, url: str, token: str, log: Path, on_flood: Callable[[BaseException], None]
) -> AsyncGenerator[Program]:
    """Start an agent with its task. On exit, the program and all its descendants have ended."""
    stderr: deque[str] = deque(maxlen=_KEPT_LINES)

    def clean(line: str) -> str:
        shown = SECRETS.redact(line).replace(token, "[token]")
        if shown.strip():
            stderr.append(shown)
        return shown

    with private_folder() as folder:
        servers = {"mcpServers": {"mcprl": {"type": "http", "url": f"{url}/mcp"}}}
        (folder / "servers.json").write_text(json.dumps(servers), encoding="utf-8")
        (folder / "task.json").write_text(given, encoding="utf-8")
        kept = {name: value for name, value in os.environ.items() if name.lower() not in _REMOVED}
        env = {
            **kept,
            **_QUIET,
            "PATH": search_path(),
            "OPENAI_BASE_URL": f"{url}/v1",
            "OPENAI_API_KEY": token,
            "MCPRL_MCP_URL": f"{url}/mcp",
            "MCPRL_MCP_SERVERS": str(folder / "servers.json"),
            "MCPRL_TASK": str(folder / "task.json"),
        }
        try:
            process = await ChildProcess.start(command, env=env, log=log, pipes=True, clean=clean)
        except OSError as error:
            raise AgentFailedError(
                f"the agent {command[0]!r} cannot be started: {error.strerror}", fix="correct episodes.agent.command"
            ) from error
        assert process.stdout is not None
        program, loop = Program(process, stderr, on_flood), asyncio.get_running_loop()
        os.set_blocking(process.stdout.fileno(), False)
        loop.add_reader(process.stdout, program.read)
        try:
            _hand_over(process, given.encode("utf-8", "replace"))
            yield program
        finally:
            loop.remove_reader(process.stdout)
            await process.stop(grace_s=_END_S)


def _hand_over(process: ChildProcess, given: bytes) -> None:
    """Write the task to stdin without waiting for the agent, which need not read it."""
    assert process.stdin is not None
    pipe = process.stdin.fileno()
    if len(given) > _PIPE_BYTES:
        fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, len(given))
    os.set_blocking(pipe, False)
    with suppress(BrokenPipeError):
        os.write(pipe, given)
    process.stdin.close()
