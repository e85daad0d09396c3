"""Checks of the model before it is loaded: its files, its chat template, the prompt length, the tools' grammar.

The length of prompts is measured in one of two ways. With --fast, only the tokens of the messages are counted, which is
a lower bound. Otherwise, prompts are rendered with the model's libraries, as in the run.
"""

from __future__ import annotations

import asyncio
import importlib.util
import json
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from rich.filesize import decimal

from mcprl.checks.doctor.examination import Examination, Finding, fine, hub_folder, warning, wrong
from mcprl.config import ModelConfig, RunConfig
from mcprl.episodes.environment import tool_specs
from mcprl.errors import BadValueError
from mcprl.records import Message, Task
from mcprl.samplers.model_folder import check_files, renderer_of
from mcprl.tools import Catalog, Tool

if TYPE_CHECKING:
    from mcprl.chat import Chat

_TOKENIZERS = ("tokenizer.json", "tokenizer.model", "vocab.json", "spiece.model")
_WITHOUT_SWITCH = ("chatml", "template")
_CHARACTERS_PER_TOKEN = 4
# How many prompts are rendered to measure their length: those with the most characters.
_RENDERED = 64
_AGAIN = "download or copy the complete model again"

Count = Callable[[str], int]
Length = Callable[[Task], int]


async def check_model(examination: Examination) -> AsyncIterator[Finding]:
    """Check that the model's files are complete (for a hub model: in the cache), and that its renderer fits."""
    model = examination.config.value.model
    for finding in _renderer(model):
        yield finding
    is_folder = _is_folder(model.path)
    folder = Path(model.path) if is_folder else hub_folder(model.path)
    if folder is None:
        yield warning(
            "model",
            f"{model.path} is not in this machine's cache, so its first use would download it from the hub",
            fix=f"download it with `hf download {model.path}`, then run doctor again",
        )
        return
    if not folder.is_dir():
        raise BadValueError(
            f"model.path is {folder}, which does not exist",
            fix="correct model.path; scripts/setup builds the models of the shipped recipes",
        )
    weights = await asyncio.to_thread(_weight_bytes, folder)
    examination.model.put(str(folder))
    yield fine("model", f"{folder.name if is_folder else model.path}: {decimal(weights)} of weights, and a tokenizer")
    for finding in _context(examination.config.value, folder):
        yield finding


def _context(config: RunConfig, folder: Path) -> Iterator[Finding]:
    """Compare model.context_tokens with the model's number of positions, unless the model scales them."""
    known = json.loads((folder / "config.json").read_text())
    positions, wanted = known.get("max_position_embeddings"), config.model.context_tokens
    scaled = known.get("rope_scaling") or "factor" in (known.get("rope_parameters") or {})
    if not isinstance(positions, int) or wanted <= positions or scaled:
        return
    what = f"model.context_tokens is {wanted}, but the model has {positions} positions"
    fix = f"set model.context_tokens to {positions} or less"
    if config.engine == "vllm":
        yield wrong("model context", f"{what}: vLLM would not start", fix, BadValueError.code)
    else:
        yield warning("model context", f"{what}: its output beyond them is unreliable", fix=fix)


def _is_folder(path: str) -> bool:
    return path.startswith((".", "/"))


def _renderer(model: ModelConfig) -> Iterator[Finding]:
    """Yield a finding if the renderer cannot work. Does not load the rendering libraries."""
    if model.renderer == "auto" and _is_folder(model.path):
        fits = renderer_of(Path(model.path))
        also = "" if model.thinking is None else "; for chatml and template, also remove model.thinking"
        if fits is not None:
            also = " and remove model.thinking" if model.thinking is not None and fits in _WITHOUT_SWITCH else ""
        yield wrong(
            "renderer",
            f"model.renderer is auto, which needs a hub name in model.path instead of the folder {model.path}",
            fix=f"set model.renderer to {fits or 'the family of the model (such as qwen3), to chatml or to template'}"
            f"{also}",
            code=BadValueError.code,
        )
    elif model.renderer in _WITHOUT_SWITCH and model.thinking is not None:
        what = f"model.thinking is {str(model.thinking).lower()}, but {model.renderer} cannot turn thinking on or off"
        yield wrong("renderer", what, fix="remove model.thinking", code=BadValueError.code)


def _weight_bytes(folder: Path) -> int:
    """Return the size of the weights in bytes. Raises BadValueError if a file of the model is missing or truncated."""
    try:
        check_files(folder)
    except BadValueError as error:
        raise BadValueError(error.what, fix=_AGAIN) from error
    if not any((folder / name).is_file() for name in _TOKENIZERS):
        raise BadValueError(
            f"{folder} has no tokenizer: it should contain one of {', '.join(_TOKENIZERS)}",
            fix="copy the tokenizer files of the same model into the folder",
        )
    file = folder / "tokenizer.json"
    if file.is_file():
        written = file.read_bytes().strip()  # not parsed, because a large vocabulary takes a second
        if not (written.startswith(b"{") and written.endswith(b"}") and b'"added_tokens"' in written):
            raise BadValueError(f"{file} is not a tokenizer, or is truncated", fix=_AGAIN)
    return sum(file.stat().st_size for file in folder.glob("*.safetensors"))


async def check_template(examination: Examination) -> AsyncIterator[Finding]:
    """Check that continuing a conversation turn by turn gives the same tokens as rendering it as a whole."""
    from mcprl.chat import load_chat

    model = examination.config.value.model
    chat = await asyncio.to_thread(load_chat, model.path, model.renderer, thinking=model.thinking)
    examination.chat.put(chat)
    joined, rendered = _two_ways(chat)
    if joined == rendered:
        yield fine(
            "template", f"{chat.family}: continuing a conversation and rendering it from scratch give the same tokens"
        )
        return
    yield warning(
        "template",
        f"{chat.family}: continuing a conversation and rendering it from scratch give different tokens; training "
        "always continues the conversation, but an inference server that renders it from scratch would give the policy "
        "prompts that differ from those in training",
        fix="call the served model with a client that keeps the tokens of earlier turns, or try "
        "model.renderer=template or model.renderer=chatml",
    )


def _two_ways(chat: Chat) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the tokens of a conversation continued by the chat, and of the same conversation rendered as a whole."""
    asked: list[Message] = [{"role": "user", "content": "Where is Ana?"}]
    said: Message = {"role": "assistant", "content": "In which town?"}
    answered: Message = {"role": "user", "content": "In Lima."}
    prompt = chat.open(asked, [])
    turn = tuple(chat.tokenizer.encode(said["content"], add_special_tokens=False))
    added = chat.extend(prompt, turn, [answered], [])
    return (*prompt, *turn, *added), chat.open([*asked, said, answered], [])


async def check_prompts(examination: Examination) -> AsyncIterator[Finding]:
    """Compare the length of prompts in tokens with the context that the recipe allows."""
    config, tasks = examination.config.value, examination.tasks.value.tasks
    preamble, catalog = examination.preamble.value, examination.catalog.value
    room, turn = config.model.context_tokens, config.sampling.max_tokens
    count, length, how = _measures(examination, preamble, catalog)
    chosen = sorted(tasks, key=_characters, reverse=True)[:_RENDERED]
    lengths = await asyncio.to_thread(lambda: {task.id: length(task) for task in chosen})
    longest = max(lengths, key=lambda task_id: lengths[task_id])
    figures = f"median {median(lengths.values()):,.0f}, longest {lengths[longest]:,} tokens ({longest}), {how}"
    too_long = [task_id for task_id, tokens in lengths.items() if tokens >= room]
    if too_long:
        yield wrong(
            "prompt length",
            f"the prompts of {len(too_long)} tasks leave no room in model.context_tokens ({room:,}): {figures}",
            fix=f"raise model.context_tokens above {lengths[longest] + turn:,}, shorten the preamble, or offer fewer "
            "tools per task",
            code=BadValueError.code,
        )
    elif lengths[longest] + turn > room:
        yield warning(
            "prompt length",
            f"the longest prompt plus a turn of sampling.max_tokens ({turn:,}) exceeds model.context_tokens "
            f"({room:,}): {figures}",
            fix=f"raise model.context_tokens above {lengths[longest] + turn:,}, or lower sampling.max_tokens",
        )
    else:
        yield fine("prompt length", f"{figures}; {room - lengths[longest]:,} are left for turns")
    if config.algorithm.warm_start.weight > 0:
        for finding in await asyncio.to_thread(list, _solution_lengths(tasks, length, count, config)):
            yield finding


def _solution_lengths(tasks: Sequence[Task], length: Length, count: Count, config: RunConfig) -> Iterator[Finding]:
    """Find solutions that are longer than a turn or the context, even without markup and tool results."""
    turns = {task.id: _solution_turns(task) for task in tasks if task.solution is not None}
    chosen = [task for task in tasks if task.id in turns]
    chosen.sort(key=lambda task: _characters(task) + sum(map(len, turns[task.id])))
    by_turn = {task.id: max(map(count, turns[task.id])) for task in chosen}
    in_all = {task.id: length(task) + count("\n".join(turns[task.id])) for task in chosen[-_RENDERED:]}
    for sizes, limit, setting, what in (
        (by_turn, config.sampling.max_tokens, "sampling.max_tokens", "have a turn that exceeds"),
        (in_all, config.model.context_tokens, "model.context_tokens", "(each with its prompt) exceed"),
    ):
        too_long = {
            task_id: size for task_id, size in sizes.items() if size >= limit
        }  # not `>`, because the end-of-turn token counts too
        if too_long:
            longest, size = max(too_long.items(), key=lambda item: item[1])
            yield wrong(
                "warm start",
                f"{len(too_long)} solutions {what} {setting} ({limit:,}): the longest ({longest}) has over {size:,} "
                "tokens",
                fix=f"raise {setting}, or shorten the solutions",
                code=BadValueError.code,
            )


def _solution_turns(task: Task) -> list[str]:
    """Return the minimum text of each turn: a call's name and arguments, or the answer."""
    turns: list[str] = []
    for solution in task.solutions:
        turns += [f"{call.name} {json.dumps(dict(call.arguments), default=str)}" for call in solution.calls]
        turns.append(solution.answer)
    return turns


def _measures(examination: Examination, preamble: Sequence[Message], catalog: Catalog) -> tuple[Count, Length, str]:
    """Return functions that count the tokens of a string and of a task's prompt, and a description of the method."""
    if examination.chat.there:
        chat = examination.chat.value
        return (
            lambda text: len(chat.tokenizer.encode(text, add_special_tokens=False)),
            lambda task: len(chat.open([*preamble, *task.prompt], tool_specs(_offered(task, catalog)))),
            "rendered as in the run",
        )
    count, how = _counter(examination)
    return count, _least_length(count, preamble, catalog), how


def _least_length(count: Count, preamble: Sequence[Message], catalog: Catalog) -> Length:
    before = sum(count(_text(message)) for message in preamble)
    tools = {tool.name: count(json.dumps(list(tool_specs([tool])))) for tool in catalog}

    def length(task: Task) -> int:
        offered = sum(tools[tool.name] for tool in _offered(task, catalog))
        return before + offered + sum(count(_text(message)) for message in task.prompt)

    return length


def _offered(task: Task, catalog: Catalog) -> list[Tool]:
    names = catalog.names if task.tools is None else task.tools
    return [catalog[name] for name in names if name in catalog]


def _counter(examination: Examination) -> tuple[Count, str]:
    """Return a function that counts the tokens of a string: with the model's tokenizer, or else by a rule of thumb."""
    if examination.model.there:
        file = Path(examination.model.value) / "tokenizer.json"
        if file.is_file() and importlib.util.find_spec("tokenizers") is not None:
            from tokenizers import Tokenizer

            tokenizer = Tokenizer.from_file(str(file))
            return lambda text: len(tokenizer.encode(text, add_special_tokens=False).ids), "without the chat template"
    return lambda text: len(text) // _CHARACTERS_PER_TOKEN, f"at {_CHARACTERS_PER_TOKEN} characters per token"


def _text(message: Message) -> str:
    """Return the parts of a message that every template renders: the content, and the names and arguments of calls."""
    calls = [call.get("function", call) for call in message.get("tool_calls", [])]
    return message["content"] + "".join(f"{call.get('name')} {json.dumps(call.get('arguments'))}" for call in calls)


def _characters(task: Task) -> int:
    return sum(len(message["content"]) for message in task.prompt)


async def check_grammar(examination: Examination) -> AsyncIterator[Finding]:
    """Check that the tools' schemas compile to a grammar, if the recipe constrains calls."""
    config, catalog = examination.config.value, examination.catalog.value
    if config.sampling.constrain == "off":
        yield fine("grammar", "none: sampling.constrain is off")
        return
    from mcprl.episodes.environment import require_grammar
    from mcprl.grammar.masks import TurnGrammars, load_grammars

    catalog.require(config.sampling.loose_tools, wanted_by="sampling.loose_tools")
    grammars = await asyncio.to_thread(load_grammars, config.model.path)
    turn_grammars = TurnGrammars(examination.chat.value, grammars, config.sampling)
    tasks = examination.tasks.value.tasks if examination.tasks.there else ()
    await asyncio.to_thread(require_grammar, tasks, catalog, turn_grammars)
    yield fine(
        "grammar", f"the schemas of {len(catalog)} tools compile; sampling.constrain is {config.sampling.constrain}"
    )
