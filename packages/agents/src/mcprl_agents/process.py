"""Runs an agent's program: sets its environment, writes its task to stdin, and reads its answer from stdout."""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import sys
from collections import deque
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

from mcprl.errors import AgentFailedError, AgentRequestError
from mcprl.processes.child import ChildProcess, private_folder, search_path
from mcprl.records import Task
from mcprl.secrets import SECRETS

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
