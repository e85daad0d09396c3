"""The model of a recipe before it is loaded: its files, its chat template, the length of prompts, the tools' grammar.

The length of prompts is asked twice: --fast counts the tokens of the texts alone, which no template makes fewer; with
the model's libraries at hand, prompts are rendered as the run will render them.
"""

from __future__ import annotations

import asyncio
import importlib.util
import json
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from mcprl.checks.doctor.examination import Examination, Finding, fine, hub_folder, in_words, warning, wrong
from mcprl.episodes.environment import tool_specs
from mcprl.errors import BadValueError
from mcprl.records import Message, Solution, Task
from mcprl.samplers.model_folder import check_files
from mcprl.tools import Catalog, Tool

if TYPE_CHECKING:
    from mcprl.chat import Chat

__all__ = ["check_grammar", "check_model", "check_prompts", "check_template"]


_TOKENIZERS = ("tokenizer.json", "tokenizer.model", "vocab.json", "spiece.model")
_CHARACTERS_PER_TOKEN = 4
# Prompts that are rendered to know their length: the longest by their characters are among them.
_RENDERED = 64


async def check_model(examination: Examination) -> AsyncIterator[Finding]:
    """Whether the folder of the model is there and whole, or the hub's model in this machine's cache."""
    path = examination.config.value.model.path
    folder = _folder(path)
    if folder is None:
        yield warning(
            "model",
            f"this machine: {path} is not in its cache; the recipe may be right, and the hub would be asked at the "
            "first use",
            fix=f"fetch it once with `hf download {path}`, then examine the recipe again",
        )
        return
    weights = await asyncio.to_thread(_look_at, folder)
    examination.model.put(str(folder))
    name = folder.name if _is_folder(path) else path
    yield fine("model", f"{name}: {in_words(weights)} of weights, and a tokenizer")


def _is_folder(path: str) -> bool:
    return path.startswith((".", "/"))


def _folder(path: str) -> Path | None:
    """Where the model's files are; None where the hub would have to be asked for them."""
    if not _is_folder(path):
        return hub_folder(path)
    folder = Path(path)
    if not folder.is_dir():
        raise BadValueError(
            f"model.path is {path}, and there is no such folder",
            fix="correct model.path; scripts/setup builds the models of the shipped recipes",
        )
    return folder


def _look_at(folder: Path) -> int:
    """The bytes of the weights. Raises where something of a model is missing in the folder."""
    try:
        check_files(folder)
    except BadValueError as error:
        raise BadValueError(error.what, fix="fetch or copy the whole model again") from error
    if not any((folder / name).is_file() for name in _TOKENIZERS):
        raise BadValueError(
            f"{folder} holds a model without a tokenizer: none of {', '.join(_TOKENIZERS)} is there",
            fix="copy the tokenizer's files of the same model into the folder",
        )
    _look_at_tokenizer(folder / "tokenizer.json")
    return sum(file.stat().st_size for file in folder.glob("*.safetensors"))


def _look_at_tokenizer(file: Path) -> None:
    """Refuse a file that is cut off or something else: the libraries that read it say that in words of their own."""
    if not file.is_file():
        return
    written = file.read_bytes().strip()  # not parsed: that takes a second where the vocabulary is large
    if not (written.startswith(b"{") and written.endswith(b"}") and b'"added_tokens"' in written):
        raise BadValueError(f"{file} is no tokenizer, or was cut off", fix="fetch or copy the whole model again")


async def check_template(examination: Examination) -> AsyncIterator[Finding]:
    """Whether a conversation can be continued without changing a token of it, and what a server would render later."""
    from mcprl.chat import load_chat

    model = examination.config.value.model
    chat = await asyncio.to_thread(load_chat, model.path, model.renderer, thinking=model.thinking)
    examination.chat.put(chat)
    joined, rendered = _two_ways(chat)
    if joined == rendered:
        yield fine("template", f"{chat.family}: a conversation that is continued and one rendered anew are the same")
        return
    yield warning(
        "template",
        f"{chat.family}: rendered anew, a conversation is not what it was when it was continued turn by turn; training "
        "is right, since it never renders anew, but a server that does shows the policy other prompts than it knows",
        fix="serve the trained model through a client that continues conversations token by token, or try "
        "model.renderer template or chatml",
    )


def _two_ways(chat: Chat) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """A conversation continued by the chat's own bridge, and the same rendered as a whole."""
    asked: list[Message] = [{"role": "user", "content": "Where is Ana?"}]
    said: Message = {"role": "assistant", "content": "In which town?"}
    answered: Message = {"role": "user", "content": "In Lima."}
    prompt = chat.open(asked, [])
    turn = tuple(chat.tokenizer.encode(said["content"], add_special_tokens=False))
    added = chat.extend(prompt, turn, [answered], [])
    return (*prompt, *turn, *added), chat.open([*asked, said, answered], [])


async def check_prompts(examination: Examination) -> AsyncIterator[Finding]:
    """How long prompts are, in tokens, against the longest conversation that the recipe allows."""
    config, tasks, catalog = examination.config.value, examination.tasks.value.tasks, examination.catalog.value
    preamble = examination.preamble.value
    room, turn = config.model.context_tokens, config.sampling.max_tokens
    if examination.chat.there:
        chat, exact = examination.chat.value, "rendered as the run will"
        count = _encoded_length(chat)
        length = _rendered_length(chat, preamble, catalog)
    else:
        count, exact = _counter(examination)
        length = _least_length(count, preamble, catalog)
    chosen = sorted(tasks, key=_characters, reverse=True)[:_RENDERED]
    lengths = await asyncio.to_thread(lambda: {task.id: length(task) for task in chosen})
    longest = max(lengths, key=lambda task_id: lengths[task_id])
    figures = f"median {median(lengths.values()):,.0f}, longest {lengths[longest]:,} tokens ({longest}), {exact}"
    too_long = [task_id for task_id, tokens in lengths.items() if tokens >= room]
    if too_long:
        yield wrong(
            "prompt length",
            f"the prompts of {len(too_long)} tasks fill model.context_tokens ({room:,}): {figures}",
            fix=f"raise model.context_tokens above {lengths[longest] + turn:,}, shorten the preamble, or let tasks "
            "offer fewer tools",
            code=BadValueError.code,
        )
    elif lengths[longest] + turn > room:
        yield warning(
            "prompt length",
            f"a prompt and a turn of sampling.max_tokens ({turn:,}) exceed model.context_tokens ({room:,}): {figures}",
            fix=f"raise model.context_tokens above {lengths[longest] + turn:,}, or lower sampling.max_tokens",
        )
    else:
        yield fine("prompt length", f"{figures}; {room - lengths[longest]:,} are left for turns")
    if config.algorithm.warm_start.weight > 0:
        found = await asyncio.to_thread(_solution_lengths, tasks, length, count, room)
        if found is not None:
            yield found


def _solution_lengths(
    tasks: Sequence[Task], length: Callable[[Task], int], count: Callable[[str], int], room: int
) -> Finding | None:
    """A finding if a solution is longer than the context, even without what tools answer."""
    texts = {task.id: _solution_text(task.solution) for task in tasks if task.solution is not None}
    chosen = sorted((task for task in tasks if task.id in texts), key=lambda t: _characters(t) + len(texts[t.id]))
    lengths = {task.id: length(task) + count(texts[task.id]) for task in chosen[-_RENDERED:]}
    too_long = [task_id for task_id, tokens in lengths.items() if tokens >= room]
    if not too_long:
        return None
    longest = max(lengths, key=lambda task_id: lengths[task_id])
    return wrong(
        "warm start",
        f"the solutions of {len(too_long)} tasks are longer than model.context_tokens ({room:,}): that of {longest} "
        f"takes at least {lengths[longest]:,} with its prompt, without the answers of tools",
        fix="raise model.context_tokens, or shorten the solutions",
        code=BadValueError.code,
    )


def _solution_text(solution: Solution) -> str:
    calls = (f"{call.name} {json.dumps(dict(call.arguments), default=str)}" for call in solution.calls)
    return "\n".join((*calls, solution.answer))


def _encoded_length(chat: Chat) -> Callable[[str], int]:
    return lambda text: len(chat.tokenizer.encode(text, add_special_tokens=False))


def _rendered_length(chat: Chat, preamble: Sequence[Message], catalog: Catalog) -> Callable[[Task], int]:
    return lambda task: len(chat.open([*preamble, *task.prompt], tool_specs(_offered(task, catalog))))


def _least_length(count: Callable[[str], int], preamble: Sequence[Message], catalog: Catalog) -> Callable[[Task], int]:
    before = sum(count(_text(message)) for message in preamble)
    tools = {tool.name: count(json.dumps(list(tool_specs([tool])))) for tool in catalog}

    def length(task: Task) -> int:
        offered = sum(tools[tool.name] for tool in _offered(task, catalog))
        return before + offered + sum(count(_text(message)) for message in task.prompt)

    return length


def _offered(task: Task, catalog: Catalog) -> list[Tool]:
    names = catalog.names if task.tools is None else task.tools
    return [catalog[name] for name in names if name in catalog]


def _counter(examination: Examination) -> tuple[Callable[[str], int], str]:
    """What counts the tokens of a text: the model's own tokenizer where its file is there, else a rule of thumb."""
    if examination.model.there:
        file = Path(examination.model.value) / "tokenizer.json"
        if file.is_file() and importlib.util.find_spec("tokenizers") is not None:
            from tokenizers import Tokenizer

            tokenizer = Tokenizer.from_file(str(file))
            return lambda text: len(tokenizer.encode(text, add_special_tokens=False).ids), "by their texts alone"
    return lambda text: len(text) // _CHARACTERS_PER_TOKEN, f"at {_CHARACTERS_PER_TOKEN} characters a token"


def _text(message: Message) -> str:
    """What every template shows of a message: its content, and names and arguments of its calls."""
    calls = [call.get("function", call) for call in message.get("tool_calls", [])]
    return message["content"] + "".join(f"{call.get('name')} {json.dumps(call.get('arguments'))}" for call in calls)


def _characters(task: Task) -> int:
    return sum(len(message["content"]) for message in task.prompt)


async def check_grammar(examination: Examination) -> AsyncIterator[Finding]:
    """Whether the schemas of the tools on offer compile to a grammar, where calls are to be held to one."""
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
    yield fine("grammar", f"the schemas of {len(catalog)} tools compile; turns are held to {config.sampling.constrain}")
