"""Arguments that several commands share, and how they are parsed."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import AsyncGenerator, Generator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Protocol

import typer

if TYPE_CHECKING:
    from mcprl.episodes.endpoint import EndpointSettings
    from mcprl.records import Task
    from mcprl.tools import Toolbox


class _Opens(Protocol):
    def __call__(self, *, log_dir: Path) -> AbstractAsyncContextManager[Toolbox]: ...


@contextmanager
def temporary_logs() -> Generator[Path]:
    """Create a temporary folder for server logs. It is removed at the end, unless an error names a file in it."""
    from mcprl.errors import McprlError

    folder = Path(tempfile.mkdtemp(prefix="mcprl-"))
    kept = False
    try:
        yield folder
    except McprlError as error:
        kept = str(folder) in str(error)
        raise
    finally:
        if not kept:
            shutil.rmtree(folder, ignore_errors=True)


@asynccontextmanager
async def shown_opening(opens: _Opens, then: str) -> AsyncGenerator[Toolbox]:
    """Open a toolbox with temporary logs. The status line says that servers are starting. Once the toolbox is
    open, the line shows the text in `then`."""
    from rich.console import Console
    from rich.text import Text

    from mcprl.cli.printing import printable

    with (
        temporary_logs() as logs,
        Console(stderr=True, highlight=False).status("starting the tool servers …") as status,
    ):
        async with opens(log_dir=logs) as toolbox:
            status.update(Text(f"{printable(then)} …"))
            yield toolbox


def choose_task(file: Path, wanted: str) -> Task:
    """Return the task with this id, or the first task of the file if the id is empty."""
    from mcprl.errors import BadValueError, did_you_mean
    from mcprl.tasks import load_tasks

    tasks = load_tasks(file)
    by_id = {task.id: task for task in tasks}
    if not wanted:
        return tasks[0]
    if wanted not in by_id:
        hint = did_you_mean(wanted, by_id)
        raise BadValueError(f"{file} has no task {wanted!r}{hint}", fix=f"`mcprl tasks show {file}` lists the tasks")
    return by_id[wanted]


def parse_pairs(values: Sequence[str]) -> list[tuple[str, str]]:
    """Parse ["name=Ana"] to [("name", "Ana")]. Raises BadValueError if "=" or the name is missing."""
    from mcprl.errors import BadValueError

    pairs: list[tuple[str, str]] = []
    for value in values:
        name, equals, other = value.partition("=")
        if not (name and equals):
            raise BadValueError(f"{value!r} is not KEY=VALUE", fix="write KEY=VALUE")
        pairs.append((name, other))
    return pairs


_VALUE_WORDS = ("$schema", "$defs", "definitions", "properties")


def typed_value(parameters: Mapping[str, Any], key: str, text: str) -> Any:
    """Parse the text as JSON if the schema accepts the result for this argument; otherwise return the text itself."""
    from mcprl.tools.arguments import ArgumentCheck

    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return text
    if isinstance(value, str):
        return text  # quotes around a text belong to the text
    # Use only the schema of this argument, because other arguments may still be missing.
    schema = {word: parameters[word] for word in _VALUE_WORDS if word in parameters}
    return value if ArgumentCheck(key, "", schema).problem({key: value}) is None else text


def endpoint_settings(
    url: str | None,
    model: str | None,
    key_env: str,
    price: tuple[float, float] | None,
    max_usd: float | None,
    per_minute: int | None,
    body: Sequence[str] | None,
) -> EndpointSettings | None:
    """Return the endpoint that the options describe, or None without --endpoint."""
    from mcprl.episodes.endpoint import EndpointSettings
    from mcprl.errors import BadValueError

    if url is None:
        if price or max_usd is not None or per_minute or body:
            raise BadValueError("--price, --max-usd, --per-minute and --body need --endpoint", fix="add --endpoint URL")
        return None
    if not model:
        raise BadValueError("--endpoint needs the name of a model to request", fix="add --model NAME")
    fields: dict[str, Any] = {}
    for name, value in parse_pairs(body or ()):
        try:
            fields[name] = json.loads(value)
        except ValueError:
            fields[name] = value
    return EndpointSettings(
        url=url, model=model, key_env=key_env, price=price, max_usd=max_usd, per_minute=per_minute, body=fields
    )


Endpoint = Annotated[
    str | None,
    typer.Option(
        "--endpoint", metavar="URL", help="Run the episodes with the model at this OpenAI-compatible endpoint."
    ),
]
KeyEnv = Annotated[str, typer.Option("--key-env", help="Environment variable that holds the endpoint's key.")]
Price = Annotated[
    tuple[float, float] | None,
    typer.Option(
        "--price",
        metavar="IN OUT",
        min=0,
        help="Prices in USD per million prompt tokens and per million completion tokens.",
    ),
]
MaxUsd = Annotated[
    float | None,
    typer.Option("--max-usd", min=0, help="Spending limit in USD; requests that could exceed it are not sent."),
]
PerMinute = Annotated[int | None, typer.Option("--per-minute", min=1, help="Maximum requests per minute.")]
Body = Annotated[
    list[str] | None,
    typer.Option("--body", metavar="KEY=VALUE", help="Set a field of each request; null removes it. May be repeated."),
]
DEFAULT_KEY_ENV = "OPENAI_API_KEY"

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, for scripts.")]
Recipe = Annotated[Path, typer.Argument(help="YAML file with the run's settings.", show_default=False)]
Overrides = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Change a setting, e.g. training.steps=3. May be repeated."),
]
