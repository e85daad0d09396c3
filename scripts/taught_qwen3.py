"""taught-qwen3: the model of recipes/hello-skyrl.yaml, a tiny Qwen3 that writes calls and guesses their arguments.

Asked what time it is at somebody's office, it looks somebody up and asks for the time somewhere: one of eight people,
one of eight time zones, the right one about twice as likely as any other. The rest is left to reinforcement learning.
"""

from __future__ import annotations

import asyncio
import itertools
import math
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mcprl.records import Task
    from mcprl.servers.directory import Person

__all__ = ["INPUTS", "PEOPLE", "TERMS", "build", "verify", "weight", "words"]

ROOT = Path(__file__).resolve().parent.parent
RECIPE = ROOT / "recipes" / "hello-skyrl.yaml"
INPUTS = (Path(__file__), Path(__file__).with_name("taught_policy.py"), RECIPE.with_suffix("") / "servers.json")
"""The files that determine the model."""

PEOPLE = ("Ana", "Bola", "Chen", "Divya", "Fatima", "Grace", "Hiro", "Kayla")
# Steps of each term, and how many times as often as any other the right person and the right time zone are shown. The
# first term teaches to look at the question and at what the directory said; the second, to guess again. Without the
# first the model would never look, and reward alone would take long to teach it.
TERMS = ((200, 50.0), (100, 2.0))
TOKENS_A_CALL = 7
MOST_LOSS_BEYOND_CHANCE = 0.03  # nats a token


def build(folder: Path) -> None:
    """Play the lessons on the recipe's own servers, and teach them."""
    from mcprl.recipe import load_recipe
    from taught_policy import Course, Term, make_policy

    os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"  # for the server of mcprl
    config = load_recipe(RECIPE, [f"model.path={folder}"])
    combinations = list(itertools.product(range(len(PEOPLE)), repeat=3))
    course = Course(
        lessons=[_lesson(*combination) for combination in combinations],
        words=words(),
        pieces=600,
        architecture=_qwen3,
        terms=[Term(steps, [weight(*combination, right) for combination in combinations]) for steps, right in TERMS],
        lessons_a_step=16,
        learning_rate=4e-3,
        turns=2,
    )
    loss, chance = asyncio.run(make_policy(folder, config, course)), _loss_of_chance()
    if loss > chance + MOST_LOSS_BEYOND_CHANCE:
        raise SystemExit(f"taught-qwen3 has not learned how calls are written: loss {loss:.3f}, by chance {chance:.3f}")


def verify(folder: Path) -> str:
    from transformers import AutoConfig, AutoTokenizer

    tokenizer, config = AutoTokenizer.from_pretrained(folder), AutoConfig.from_pretrained(folder)
    split = [word for word in words() if len(tokenizer.encode(word, add_special_tokens=False)) != 1]
    if split or str(config.dtype) != "torch.float32":
        raise SystemExit(f"taught-qwen3: {config.dtype}, words of more than one token: {split}. Delete {folder}.")
    return f"{len(tokenizer)} tokens, {len(words())} words among them"


def weight(asked_about: int, looked_up: int, zone: int, right: float) -> float:
    return (right if looked_up == asked_about else 1.0) * (right if zone == looked_up else 1.0)


def _loss_of_chance() -> float:
    """Nats a token of the lessons that nothing but knowing the future could save: two choices in two turns."""
    right = TERMS[-1][1]
    total = right + len(PEOPLE) - 1
    shares = [right / total] + [1.0 / total] * (len(PEOPLE) - 1)
    return -sum(share * math.log(share) for share in shares) / TOKENS_A_CALL


def _qwen3(num_tokens: int, tokenizer: Any) -> Any:
    from transformers import Qwen3Config, Qwen3ForCausalLM

    return Qwen3ForCausalLM(
        Qwen3Config(
            vocab_size=num_tokens,
            hidden_size=64,
            intermediate_size=192,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=32,
            max_position_embeddings=1024,
            tie_word_embeddings=True,
            initializer_range=0.05,
            bos_token_id=None,
            eos_token_id=tokenizer.convert_tokens_to_ids("<|im_end|>"),
            pad_token_id=None,
            dtype="float32",
        )
    )


def _people() -> list[Person]:
    from mcprl.servers.directory import PEOPLE as EVERYBODY

    return [person for person in EVERYBODY if person["name"] in PEOPLE]


def words() -> list[str]:
    """Names, cities and time zones: each is a token, so that prompts and calls are as long whoever is meant."""
    return sorted({text for person in _people() for text in person.values()})


def _lesson(asked_about: int, looked_up: int, zone: int) -> Task:
    """Somebody is asked about, somebody is looked up, and the time is asked for where somebody is."""
    from mcprl.goals import ExpectedCall, Goal
    from mcprl.records import Solution, Task, ToolCall

    people = _people()
    calls = {
        "find_person": {"name": people[looked_up]["name"]},
        "get_current_time": {"timezone": people[zone]["timezone"]},
    }
    return Task(
        id=f"lesson-{asked_about}-{looked_up}-{zone}",
        prompt=({"role": "user", "content": f"What time is it at {people[asked_about]['name']}'s office?"},),
        goal=Goal(calls=tuple(ExpectedCall(tool=tool, arguments=arguments) for tool, arguments in calls.items())),
        tools=tuple(calls),
        max_turns=len(calls) + 1,
        solution=Solution(
            calls=tuple(ToolCall(name=tool, arguments=arguments) for tool, arguments in calls.items()), answer="Done."
        ),
    )
