"""The Python server: six tools that run code, run analyses, and store results for the rest of an episode."""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, cast

from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.shared.exceptions import MCPError
from mcp_types import INTERNAL_ERROR, CallToolResult, ToolAnnotations
from pydantic import Field
from typing_extensions import TypedDict

from mcprl.errors import SandboxLostError
from mcprl.servers.episode_state import EPISODIC, EpisodeStates
from mcprl_market.making import answer, read_only
from mcprl_market.python.launch import choose_launch
from mcprl_market.python.programs import Failed, Limits, Outcome, Program, Step, json_value
from mcprl_market.python.sandbox import Sandbox

MAX_KEYS = 100
MAX_STORED_BYTES = 4 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """A stored value with its description and size.

    Stored(value={"symbol": "VLKN", "pe": 55.79}, description="Figures of Valkenor", num_bytes=31)
    """

    value: Any
    description: str
    num_bytes: int


class EpisodeContext:
    """The values that one episode has stored."""

    def __init__(self) -> None:
        self._stored: dict[str, Stored] = {}

    @property
    def values(self) -> dict[str, Any]:
        return {key: stored.value for key, stored in self._stored.items()}

    def get(self, key: str) -> Stored | None:
        return self._stored.get(key)

    def store(self, key: str, value: Any, description: str) -> None:
        """Store a value. It replaces any value with the same key. Raises ToolError if it is too large."""
        size = len(json.dumps(value))
        others = [stored.num_bytes for name, stored in self._stored.items() if name != key]
        if len(others) >= MAX_KEYS:
            raise ToolError(f"No more than {MAX_KEYS} results can be stored.")
        if sum(others) + size > MAX_STORED_BYTES:
            raise ToolError(f"No more than {MAX_STORED_BYTES // (1024 * 1024)} MB can be stored in total.")
        self._stored[key] = Stored(value=value, description=description, num_bytes=size)


MAX_STEPS = 50


def steps_of(pipeline: Any) -> tuple[Step, ...]:
    """Make uniquely named steps from a list of code strings or objects, or from one code string.

    >>> [(step.name, step.code) for step in steps_of(["data * 2", {"name": "half", "code": "data / 2"}])]
    [('step 1', 'data * 2'), ('half', 'data / 2')]
    """
    entries = cast("list[Any]", pipeline) if isinstance(pipeline, list) else [pipeline]
    if not 1 <= len(entries) <= MAX_STEPS:
        raise ToolError(f"pipeline_steps needs 1 to {MAX_STEPS} steps; there are {len(entries)}.")
    steps: list[Step] = []
    for number, entry in enumerate(entries, start=1):
        fields = cast("dict[str, Any]", entry) if isinstance(entry, dict) else {"code": entry}
        code = fields.get("code")
        if not isinstance(code, str):
            raise ToolError(f'Step {number} has no code. Give a text, or {{"name": …, "code": …}}.')
        name = str(fields.get("name") or f"step {number}")
        taken = {step.name for step in steps}
        steps.append(Step(name=name if name not in taken else f"{name} ({number})", code=code))
    return tuple(steps)


_OUTPUT_SHOWN_CHARS = 4000
_ANALYSES = Path(__file__).with_name("analyses.py")
_STORES = ToolAnnotations(read_only_hint=False, destructive_hint=False, idempotent_hint=True, open_world_hint=False)

Data = Annotated[Any, Field(description="Any JSON value, or a text that holds one.")]
Code = Annotated[str, Field(description="Python code. Print what you want to see, or end with an expression.")]
Description = Annotated[str, Field(description="What it is for. Not used.")]
Key = Annotated[str, Field(description="Name of the stored result.")]
AnalysisType = Literal["summary", "trend", "correlation", "custom"]


class Execution(TypedDict):
    """What code printed, and its value: that of its last expression, or of its variable `result`."""

    stdout: str
    result: Any


class StoredResult(TypedDict):
    """A stored result."""

    context_key: str
    data: Any
    description: str


class PythonTools:
    """The tools of the server. They share the episodes' states and run code in the sandbox."""

    def __init__(self) -> None:
        self._states = EpisodeStates(EpisodeContext)

    async def execute_python(
        self, context: Context[Any, Any], code: Code, description: Description = ""
    ) -> Annotated[CallToolResult, Execution]:
        """Run Python code with the standard library, numpy (np) and pandas (pd). Stored results are in the dict
        `context`. Nothing else is kept from one run to the next."""
        return await self._run(context, (Step(name="code", code=code),), None)

    async def process_mcp_data(
        self, context: Context[Any, Any], data: Data, processing_code: Code, description: Description = ""
    ) -> Annotated[CallToolResult, Execution]:
        """Run Python code on data, which the code finds in the variable `data`."""
        return await self._run(context, (Step(name="code", code=processing_code),), _value_of(data))

    async def analyze_financial_data(
        self, context: Context[Any, Any], data: Data, analysis_type: AnalysisType, custom_code: str = ""
    ) -> Annotated[CallToolResult, Execution]:
        """Analyse a table (list of records, list of numbers, or columns by name): summary, trend, correlation, or
        custom, which runs custom_code on `data`."""
        if analysis_type == "custom":
            if not custom_code.strip():
                raise ToolError("analysis_type custom needs custom_code.")
            step = Step(name="code", code=custom_code)
        else:
            code = f"{_ANALYSES.read_text()}\nresult = {analysis_type}(data)"
            step = Step(name=analysis_type, code=code, is_ours=True)
        return await self._run(context, (step,), _value_of(data))

    async def create_data_pipeline(
        self,
        context: Context[Any, Any],
        pipeline_steps: Annotated[
            list[Any] | str, Field(description="List of Python codes, or of objects with name and code.")
        ],
        input_data: Data,
        description: Description = "",
    ) -> Annotated[CallToolResult, Execution]:
        """Run several steps of Python code, each on the result of the one before, which it finds in `data`."""
        return await self._run(context, steps_of(_value_of(pipeline_steps)), _value_of(input_data))

    async def store_execution_result(
        self, context: Context[Any, Any], context_key: Key, data: Data, description: Description = ""
    ) -> Annotated[CallToolResult, StoredResult]:
        """Store data under a key, for later code to find in `context[key]`."""
        value = _value_of(data)
        self._states.of(context).store(context_key, value, description)
        return answer(
            {"context_key": context_key, "data": value, "description": description}, f"Stored {context_key!r}."
        )

    async def get_execution_context(
        self, context: Context[Any, Any], context_key: Key
    ) -> Annotated[CallToolResult, StoredResult]:
        """A result that was stored before."""
        kept = self._states.of(context)
        stored = kept.get(context_key)
        if stored is None:
            there = ", ".join(kept.values) or "none"
            raise ToolError(f"Nothing is stored under {context_key!r}. Stored: {there}.")
        text = json.dumps(stored.value, ensure_ascii=False)
        return answer({"context_key": context_key, "data": stored.value, "description": stored.description}, text)

    async def _run(self, context: Context[Any, Any], steps: tuple[Step, ...], data: Any) -> CallToolResult:
        sandbox = cast("Sandbox", context.request_context.lifespan_context)
        names = {"data": data, "context": self._states.of(context).values}
        try:
            outcome = await sandbox.run(Program(steps=steps, names=names))
        except SandboxLostError as error:
            raise MCPError(INTERNAL_ERROR, str(error)) from error
        return _shown(outcome)


def make_server(*, world: int | None, allow_unsafe: bool = False) -> MCPServer:
    """Create the Python server without starting it. `world` appears only in the server's version.

    Raises SandboxMissingError if this machine cannot confine the code. With `allow_unsafe`, it then runs without a
    sandbox, for code that you trust.
    """
    launch = choose_launch(Limits(), allow_unsafe=allow_unsafe)

    @contextlib.asynccontextmanager
    async def lifespan(_: MCPServer) -> AsyncGenerator[Sandbox]:
        async with Sandbox(launch) as started:
            yield started

    version = "1" if world is None else f"1+market-{world}"
    server = MCPServer("python", version=version, log_level="WARNING", lifespan=lifespan)
    tools = PythonTools()
    reading: tuple[Callable[..., Any], ...] = (
        tools.execute_python,
        tools.process_mcp_data,
        tools.analyze_financial_data,
        tools.create_data_pipeline,
        tools.get_execution_context,
    )
    for tool in reading:
        server.add_tool(tool, annotations=read_only(is_live=False), meta=EPISODIC)
    server.add_tool(tools.store_execution_result, annotations=_STORES, meta=EPISODIC)
    return server


def _value_of(argument: Any) -> Any:
    try:
        return json_value(argument)
    except ValueError as error:
        raise ToolError(f"The data is {error}.") from error


def _shown(outcome: Outcome) -> CallToolResult:
    if isinstance(outcome, Failed):
        printed = outcome.stdout[-_OUTPUT_SHOWN_CHARS:].strip()
        raise ToolError(f"{outcome.message}\nPrinted before that:\n{printed}" if printed else outcome.message)
    parts = [part for part in (outcome.stdout.rstrip("\n"), outcome.stderr.rstrip("\n")) if part]
    if outcome.shown is not None:
        parts.append(f"Result: {outcome.shown}" if "\n" not in outcome.shown else f"Result:\n{outcome.shown}")
    text = "\n".join(parts) or "The code ran, printed nothing and has no result. Print it, or end with an expression."
    return answer({"stdout": outcome.stdout, "result": outcome.value}, text)
