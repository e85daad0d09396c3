"""Makes small policies that know how calls are written and nothing else: random models, taught by demonstrations.

The vocabulary of such a model is made of the conversations themselves, so a prompt and a call are a handful of tokens
and sampling costs little. What it will have to find out by reward (keys, names) are tokens of their own, and its
lessons show which is right seldom or never.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast
from transformers.utils import logging as transformers_logging

from mcprl.chat import load_chat
from mcprl.config import RunConfig
from mcprl.episodes import Demonstrator
from mcprl.records import Task, Trajectory
from mcprl.tools import open_toolbox

__all__ = ["Course", "Term", "make_policy"]

_MARKERS = ("<|im_start|>", "<|im_end|>")
_LAST_STEPS = 20
_LOOKED_AT = 32  # lessons, to make the vocabulary of: they differ in their words only


@dataclass(frozen=True, slots=True)
class Term:
    """A part of a course: how many steps of imitation, and how often each lesson is shown, None being all as often."""

    steps: int
    weights: Sequence[float] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Course:
    """What a policy is taught, and how: tasks with solutions, and a model to begin with.

    Course(lessons=[Task(prompt="Open vault north.", solution=Solution(calls=(turn amber, turn bone)), …), …],
           words=("amber", "bone", "north"), pieces=512, architecture=…, terms=(Term(100),))
    """

    lessons: Sequence[Task]
    words: Sequence[str]
    """Texts that are tokens of their own."""
    pieces: int
    """Size of the vocabulary without them."""
    architecture: Callable[[int, Any], Any]
    """A random model, of the number of its tokens and of its tokenizer."""
    terms: Sequence[Term]
    lessons_a_step: int = 8
    learning_rate: float = 1e-3
    turns: int | None = None
    """Turns of a lesson that are shown; None: all, the answer with them."""


async def make_policy(folder: Path, config: RunConfig, course: Course) -> float:
    """Write model and tokenizer to `folder`, which is the path of the configuration's model; give the last loss."""
    transformers_logging.disable_progress_bar()
    roomy = config.model_copy(
        update={
            "model": config.model.model_copy(update={"context_tokens": 4096}),
            "sampling": config.sampling.model_copy(update={"max_tokens": 512}),
        }
    )
    with tempfile.TemporaryDirectory() as logs:
        async with open_toolbox(config.servers, log_dir=Path(logs)) as toolbox:

            async def demonstrate(tasks: Sequence[Task]) -> tuple[list[_Lesson], list[str]]:
                chat = load_chat(config.model.path, config.model.renderer)
                demonstrator = Demonstrator(roomy, chat=chat, leases=toolbox, preamble=(), grammars=None)
                shown = [_Lesson.of(played, course.turns) for played in await demonstrator.play(tasks, 0)]
                return shown, [chat.decode(lesson.token_ids) for lesson in shown]

            _write_tokenizer(folder, (), course)  # single bytes, for a first look at how conversations are written
            _, texts = await demonstrate(course.lessons[:: -(-len(course.lessons) // _LOOKED_AT)])
            tokenizer = _write_tokenizer(folder, texts, course)
            shown, _ = await demonstrate(course.lessons)
    torch.manual_seed(0)
    model = course.architecture(course.pieces + len(_MARKERS) + len(course.words), tokenizer)
    loss = _teach(model, shown, course)
    model.save_pretrained(folder)
    return loss


@dataclass(frozen=True, slots=True)
class _Lesson:
    """The tokens of a demonstration, and which of them the policy is to write."""

    token_ids: tuple[int, ...]
    sampled: tuple[bool, ...]

    @classmethod
    def of(cls, played: Trajectory, turns: int | None) -> _Lesson:
        last = len(played.turns) - 1 if turns is None else turns - 1
        end = max(place for place, turn in enumerate(played.turn_index) if turn == last) + 1
        return cls(tuple(played.token_ids[:end]), tuple(played.sampled[:end]))


def _write_tokenizer(folder: Path, texts: Sequence[str], course: Course) -> Any:
    """Bytes, and the pieces that these texts have in common, however long, and the words."""
    tokens = Tokenizer(models.BPE())
    tokens.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokens.decoder = decoders.ByteLevel()
    apart = [AddedToken(text, special=True, normalized=False) for text in _MARKERS]
    apart += [AddedToken(text, special=False, normalized=False) for text in course.words]
    pieces = list(texts)
    # The longest first: a word may stand within another.
    for text in sorted((*_MARKERS, *course.words), key=len, reverse=True):
        pieces = [piece for whole in pieces for piece in whole.split(text)]
    trainer = trainers.BpeTrainer(
        vocab_size=course.pieces, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    tokens.train_from_iterator([piece for piece in pieces if piece], trainer)
    tokens.add_tokens(apart)
    tokenizer: Any = PreTrainedTokenizerFast(
        tokenizer_object=tokens, eos_token="<|im_end|>", clean_up_tokenization_spaces=False
    )
    tokenizer.save_pretrained(folder)
    return tokenizer


def _teach(model: Any, lessons: Sequence[_Lesson], course: Course) -> float:
    """Some steps of imitation, and the mean loss a token over the last of them."""
    losses: list[float] = []
    optimiser = torch.optim.AdamW(model.parameters(), lr=course.learning_rate, weight_decay=0.0)
    length = max(len(lesson.token_ids) for lesson in lessons)
    ids_BT = torch.tensor([[*lesson.token_ids, *[0] * (length - len(lesson.token_ids))] for lesson in lessons])
    said_BT = torch.tensor([[*lesson.sampled, *[False] * (length - len(lesson.sampled))] for lesson in lessons])
    label_BT = ids_BT.masked_fill(~said_BT, -100)
    for weights in [term.weights for term in course.terms for _ in range(term.steps)]:
        chosen = _draw(len(lessons), course.lessons_a_step, weights)
        loss = model(input_ids=ids_BT[chosen], labels=label_BT[chosen]).loss
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(float(loss.detach()))
    return fmean(losses[-_LAST_STEPS:])


def _draw(num_lessons: int, wanted: int, weights: Sequence[float] | None) -> torch.Tensor:
    if weights is None:
        return torch.randperm(num_lessons)[:wanted]
    return torch.multinomial(torch.tensor(weights), wanted, replacement=True)
