"""Makes a project from recorded conversations: proven tasks, a cassette, demonstrations, a recipe and a report."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import tempfile
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, Final, cast

import yaml

from mcprl.config import EpisodesConfig
from mcprl.conversations import WrittenCall, calls_in, is_answer, text_of
from mcprl.errors import TaskFileError
from mcprl.goals import Goal
from mcprl.records import Message, Solution, Task
from mcprl.scaffold import DEFAULT_MODEL, locate_model, require_empty, run_name, with_model
from mcprl.secrets import SECRETS
from mcprl.servers import make_server
from mcprl.tasks.files import Row, TaskEntry, with_own_ids, write_tasks
from mcprl.tasks.formats import digest, is_skyrl_row, task_of_row
from mcprl.tasks.validation import alias_settings, drift_of, normalised_question
from mcprl.tools import Cassette, ServerSpec, Tool, Toolbox, ToolDefinition
from mcprl.tools.arguments import ArgumentCheck
from mcprl.tools.catalog import resolve_arguments
from mcprl_synthesis.derived_checks import REWARDS, Call, Conversation, Corpus, Derived, derive
from mcprl_synthesis.importing import (
    DEFAULT_SERVER,
    ImportRules,
    import_recordings,
    tells_of_an_error,
    tool_definitions,
)
from mcprl_synthesis.recordings import (
    ListedTool,
    Place,
    Recordings,
    conversations_of,
    read_conversation,
    read_recordings,
    rows_of,
    tools_in_prompt,
)

_STAND_INS: Final = ("fmp", "polygon", "tavily", "slack", "python")
_WORLD: Final = 7
_OPENING: Final = ("system", "developer", "user")
_EPISODES: Final = EpisodesConfig()
_VALIDATION = re.compile(r"(?i)(?:^|[^a-z])(?:validation|valid|val|dev|test|eval)(?:$|[^a-z])")
_THOUGHT = re.compile(r"<think>.*?(?:</think>|\Z)", re.DOTALL)
_FILES: Final = {"train": "tasks.jsonl", "validation": "validation.jsonl"}
_HELD_OUT = 5  # without a file of validation tasks, every fifth task is used for validation

RECORDED, STAND_IN, NOWHERE = "recorded", "stand-in", "nothing: not offered"

_RECIPE: Final = """\
# Created by `mcprl tasks import` from recorded conversations; report.md explains each row.
name: stock                 # the run's folder is outputs/stock
seed: 7
engine: vllm                # or transformers: slower, but works without vLLM

model:
  path: Qwen/Qwen3-0.6B     # a Hugging Face name, or a folder (./…, ../… or /…)
  renderer: auto            # chosen by the Hugging Face name; for a folder, set it: qwen3, chatml, template, …
  thinking: false           # answer without thinking; only for models that can do both, such as Qwen3
  context_tokens: 8192      # recorded results are long

tasks:
  train: tasks.jsonl
{validation}
# Tools with recordings are replayed; those of servers.json are called. To use your own server, change its entry there.
{servers}
sampling:
  max_tokens: 1024          # recorded answers are long too
  constrain: calls          # once started, a call must match the tool's schema; the learner accounts for this

episodes:
  group_size: 8

# Correct calls alone earn less than half the reward; efficiency is off, since recorded calls may not be efficient.
{rewards}
algorithm:
  old_logprobs: recomputed  # in bfloat16, vLLM and the learner differ slightly

learner:
  learning_rate: 1.0e-4

training:
  steps: 30
  tasks_per_step: {tasks_per_step}
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportedRow:
    """A row of a file, what was derived from it, and the split of its task: train, validation or None.

    ImportedRow(place=Place(file="train.json", row=1), task=Task(id="a01", …), derived=Derived(…), split="train", …)
    """

    place: Place
    task: Task
    conversation: Conversation
    derived: Derived
    split: str | None = None
    note: str = ""

    @property
    def is_demonstration(self) -> bool:
        return self.split == "train" and self.conversation.answer is not None

    @property
    def status(self) -> str:
        return "failed" if self.derived.failed else "proven" if self.derived.goal is not None else "not proven"

    def to_json(self) -> dict[str, Any]:
        derived = self.derived
        return {
            "file": self.place.file,
            "row": self.place.row,
            "task": self.task.id,
            "status": self.status,
            "split": self.split,
            "checks": derived.kinds,
            "why": [why for why in (derived.failed, *derived.lacks, self.note) if why],
            "scores": {name: round(value, 3) for name, value in (derived.scores or {}).items()},
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportedProject:
    """The result of an import. `worlds` says what answers the calls to each tool; `unreadable` lists what was left out
    and why.

    ImportedProject(folder=Path("quotes"), rows=(ImportedRow(…), …), worlds={"get_quote": "recorded"}, unreadable=())
    """

    folder: Path
    rows: tuple[ImportedRow, ...]
    worlds: Mapping[str, str]
    unreadable: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """Return the figures, and the result of each row."""
        usable = [row for row in self.rows if row.status != "failed"]
        proven = [row for row in usable if row.status == "proven"]
        return {
            "rows": len(self.rows),
            "usable": len(usable),
            "proven": len(proven),
            "checks": dict(Counter(kind for row in proven for kind in row.derived.kinds)),
            **{split: sum(row.split == split for row in self.rows) for split in _FILES},
            "demonstrations": sum(row.is_demonstration for row in self.rows),
            "tools": dict(self.worlds),
            "unreadable": list(self.unreadable),
            "by_row": [row.to_json() for row in self.rows],
        }

    def report(self) -> Iterator[str]:
        """Yield the lines of report.md."""
        figures = self.to_json()
        yield "# Imported conversations\n"
        yield f"{figures['rows']} rows, {figures['usable']} usable, {figures['proven']} with proven checks."
        splits = f"{figures['train']} training tasks, {figures['validation']} validation tasks"
        yield f"{splits}, {figures['demonstrations']} demonstrations.\n"
        yield "| check | rows |\n|---|---|"
        yield from (f"| {kind} | {number} |" for kind, number in figures["checks"].items())
        yield "\n| tool | answered by |\n|---|---|"
        yield from (f"| `{name}` | {world} |" for name, world in self.worlds.items())
        yield from (f"\nunreadable: {part}" for part in self.unreadable)
        yield "\n| row | task | | checks | why |\n|---|---|---|---|---|"
        for row in figures["by_row"]:
            checks = ", ".join(f"{kind} {number}" for kind, number in row["checks"].items())
            state = row["split"] or row["status"]
            yield f"| {row['file']} {row['row']} | {row['task']} | {state} | {checks} | {'; '.join(row['why'])} |"


@dataclass(frozen=True, slots=True)
class _Read:
    """A row, its longest conversation, and the calls in it."""

    place: Place
    task: Task
    value: Any
    messages: list[Any]
    recordings: Recordings


def import_project(files: Sequence[Path], out: Path, model: str = DEFAULT_MODEL) -> ImportedProject:
    """Write a project into a folder that is new or empty.

    Raises an McprlError, and writes nothing, if a file cannot be read or no task can be proven.
    """
    require_empty(out)
    recordings = read_recordings(files)
    read = _with_own_ids([row for path in files for row in _read_rows(path)])
    shipped = asyncio.run(_shipped_tools())
    named = {
        *recordings.tools,
        *(call.tool for call in recordings.calls),
        *(n for row in read for n in row.task.tools or ()),
    }
    server_of = {tool.name: name for name, tools in shipped.items() for tool in tools if tool.name in named}
    listed = {
        tool.name: ListedTool(definition=tool, read_only=tool.read_only)
        for tools in shipped.values()
        for tool in tools
        if tool.name in server_of and tool.name not in recordings.tools
    }
    rules = ImportRules(servers=(*((server, name) for name, server in server_of.items()), (DEFAULT_SERVER, "*")))
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder) / "cassette.sqlite"
        with Cassette.open(scratch, writable=True) as cassette:
            definitions = tool_definitions(recordings, rules, {**recordings.tools, **listed})
            tools = {name: _tool(tool, rules) for name, tool in definitions.items()}
            settings = alias_settings(drift_of(_written_calls(read), tools))
            renamed = [kinds.get("argument_aliases", {}) for kinds in settings.values()]
            rules = replace(rules, aliases={alias: meant for kind in renamed for alias, meant in kind.items()})
            import_recordings(recordings, cassette, rules, listed)
            worlds = _worlds(tools, shipped, cassette.recorded_tools())
            rows = _derived(read, tools, rules, worlds)
        unreadable = tuple(f"{part.place}: {part.why}" for part in recordings.unreadable)
        project = ImportedProject(folder=out, rows=tuple(rows), worlds=worlds, unreadable=unreadable)
        _write(project, tools, scratch, {"settings": settings, "model": model})
    return project


def _worlds(
    tools: Mapping[str, Tool], shipped: Collection[str], recorded: Collection[tuple[str, str]]
) -> dict[str, str]:
    """Return what answers the calls to each tool: the recordings, or a server that comes with mcprl.

    Such a server is used if one of its tools writes, because the effects of writes are not recorded.
    """
    started = {tool.server for tool in tools.values() if not tool.read_only and tool.server in shipped}
    return {
        name: RECORDED if (tool.server, name) in recorded else STAND_IN if tool.server in started else NOWHERE
        for name, tool in tools.items()
    }


async def _shipped_tools() -> dict[str, tuple[ToolDefinition, ...]]:
    """Return the tools of the installed servers that come with mcprl, by server."""
    installed = {entry.name for entry in entry_points(group="mcprl.servers")}
    specs = [
        ServerSpec(name=name, make=partial(make_server, name, world=_WORLD)) for name in _STAND_INS if name in installed
    ]
    if not specs:
        return {}
    with tempfile.TemporaryDirectory() as folder:
        async with Toolbox(specs, log_dir=Path(folder)) as toolbox:
            return {server: tools for server, (_, tools) in toolbox.definitions.items()}


def _read_rows(path: Path) -> Iterator[_Read]:
    for place, value in rows_of(path, Recordings()):
        found = Recordings()
        conversations = list(conversations_of(value, place, found))
        if conversations:
            longest = max(conversations, key=len)
            read_conversation(longest, place, found, set())
            yield _Read(place, _task(value, longest, found), value, longest, found)


def _with_own_ids(read: Sequence[_Read]) -> list[_Read]:
    rows = (Row(file=Path(row.place.file), number=row.place.row, value=row.value) for row in read)
    entries = with_own_ids([TaskEntry(task=row.task, row=own) for row, own in zip(read, rows, strict=True)])
    return [replace(row, task=entry.task) for row, entry in zip(read, entries, strict=True)]


def _task(value: Any, messages: Sequence[Any], found: Recordings) -> Task:
    """Return a row's task without its goal. It is read from SkyRL's format, or the messages before the first answer."""
    if is_skyrl_row(value):
        return task_of_row(value)[0]
    prompt: list[Message] = []
    for message in messages:
        if not isinstance(message, dict) or (fields := cast("dict[str, Any]", message)).get("role") not in _OPENING:
            break
        if not tools_in_prompt(text_of(fields)):
            prompt.append({"role": fields["role"], "content": text_of(fields)})
    given: Any = cast("dict[str, Any]", value).get("id") if isinstance(value, dict) else None
    name = given if isinstance(given, str) and given else f"q-{digest([message['content'] for message in prompt])}"
    tools = tuple(dict.fromkeys([*found.tools, *(call.tool for call in found.calls)]))
    return Task(id=name, prompt=tuple(prompt), goal=Goal(), tools=tools)


def _tool(definition: ToolDefinition, rules: ImportRules) -> Tool:
    return Tool(
        name=definition.name,
        description=definition.description,
        parameters=definition.parameters,
        server=rules.server_of(definition.name) or DEFAULT_SERVER,
        read_only=definition.read_only,
    )


def _written_calls(read: Iterable[_Read]) -> Iterator[tuple[str, str, int, WrittenCall]]:
    for row in read:
        for call in row.recordings.calls:
            yield str(row.place), "", 0, WrittenCall(name=call.tool, arguments=call.arguments)


def _conversation(row: _Read, tools: Mapping[str, Tool], rules: ImportRules) -> Conversation:
    calls: list[Call] = []
    defaults: dict[tuple[str, str], Any] = {}
    for call in row.recordings.calls:
        tool = tools[call.tool]
        properties: dict[str, Any] = tool.parameters.get("properties", {})
        defaults |= {(call.tool, name): field["default"] for name, field in properties.items() if "default" in field}
        arguments = resolve_arguments(call.arguments, properties, rules.aliases)
        # A recorded call that does not fit the tool's definition cannot be made again.
        fits = ArgumentCheck(tool.name, tool.server, tool.parameters).problem(arguments) is None
        calls.append(
            Call(
                tool=call.tool,
                arguments=SECRETS.redact_json(arguments),
                text=SECRETS.redact(call.text),
                failed=not fits or tells_of_an_error(call),
                writes=not tool.read_only,
            )
        )
    last: Any = row.messages[-1]
    on_tool = isinstance(last, dict) and is_answer(cast("dict[str, Any]", last))
    return Conversation(
        prompt=row.task.prompt, calls=tuple(calls), answer=_answer(last), ended_on_tool=on_tool, defaults=defaults
    )


def _answer(last: Any) -> str | None:
    """Return the text of the last message without thoughts, or None if it is not an answer."""
    message = cast("dict[str, Any]", last) if isinstance(last, dict) else {}
    if message.get("role") != "assistant" or calls_in(message):
        return None
    return SECRETS.redact(_THOUGHT.sub("", text_of(message)).strip()) or None


def _derived(
    read: Sequence[_Read], tools: Mapping[str, Tool], rules: ImportRules, worlds: Mapping[str, str]
) -> list[ImportedRow]:
    """Derive the checks of every row, and assign each task to a split."""
    conversations = [_conversation(row, tools, rules) for row in read]
    corpus = Corpus(conversations)
    usable = [name for name, world in worlds.items() if world != NOWHERE]
    rows = [
        ImportedRow(
            place=row.place,
            task=_with_goal(row.task, conversation, derived, usable),
            conversation=conversation,
            derived=derived,
        )
        for row, conversation in zip(read, conversations, strict=True)
        for derived in (derive(conversation, corpus),)
    ]
    rows = _split(rows)
    if not any(row.split == "train" for row in rows):
        raise TaskFileError(
            "no conversation yields a task whose checks can be proven",
            fix="pass conversations whose answers contain values that tools returned",
        )
    return rows


def _with_goal(task: Task, conversation: Conversation, derived: Derived, usable: Sequence[str]) -> Task:
    """Return the task with its goal, its solution, and only those of its tools whose calls can be answered."""
    if derived.goal is None:
        return task
    solution = None
    if conversation.answer is not None:
        solution = Solution(calls=tuple(call.as_call for call in derived.calls), answer=conversation.answer)
    limit = _EPISODES.turn_limit(task)
    return replace(
        task,
        goal=derived.goal,
        tools=tuple(name for name in task.tools or usable if name in usable),
        solution=solution,
        max_turns=len(derived.calls) + 1 if len(derived.calls) >= limit else None,
    )


def _split(rows: Sequence[ImportedRow]) -> list[ImportedRow]:
    """Assign each proven task to train or validation. Train has no question that is in validation."""
    proven = [row for row in rows if row.status == "proven"]
    held = {row.task.id for row in proven if _VALIDATION.search(Path(row.place.file).stem)}
    held = held or {row.task.id for row in proven[_HELD_OUT - 1 :: _HELD_OUT]}
    asked = {normalised_question(row.task) for row in proven if row.task.id in held}
    seen: set[tuple[str, str]] = set()

    def placed(row: ImportedRow) -> ImportedRow:
        split, question = "validation" if row.task.id in held else "train", normalised_question(row.task)
        lacking = {call.tool for call in row.derived.calls} - set(row.task.tools or ())
        if lacking:
            note = f"neither a recording nor one of mcprl's servers can answer calls to {', '.join(sorted(lacking))}"
        elif split == "train" and question in asked:
            note = "a validation task asks the same question"
        elif (split, question) in seen:
            note = "another row asks the same question"
        else:
            seen.add((split, question))
            return replace(row, split=split)
        return replace(row, note=note)

    return [placed(row) if row.status == "proven" else row for row in rows]


def _write(project: ImportedProject, tools: Mapping[str, Tool], cassette: Path, recipe: Mapping[str, Any]) -> None:
    out = project.folder
    out.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(cassette, out / "cassette.sqlite")
    for split, name in _FILES.items():
        if chosen := [row.task for row in project.rows if row.split == split]:
            write_tasks(chosen, out / name)
    lines = [json.dumps(_demonstration(row, tools), ensure_ascii=False) for row in project.rows if row.is_demonstration]
    (out / "demonstrations.jsonl").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    started = sorted({tools[name].server for name, world in project.worlds.items() if world == STAND_IN})
    servers = {name: {"command": "mcprl", "args": ["serve", name, "--world", str(_WORLD)]} for name in started}
    (out / "servers.json").write_text(json.dumps({"mcpServers": servers}, indent=2) + "\n", encoding="utf-8")
    (out / "recipe.yaml").write_text(_recipe(project, has_servers=bool(started), **recipe), encoding="utf-8")
    (out / "report.json").write_text(json.dumps(project.to_json(), indent=2) + "\n", encoding="utf-8")
    (out / "report.md").write_text("".join(f"{line}\n" for line in project.report()), encoding="utf-8")


def _recipe(project: ImportedProject, *, settings: Mapping[str, Any], model: str, has_servers: bool) -> str:
    location, renderer = locate_model(model)
    validation = any(row.split == "validation" for row in project.rows)
    servers: dict[str, Any] = {"cassette": "cassette.sqlite", "cassette_mode": "mixed" if has_servers else "replay"}
    servers |= {"file": "servers.json"} if has_servers else {}
    servers |= {"settings": dict(settings)} if settings else {}
    weights = {name: getattr(REWARDS, name) for name in ("answer", "state", "calls", "arguments", "efficiency")}
    text = _RECIPE.format(
        validation="  validation: validation.jsonl\n" if validation else "",
        servers=yaml.safe_dump({"servers": servers}, sort_keys=False),
        rewards=yaml.safe_dump({"rewards": weights}, sort_keys=False),
        tasks_per_step=min(4, sum(row.split == "train" for row in project.rows)),
    )
    return with_model(text, run_name(project.folder), location, renderer)


def _demonstration(row: ImportedRow, tools: Mapping[str, Tool]) -> dict[str, Any]:
    """Return the solution of a task as a chat in OpenAI's format, with the recorded results."""
    messages: list[dict[str, Any]] = [dict(message) for message in row.task.prompt]
    for number, call in enumerate(row.derived.calls):
        function = {"name": call.tool, "arguments": json.dumps(call.arguments, ensure_ascii=False)}
        made = {"id": f"call_{number}", "type": "function", "function": function}
        messages.append({"role": "assistant", "content": "", "tool_calls": [made]})
        messages.append({"role": "tool", "tool_call_id": made["id"], "name": call.tool, "content": call.text})
    messages.append({"role": "assistant", "content": row.conversation.answer})
    offered = [tools[name] for name in row.task.tools or ()]
    functions = ({"name": t.name, "description": t.description, "parameters": t.parameters} for t in offered)
    return {
        "task": row.task.id,
        "messages": messages,
        "tools": [{"type": "function", "function": f} for f in functions],
    }
