"""Which positions of a real conversation carry gradient: those that predict a token the policy chose, and no other."""
# R7, R12

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from made_trajectories import batch_of, make_trajectory, on_policy

from mcprl.chat import Chat, load_chat
from mcprl.records import Trajectory

TOOLS = [
    {
        "name": "find_person",
        "description": "Find a colleague.",
        "parameters": {"type": "object", "properties": {"name": {"type": "string"}}},
    }
]
QUESTION = "Where does Ana work?"
RESULTS = ["Ana: Lima, America/Lima", "Nobody called 'Anna' works here"]
TURNS = [
    '<tool_call>\n{"name": "find_person", "arguments": {"name": "Ana"}}\n</tool_call><|im_end|>',
    'Once more.\n<tool_call>\n{"name": "find_person", "arguments": {"name": "Anna"}}\n</tool_call>',
    "In Lima.<|im_end|>",
]


@pytest.fixture(scope="module")
def chat(tiny_qwen3: Path) -> Chat:
    return load_chat(str(tiny_qwen3), "qwen3")


@pytest.fixture(scope="module")
def tokenizer(chat: Chat) -> Any:
    return chat.tokenizer


def converse(chat: Chat, turns: list[str], *, reward: float) -> Trajectory:
    """Turns with the tool's results between them, joined as an episode joins them."""
    ids = list(chat.open([{"role": "user", "content": QUESTION}], TOOLS))
    kinds = "c" * len(ids)
    for number, text in enumerate(turns):
        sampled = chat.tokenizer.encode(text)
        extension: tuple[int, ...] = ()
        if number < len(turns) - 1:
            result = {"role": "tool", "name": "find_person", "content": RESULTS[number]}
            extension = chat.extend(ids, sampled, [result], TOOLS)
        ids += [*sampled, *extension]
        kinds += "s" * len(sampled) + "c" * len(extension)
    return make_trajectory(ids, kinds, reward=reward, temperature=0.8)


def force_some(trajectory: Trajectory) -> Trajectory:
    """As if a grammar had left no choice at every third sampled token."""
    own = [place for place, sampled in enumerate(trajectory.sampled) if sampled]
    forced = set(own[1::3])
    return replace(trajectory, forced=tuple(place in forced for place in range(len(trajectory.token_ids))))


def kinds_of(trajectory: Trajectory, tokenizer: Any) -> list[str]:
    """What each token is: prompt, observation, template, forced or learnable. Found from the text, not the mask."""
    ids, first = trajectory.token_ids, trajectory.sampled.index(True)
    kinds = ["prompt" if place < first else "template" for place in range(len(ids))]
    for result in RESULTS:
        wanted = tokenizer.encode(result)
        for start in range(first, len(ids) - len(wanted) + 1):
            if list(ids[start : start + len(wanted)]) == wanted:
                kinds[start : start + len(wanted)] = ["observation"] * len(wanted)
    for place in range(first, len(ids)):
        if trajectory.sampled[place]:
            kinds[place] = "forced" if trajectory.forced[place] else "learnable"
    return kinds


@pytest.mark.slow
def test_observations_and_template_tokens_carry_exactly_zero_gradient(tiny_model, chat, tokenizer, make_learner):
    learner = make_learner(share_prefix=False)
    made = [
        converse(chat, TURNS, reward=1.0),
        converse(chat, TURNS[1:], reward=0.0),
        converse(chat, [TURNS[0], TURNS[2]], reward=0.5),  # the mean of its group: an advantage of zero
    ]
    made = [on_policy(tiny_model, force_some(trajectory)) for trajectory in made]
    batch = batch_of(made)
    captured: list[torch.Tensor] = []

    def keep(_module: object, _inputs: object, output: Any) -> None:
        output.last_hidden_state.retain_grad()
        captured.append(output.last_hidden_state)

    learner.policy.trunk.register_forward_hook(keep)
    update = learner._update(batch)
    assert update.metrics["optimiser_steps"] == 1.0
    assert len(captured) == 1, "one forward pass was expected"

    # The learner's rows go by length.
    order = sorted(range(len(made)), key=lambda i: len(made[i].token_ids))
    hidden_BTD = captured[0].grad
    seen: Counter[str] = Counter()
    for row, index in enumerate(order):
        trajectory, advantage = made[index], max(batch.advantages[index], key=abs)
        kinds = kinds_of(trajectory, tokenizer)
        padding = ["padding"] * (hidden_BTD.shape[1] - len(kinds) + 1)
        for place, kind in enumerate(kinds[1:] + padding):
            gradient_D = hidden_BTD[row, place]
            if kind == "learnable" and abs(advantage) > 1e-9:
                assert gradient_D.abs().max() > 0.0
            elif kind != "learnable":
                assert gradient_D.eq(0.0).all(), f"a {kind} token carries gradient"
            seen[kind] += 1
    assert abs(batch.advantages[2][made[2].sampled.index(True)]) < 1e-12
    assert min(seen[kind] for kind in ("prompt", "observation", "template", "forced", "learnable", "padding")) > 5


def test_the_tokens_of_the_conversation_are_what_the_gradient_test_takes_them_for(chat, tokenizer):
    trajectory = converse(chat, TURNS, reward=1.0)
    kinds = kinds_of(trajectory, tokenizer)

    def text_of(kind: str) -> str:
        return tokenizer.decode([i for i, k in zip(trajectory.token_ids, kinds, strict=True) if k == kind])

    assert text_of("observation") == "".join(RESULTS)
    assert text_of("learnable") == "".join(TURNS)
    assert QUESTION in text_of("prompt")
    assert text_of("template").count("<tool_response>") == 2
    assert text_of("template").count("<|im_start|>assistant") == 2
