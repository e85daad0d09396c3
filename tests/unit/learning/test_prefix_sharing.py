"""Sharing prefixes changes nothing but the time: loss and every gradient are those of each trajectory by itself."""
# R11

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from made_trajectories import make_config, make_groups, make_trajectory, randomise_adapter
from small_models import ARCHITECTURES, save_small_model
from torch import Tensor

from mcprl.config import ModelConfig, RunConfig
from mcprl.learning import attention as attention_module
from mcprl.learning.algorithms import make_batch, sequence_weights
from mcprl.learning.algorithms.objective import policy_outcome
from mcprl.learning.attention import Tree, lay_out_tree
from mcprl.learning.models import load_policy
from mcprl.learning.packing import Example, Pack, Packer, Policy, Replayer, make_examples
from mcprl.records import Batch, Group, Readings, Trajectory

CPU = torch.device("cpu")
BOUND = 1e-4
SMALL_VOCABULARY = 250

TOOLS = (
    "You may call find_person(name) and convert_time(time, source, target). Write a call as JSON between <tool_call> "
    "and </tool_call>; its answer follows. When you know the answer, give it in one sentence."
)
QUESTIONS = ("It is 09:30 at Ana's office. What time is that in Tokyo?", "Which city does Ben Okafor work in?")
FIRST = '<tool_call>{"name": "find_person", "arguments": {"name": "Ana Lima"}}</tool_call>'
FOUND = "Ana Lima works in Lima, Peru. Her office keeps the time of America/Lima, which is five hours behind UTC."
OTHER_FIRST = "I should look for the person first, and then for the time."
SECOND = ('<tool_call>{"name": "convert_time", "arguments": {"time": "09:30"}}</tool_call>', "It is 23:30.", "No.")
STRANGER = "Translate into French: the train to Lyon leaves from platform seven in about ten minutes."
OBJECTIVES: dict[str, dict[str, Any]] = {
    "policy-kl-entropy": {"kl": {"coefficient": 0.05}, "entropy": 0.02, "loss": "gspo", "masks": "text"},
    "critic-entropy": {"advantages": "gae", "entropy": 0.02, "aggregation": "sequence_mean"},
}


@pytest.fixture(scope="module")
def model_of(tmp_path_factory: pytest.TempPathFactory, tiny_qwen3: Path) -> Callable[[str], Path]:
    made: dict[str, Path] = {"tiny_qwen3": tiny_qwen3}

    def model(name: str) -> Path:
        if name not in made:
            made[name] = save_small_model(tmp_path_factory.mktemp(name), name, vocabulary=SMALL_VOCABULARY, layers=3)
        return made[name]

    return model


def episodes(tokenizer: Any, *, small: bool) -> list[list[Trajectory]]:
    """Three levels of shared prefix and more than one root: two tasks share the tools, some members a turn as well,
    one member is another's beginning, and two have nothing in common with the rest. No length is a round one. For a
    small vocabulary the tokens of the text are numbered anew, from 0."""
    renumbered: dict[int, int] = {}

    def token_ids(text: str) -> list[int]:
        ids: list[int] = tokenizer(text, add_special_tokens=False).input_ids
        return [renumbered.setdefault(token, len(renumbered)) for token in ids] if small else ids

    def trajectory(*parts: tuple[str, str], temperature: float) -> Trajectory:
        ids = [token_ids(text) for _, text in parts]
        kinds = "".join(kind * len(own) for (kind, _), own in zip(parts, ids, strict=True))
        return make_trajectory([token for own in ids for token in own], kinds, temperature=temperature)

    asked, other = ("c", TOOLS + "\n" + QUESTIONS[0]), ("c", TOOLS + "\n" + QUESTIONS[1])
    turn, found = ("s", FIRST), ("c", FOUND)
    first = [
        trajectory(asked, turn, found, ("s", SECOND[0]), ("c", "23:30"), ("x", SECOND[1]), temperature=0.7),
        trajectory(asked, turn, found, ("s", SECOND[1]), temperature=0.7),
        trajectory(asked, turn, temperature=1.0),
        trajectory(asked, ("s", OTHER_FIRST), temperature=1.3),
        trajectory(asked, turn, found, ("s", SECOND[1]), temperature=0.7),
    ]
    second = [trajectory(other, ("s", SECOND[2]), temperature=1.0), trajectory(other, ("s", FIRST), temperature=1.0)]
    third = [
        trajectory(("c", STRANGER), ("s", "Le train"), ("f", " part"), ("s", " dans dix minutes."), temperature=1.0),
        trajectory(("c", "Hello"), ("s", " there"), temperature=1.0),
    ]
    assert len(renumbered) <= SMALL_VOCABULARY
    return [first, second, third]


def made_batch(groups: Sequence[Group], config: RunConfig) -> Batch:
    generator = torch.Generator().manual_seed(2)
    sampled = [t.sampled for group in groups for t in group.trajectories]

    def column(scale: float, shift: float) -> tuple[tuple[float, ...], ...]:
        return tuple(
            tuple((torch.randn(len(own), generator=generator) * scale + shift).where(torch.tensor(own), 0.0).tolist())
            for own in sampled
        )

    readings = Readings(reference_logprobs=column(0.5, -10.0), values=column(1.0, 0.0))
    batch = make_batch(0, groups, config.algorithm, readings, kl_coefficient=config.algorithm.kl.coefficient)
    if batch.returns is not None:
        return batch
    # Rewards of 0 give no advantages: these differ from token to token, so that no two tokens can be exchanged.
    return Batch(**{name: getattr(batch, name) for name in batch.__slots__} | {"advantages": column(1.0, 0.0)})


def near_policy(examples: Sequence[Example], logprob_N: Tensor) -> None:
    """What ratios are against lies near the policy's own logprobs, so that some are clipped and none is extreme."""
    generator = torch.Generator().manual_seed(4)
    for example, own_N in zip(
        examples, logprob_N.split([len(example.position_N) for example in examples]), strict=True
    ):
        near_N = own_N + 0.2 * torch.randn(len(own_N), generator=generator)
        example.columns.old_logprob_N.copy_(near_N)
        if example.columns.reference_logprob_N is not None:
            example.columns.reference_logprob_N.copy_(near_N.flip(0) * 0.5 + own_N * 0.5)


def two_policies(model: Path, objective: str, **learner: Any) -> tuple[RunConfig, Policy, Policy]:
    """The same weights twice: with prefixes shared, and in plain rows with PyTorch's own causal attention."""
    policies: list[Policy] = []
    config = make_config(algorithm=OBJECTIVES[objective])
    for share_prefix in (True, False):
        config = make_config(algorithm=OBJECTIVES[objective], share_prefix=share_prefix, **learner)
        path = ModelConfig(path=str(model), renderer="chatml", dtype="float32")
        config = config.model_copy(update={"model": path})
        policy = load_policy(config, CPU)
        if learner["tuning"] == "lora":
            randomise_adapter(policy, scale=0.05)
        if policy.value_head is not None:
            torch.nn.init.normal_(policy.value_head.weight, generator=torch.Generator().manual_seed(3))
        policies.append(policy)
    shared, plain = policies
    assert shared.trunk.config._attn_implementation == "mcprl_tree"
    assert plain.trunk.config._attn_implementation == "sdpa"
    return config, shared, plain


def packed(config: RunConfig, examples: Sequence[Example], *, share_prefix: bool) -> Pack:
    return Packer(Replayer(None), CPU, tokens=config.learner.tokens_per_pack, share_prefix=share_prefix).pack(examples)


def loss_and_gradients(policy: Policy, pack: Pack, examples: Sequence[Example], config: RunConfig) -> dict[str, Tensor]:
    policy.zero_grad()
    counts_S = torch.tensor([example.learnable_tokens for example in examples])
    weight_S = sequence_weights(counts_S, config.algorithm.aggregation, constant_tokens=5).float()
    outcome = policy_outcome(
        policy(pack), pack.columns, pack.sequence_N, weight_S[pack.sequence_N], config.algorithm, 0.05
    )
    outcome.loss.backward()
    gradients = {name: p.grad for name, p in policy.named_parameters() if p.requires_grad}
    assert all(gradient is not None for gradient in gradients.values())
    return {"loss": outcome.loss.detach()} | {name: g for name, g in gradients.items() if g is not None}


def largest_difference(found: dict[str, Tensor], true: dict[str, Tensor]) -> float:
    """Relative L2 of the loss and of each gradient; what is a millionth of all gradients together counts as that."""
    assert found.keys() == true.keys()
    assert len(true) > 10
    floor = 1e-6 * float(torch.stack([g.norm() for name, g in true.items() if name != "loss"]).norm())
    assert floor > 0
    return max(float((found[name] - true[name]).norm()) / max(float(true[name].norm()), floor) for name in true)


def with_sibling_seen(tree: Tree) -> Tree:
    """The same tree with one mistake: a node's tokens also see those of the node before it that has the same parent."""
    leaky = Tree(nodes=tree.nodes)
    paths = [list(path) for path in tree.paths]
    for number, node in enumerate(tree.nodes):
        siblings = [i for i, other in enumerate(tree.nodes[:number]) if other.parent == node.parent >= 0]
        if siblings:
            paths[number].insert(-1, siblings[-1])
    assert paths != [list(path) for path in tree.paths]
    leaky.__dict__["paths"] = tuple(tuple(path) for path in paths)
    return leaky


@pytest.mark.parametrize(
    ("architecture", "tuning", "objective", "checkpointing"),
    [
        ("qwen3", "lora", "policy-kl-entropy", False),
        ("qwen3", "full", "critic-entropy", True),
        ("llama", "full", "policy-kl-entropy", True),
        ("llama", "lora", "critic-entropy", False),
        ("tiny_qwen3", "lora", "policy-kl-entropy", False),
    ],
)
def test_loss_and_every_gradient_are_those_of_plain_rows(
    architecture, tuning, objective, checkpointing, model_of, tokenizer, record_property
):
    config, shared, plain = two_policies(model_of(architecture), objective, tuning=tuning, checkpointing=checkpointing)
    groups = make_groups(*episodes(tokenizer, small=architecture in ARCHITECTURES))
    examples = make_examples(made_batch(groups, config))
    with torch.no_grad():
        near_policy(examples, plain(packed(config, examples, share_prefix=False)).logprob_N)
    rows, tree = packed(config, examples, share_prefix=False), packed(config, examples, share_prefix=True)
    assert tree.layout.tree is not None
    assert max(map(len, tree.layout.tree.paths)) >= 4
    assert sum(node.parent < 0 for node in tree.layout.tree.nodes) >= 3
    assert tree.layout.token_id_BT.numel() < 0.5 * sum(len(example.trajectory.token_ids) for example in examples)
    true = loss_and_gradients(plain, rows, examples, config)
    passes: list[int] = []
    shared.trunk.layers[0].register_forward_pre_hook(lambda *_: passes.append(1))
    difference = largest_difference(loss_and_gradients(shared, tree, examples, config), true)
    assert len(passes) == 1 + checkpointing
    object.__setattr__(tree.layout, "tree", with_sibling_seen(tree.layout.tree))
    leak = largest_difference(loss_and_gradients(shared, tree, examples, config), true)
    record_property("prefix_sharing_largest_relative_difference", difference)
    record_property("prefix_sharing_leak_relative_difference", leak)
    print(f"{architecture} {tuning} {objective}: {difference:.2e}, with a leak {leak:.2e}")
    assert difference <= BOUND
    assert leak > 100 * BOUND, "a node that sees its sibling goes unnoticed"


@pytest.mark.parametrize(("share_prefix", "tuning"), [(True, "lora"), (False, "full")])
def test_gradients_are_the_same_with_checkpointing_and_without(share_prefix, tuning, model_of, tokenizer):
    """With a value head and, in a tree, shared prefixes: activations that are computed again are the same ones."""
    results: list[dict[str, Tensor]] = []
    for checkpointing in (True, False):
        config, *policies = two_policies(
            model_of("qwen3"), "critic-entropy", tuning=tuning, checkpointing=checkpointing
        )
        examples = make_examples(made_batch(make_groups(*episodes(tokenizer, small=True)), config))
        policy = policies[0 if share_prefix else 1]
        pack = packed(config, examples, share_prefix=share_prefix)
        passes: list[int] = []
        policy.trunk.layers[0].register_forward_pre_hook(lambda *_, passes=passes: passes.append(1))
        results.append(loss_and_gradients(policy, pack, examples, config))
        assert len(passes) == 1 + checkpointing
    again, kept = results
    assert any(name.startswith("value_head") for name in kept)
    assert largest_difference(again, kept) <= 1e-6


def random_heads(tokens: int, device: str) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    query, key, value = (torch.randn(1, heads, tokens, 16, generator=generator) for heads in (6, 2, 2))
    return query.to(device), key.to(device), value.to(device)


def made_tree(tokenizer: Any) -> Tree:
    sequences = [t.token_ids for group in episodes(tokenizer, small=False) for t in group]
    tree = lay_out_tree(sequences, CPU).tree
    assert tree is not None
    return tree


@pytest.mark.slow
def test_one_block_mask_over_the_tree_gives_what_attention_split_by_nodes_gives(
    flex_graphs, tokenizer, record_property
):
    tree = made_tree(tokenizer)
    query, key, value = random_heads(tree.nodes[-1].stop, "cpu")
    split = attention_module._attend_by_nodes(query, key, value, 0.3, tree)
    whole = attention_module._attend_by_flex(query, key, value, 0.3, tree)
    difference = float((split - whole).norm() / split.norm())
    record_property("flex_forward_relative_difference", difference)
    assert difference <= 1e-5
    leaky = attention_module._attend_by_nodes(query, key, value, 0.3, with_sibling_seen(tree))
    assert float((leaky - whole).norm() / whole.norm()) > 1e-2


def test_a_policy_scores_the_same_with_the_block_mask_as_with_plain_rows(
    flex_graphs, model_of, tokenizer, monkeypatch, record_property
):
    config, shared, plain = two_policies(model_of("llama"), "critic-entropy", tuning="lora")
    examples = make_examples(made_batch(make_groups(*episodes(tokenizer, small=True)), config))
    monkeypatch.setattr(attention_module, "_attend_by_nodes", attention_module._attend_by_flex)
    with torch.no_grad():
        found = shared(packed(config, examples, share_prefix=True))
        true = plain(packed(config, examples, share_prefix=False))
    for name, column in true._asdict().items():
        difference = float((getattr(found, name) - column).abs().max())
        record_property(f"flex_policy_{name}_difference", difference)
        assert difference < 1e-4


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_the_compiled_kernel_has_output_and_gradients_of_attention_split_by_nodes(tokenizer):
    tree = made_tree(tokenizer)
    results: list[list[Tensor]] = []
    for attend in (attention_module._attend_by_flex, attention_module._attend_by_nodes):
        heads = [part.requires_grad_() for part in random_heads(tree.nodes[-1].stop, "cuda")]
        output = attend(*heads, 0.25, tree)
        weight = torch.linspace(-1.0, 1.0, output.numel(), device="cuda").view(output.shape)
        results.append([output.detach(), *torch.autograd.grad((output * weight).sum(), heads)])
    for found, true in zip(*results, strict=True):
        assert float((found - true).norm() / true.norm()) < 1e-3
