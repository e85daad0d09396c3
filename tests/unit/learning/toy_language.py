"""A language so small that every turn of it can be written down, and a policy over its twelve tokens.

The grammar is real (xgrammar's, through `Grammars`). The oracles here never look at it: they know the 15 texts of the
language, and a token is admissible where what is written so far, and the token, begin one of them.
"""

from __future__ import annotations

import itertools
import json
from collections import Counter
from functools import cache
from types import SimpleNamespace

import numpy as np
import torch
from made_trajectories import make_trajectory
from tokenizers import Tokenizer, decoders, models
from torch import Tensor, nn
from transformers import PreTrainedTokenizerFast

from mcprl.grammar.masks import Grammars
from mcprl.records import Trajectory

VOCABULARY = ["<end>", "go", "g", "o", "(", "a", "b", "ab", ")", "hi", "z", "o("]
END, NEVER = VOCABULARY.index("<end>"), VOCABULARY.index("z")
TEXTS = ["hi", *(f"go({''.join(x)})" for size in (1, 2, 3) for x in itertools.product("ab", repeat=size))]
TAG = json.dumps({"type": "structural_tag", "format": {"type": "regex", "pattern": r"hi|go\([ab]{1,3}\)"}})
PROMPT = (NEVER, NEVER)
TEMPERATURE = 0.7

Ids = tuple[int, ...]


def make_grammars() -> Grammars:
    words = Tokenizer(models.WordLevel({word: i for i, word in enumerate(VOCABULARY)}, unk_token="z"))
    words.decoder = decoders.ByteLevel()
    return Grammars(PreTrainedTokenizerFast(tokenizer_object=words, eos_token="<end>"), len(VOCABULARY))


class ToyTrunk(nn.Module):
    """Looks at the last two tokens. It is called as a model of transformers without its head is."""

    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Embedding(len(VOCABULARY), 5)
        self.last_but_one = nn.Embedding(len(VOCABULARY), 5)

    def forward(self, input_ids: Tensor, use_cache: bool) -> SimpleNamespace:
        before_BT = input_ids.roll(1, dims=1)
        return SimpleNamespace(last_hidden_state=torch.tanh(self.last(input_ids) + self.last_but_one(before_BT)))


class ToyModel(nn.Module):
    """What the learner's policy asks of a causal language model, and its logits for the oracles."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.base_model = ToyTrunk()
        self.head = nn.Linear(5, len(VOCABULARY), bias=False)
        self.config = SimpleNamespace(hidden_size=5)

    def get_output_embeddings(self) -> nn.Linear:
        return self.head

    def logit_V(self, ids: Ids) -> Tensor:
        hidden_BTD = self.base_model(torch.tensor([ids]), use_cache=False).last_hidden_state
        return self.head(hidden_BTD[0, -1])


@cache
def admissible(turn: Ids) -> tuple[int, ...]:
    """The tokens that may follow, found from the texts of the language."""
    written = "".join(VOCABULARY[i] for i in turn)
    found = [i for i, word in enumerate(VOCABULARY) if i != END and any(t.startswith(written + word) for t in TEXTS)]
    return (*([END] if written in TEXTS else []), *found)


@cache
def every_turn() -> tuple[Ids, ...]:
    """All ways to write all texts: each ends in END, which can stand nowhere else."""
    whole: list[Ids] = []
    begun: list[Ids] = [()]
    while begun:
        turn = begun.pop()
        for token in admissible(turn):
            (whole if token == END else begun).append((*turn, token))
    return tuple(whole)


def choices_N(policy: ToyModel, turn: Ids) -> Tensor:
    """The logprob of each token of a turn among the admissible ones alone, whose logits are all that is looked at."""
    logprobs: list[Tensor] = []
    for place, token in enumerate(turn):
        allowed = admissible(turn[:place])
        logit_A = policy.logit_V((*PROMPT, *turn[:place]))[list(allowed)] / TEMPERATURE
        logprobs.append(torch.log_softmax(logit_A, dim=0)[allowed.index(token)])
    return torch.stack(logprobs)


def reward(turn: Ids) -> float:
    """Two for each b, less a half for each letter; a greeting is worth a little. It depends on the text alone."""
    text = "".join(VOCABULARY[i] for i in turn)
    return 0.4 if text.startswith("hi") else 2.0 * text.count("b") - 0.5 * (text.count("a") + text.count("b"))


def draw(policy: ToyModel, count: int, seed: int) -> Counter[Ids]:
    """How often each turn comes when `count` are sampled token by token.

    All turns that have begun alike are continued at once, by a multinomial draw: the same as one after the other.
    """
    generator = np.random.default_rng(seed)
    drawn: Counter[Ids] = Counter()
    begun: Counter[Ids] = Counter({(): count})
    while begun:
        turn, times = begun.popitem()
        allowed = admissible(turn)
        with torch.no_grad():
            logit_A = policy.logit_V((*PROMPT, *turn))[list(allowed)].double() / TEMPERATURE
        for token, share in zip(allowed, generator.multinomial(times, torch.softmax(logit_A, 0).numpy()), strict=True):
            if share:
                (drawn if token == END else begun)[(*turn, token)] += int(share)
    return drawn


def as_trajectory(policy: ToyModel, grammars: Grammars, turn: Ids) -> Trajectory:
    """A turn as a run would have recorded it."""
    replay = grammars.replay(TAG, (END,), turn)
    with torch.no_grad():
        logprobs = [0.0] * len(PROMPT) + choices_N(policy, turn).tolist()
    masks = zip(replay.forced, replay.fixed, strict=True)
    kinds = "".join("f" if forced else "x" if fixed else "s" for forced, fixed in masks)
    return make_trajectory(
        (*PROMPT, *turn),
        "c" * len(PROMPT) + kinds,
        reward=reward(turn),
        temperature=TEMPERATURE,
        logprobs=logprobs,
        grammar=TAG,
        stop_token_ids=(END,),
    )
