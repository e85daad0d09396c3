"""Episodes of the toy task: a model as small as the task, and a sampler that plays many at once.

The sampler loads the weights that the learner wrote, so what is trained and what is published are held together: their
logprobs must agree before every update.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from peft import PeftModel
from tokenizers import Tokenizer, models
from torch import Tensor
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from transformers.utils import logging as transformers_logging

from mcprl.goals import Goal
from mcprl.records import FinishReason, Group, StopReason, Task, Trajectory, Turn, Weights
from toy.locks import BEGIN, LOCKS, MAX_TURNS, OPENED, SHUT, TASKS, VOCABULARY, cue

__all__ = ["make_model", "play", "published_model"]

# All episodes begin alike, as they do under a system prompt: long enough for the learner to compute it once for many.
_PREAMBLE = (BEGIN,) * 20


def make_model(folder: Path, seed: int) -> None:
    """Write a random model of two layers, and a tokenizer of as many words."""
    transformers_logging.disable_progress_bar()
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=64,
        initializer_range=0.15,  # an adapter cannot reach the head: with a smaller one no token could become certain
        bos_token_id=None,
        eos_token_id=None,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    words = Tokenizer(models.WordLevel({f"w{i}": i for i in range(VOCABULARY)}, unk_token="w0"))
    PreTrainedTokenizerFast(tokenizer_object=words).save_pretrained(folder)


def published_model(weights: Weights, base: Path) -> Any:
    """The model of these weights, read from where the learner wrote them."""
    model: Any = AutoModelForCausalLM.from_pretrained(weights.model or base, dtype=torch.float32)
    return (model if weights.adapter is None else PeftModel.from_pretrained(model, weights.adapter)).eval()


@dataclass
class _Episode:
    """An episode while it is played. `lock` is where it stands, None behind the last lock."""

    task: str
    member: int
    lock: str | None
    ids: list[int]
    logprobs: list[float]
    turn_index: list[int]
    turns: list[Turn] = field(default_factory=list[Turn])

    @classmethod
    def begin(cls, task: str, member: int) -> _Episode:
        prompt = [*_PREAMBLE, cue(task)]
        return cls(task, member, task, prompt, [0.0] * len(prompt), [-1] * len(prompt))

    def choose(self, token: int, logprob: float) -> None:
        self.ids.append(token)
        self.logprobs.append(logprob)
        self.turn_index.append(len(self.turns))

    def end_turn(self, version: int) -> None:
        """Let the lock answer."""
        before = LOCKS[self.lock or ""]
        chosen = tuple(self.ids[-before.tokens :])
        reward, self.lock = before.answer(chosen)
        self.turns.append(
            Turn(text="", sampled_ids=chosen, finish=FinishReason.STOP, weights_version=version, reward=reward)
        )
        if self.lock is not None:
            shown = [SHUT if self.lock == before.name else OPENED, cue(self.lock)]
            self.ids += shown
            self.logprobs += [0.0] * len(shown)
            self.turn_index += [-1] * len(shown)

    def finished(self, step: int, version: int) -> Trajectory:
        reward = sum(turn.reward for turn in self.turns)
        sampled = tuple(turn >= 0 for turn in self.turn_index)
        return Trajectory(
            task_id=self.task,
            step=step,
            member=self.member,
            attempt=0,
            temperature=1.0,
            token_ids=tuple(self.ids),
            sampled=sampled,
            forced=(False,) * len(self.ids),
            fixed=(False,) * len(self.ids),
            logprobs=tuple(self.logprobs),
            turn_index=tuple(self.turn_index),
            weights_version=tuple(version if own else -1 for own in sampled),
            turns=tuple(self.turns),
            stop=StopReason.ANSWERED if self.lock is None else StopReason.TURN_LIMIT,
            reward=reward,
            reward_parts={"locks": reward},
        )


@torch.no_grad()
def play(model: Any, step: int, version: int, *, group_size: int, generator: torch.Generator) -> list[Group]:
    """A group of episodes for every task, all at once, at temperature 1."""
    episodes = [_Episode.begin(task, member) for task in TASKS for member in range(group_size)]
    for _ in range(MAX_TURNS):
        alive = [episode for episode in episodes if episode.lock is not None]
        for place in range(max((LOCKS[e.lock or ""].tokens for e in alive), default=0)):
            asked = [episode for episode in alive if LOCKS[episode.lock or ""].tokens > place]
            logprob_BV = _next_logprobs(model, [episode.ids for episode in asked])
            token_B = torch.multinomial(logprob_BV.exp(), 1, generator=generator)
            chosen = zip(
                asked, token_B.flatten().tolist(), logprob_BV.gather(1, token_B).flatten().tolist(), strict=True
            )
            for episode, token, logprob in chosen:
                episode.choose(token, logprob)
        for episode in alive:
            episode.end_turn(version)
    finished = [episode.finished(step, version) for episode in episodes]
    return [
        Group(
            task=Task(id=task, prompt=({"role": "user", "content": task},), goal=Goal()),
            trajectories=tuple(trajectory for trajectory in finished if trajectory.task_id == task),
        )
        for task in TASKS
    ]


def _next_logprobs(model: Any, sequences: list[list[int]]) -> Tensor:
    """Of every token behind each sequence. Rows are padded on the right, where causal attention never looks."""
    last_B = torch.tensor([len(ids) - 1 for ids in sequences])
    rows = [[*ids, *[BEGIN] * (int(last_B.max()) + 1 - len(ids))] for ids in sequences]
    logit_BTV = model(input_ids=torch.tensor(rows), use_cache=False).logits
    return torch.log_softmax(logit_BTV[torch.arange(len(rows)), last_B].float(), dim=-1)
