"""What SkyRL and TRL say of the cases of bench/oracles.py: their own functions, with arrays reshaped around them.

Runs in an environment that has both. Reads a file of arrays, writes another; the names in it are
`function/aspect@oracle`.

    python bench/peers/oracle_worker.py CASES.npz ANSWERS.npz
"""

from __future__ import annotations

import importlib.util
import sys
import typing
from collections import defaultdict
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import torch
import typing_extensions
from torch import Tensor

Cases = dict[str, Tensor]
Answers = dict[str, np.ndarray]


def import_skyrl():
    """SkyRL's functions, on Python 3.11 too, where pydantic refuses typing's TypedDict."""
    typing.TypedDict = typing_extensions.TypedDict  # type: ignore[misc]
    # SkyRL's wheel brings skyrl_gym along in a folder that is no package.
    found = importlib.util.find_spec("skyrl")
    assert found is not None
    assert found.origin is not None
    sys.path.append(str(Path(found.origin).parent.parent / "skyrl-gym"))
    from skyrl.backends.skyrl_train.utils import off_policy_correction_utils, ppo_utils

    return ppo_utils, off_policy_correction_utils


class Collected:
    """Answers case by case, put together at the end."""

    def __init__(self, library: str) -> None:
        self._name = f"{library} {version(library.lower())}"
        self._found: dict[str, list[object]] = defaultdict(list)

    def add(self, name: str, oracle: str, found: object) -> None:
        self._found[f"{name}@{self._name} `{oracle}`"].append(found)

    def add_loss(self, name: str, oracle: str, loss_of: Callable[[Tensor], Tensor], at: Tensor) -> None:
        leaf = at.clone().requires_grad_()
        loss = loss_of(leaf)
        self.add(name, oracle, float(loss.detach()))
        self.add(f"{name} gradient", oracle, torch.autograd.grad(loss, leaf)[0].numpy())

    def arrays(self) -> Answers:
        return {name: np.asarray(found, dtype=np.float64) for name, found in self._found.items()}


def skyrl_advantages(cases: Cases, ppo) -> Answers:
    collected = Collected("SkyRL")
    case_count, group_size = cases["reward_CG"].shape
    index = np.repeat(np.arange(case_count), group_size)
    ones = torch.ones(case_count * group_size, 1, dtype=torch.float64)

    def of_groups(estimate: Callable[..., tuple[Tensor, Tensor]], **options: object) -> np.ndarray:
        reward = cases["reward_CG"].clone().view(-1, 1)
        return estimate(reward, ones, index, **options)[0].view(case_count, group_size).numpy()

    grpo, rloo = ppo.compute_grpo_outcome_advantage, ppo.compute_rloo_outcome_advantage
    scaled, centred = of_groups(grpo), of_groups(grpo, grpo_norm_by_std=False)
    leave_one_out = of_groups(rloo)
    for i in range(case_count):
        collected.add("grpo_advantages/value", grpo.__name__, scaled[i])
        collected.add("dr_grpo_advantages/value", f"{grpo.__name__}(grpo_norm_by_std=False)", centred[i])
        collected.add("rloo_advantages/value", rloo.__name__, leave_one_out[i])
        gamma, lam = float(cases["gamma_C"][i]), float(cases["lam_C"][i])
        reward_S, value_S = cases["step_reward_CS"][i], cases["step_value_CS"][i]
        mask_1S = torch.ones(1, len(reward_S), dtype=torch.float64)
        white_1S, return_1S = ppo.compute_gae_advantage_return(
            reward_S[None], value_S[None], mask_1S, gamma=gamma, lambd=lam
        )
        oracle = ppo.compute_gae_advantage_return.__name__
        collected.add("gae/returns", oracle, return_1S[0].numpy())
        collected.add("gae/whitened", oracle, white_1S[0].numpy())
        white = ppo.masked_whiten(value_S[None], mask_1S)[0]
        collected.add("whitened/value", ppo.masked_whiten.__name__, white.numpy())
    return collected.arrays()


def skyrl_losses(cases: Cases, ppo) -> Answers:
    collected = Collected("SkyRL")
    config = ppo.AlgorithmConfig()
    config.loss_reduction = "sequence_mean"
    for i in range(len(cases["logprob_CBT"])):
        of = {name: array[i] for name, array in cases.items()}
        old, mask = of["old_logprob_CBT"], of["mask_CBT"]
        # SkyRL adds tokens up; as in its trainer, their weights are in the advantages.
        advantage = ppo.apply_loss_reduction_to_advantages_minibatch(
            of["advantage_CBT"], mask, "token_mean", micro_batch_size=len(mask), max_seq_len=1
        )
        config.eps_clip_low = config.cispo.cispo_eps_clip_low = float(of["clip_low_C"])
        config.eps_clip_high = config.cispo.cispo_eps_clip_high = float(of["clip_high_C"])

        def policy_loss(function, kind: str = "regular") -> Callable[[Tensor], Tensor]:
            def loss(logprob: Tensor) -> Tensor:
                config.policy_loss_type = kind
                return function(logprob, old, advantage, config, loss_mask=mask)[0]  # noqa: B023

            return loss

        at = of["logprob_CBT"]
        for name, function, kind in [
            ("clipped_policy_loss/mean", ppo.ppo_policy_loss, "regular"),
            ("gspo_loss/mean", ppo.gspo_policy_loss, "regular"),
            ("cispo_loss/mean", ppo.compute_policy_loss_cispo, "regular"),
            ("imitation_loss/sum", ppo.cross_entropy_loss, "regular"),
        ]:
            collected.add_loss(name, function.__name__, policy_loss(function, kind), at)

        def critic_loss(value: Tensor) -> Tensor:
            found, _ = ppo.ppo_critic_loss(value, of["old_value_CBT"], of["return_CBT"], config, loss_mask=mask)  # noqa: B023
            return found

        for name, clip in [("value_loss/mean", float(of["value_clip_C"])), ("value_loss, no clip/mean", None)]:
            config.value_clip = clip
            collected.add_loss(name, ppo.ppo_critic_loss.__name__, critic_loss, of["value_CBT"])
        for estimator in ("k1", "k2", "k3"):

            def distance(logprob: Tensor) -> Tensor:
                reference = of["reference_logprob_CBT"]  # noqa: B023
                return ppo.compute_approx_kl(logprob, reference, mask, estimator).sum()  # noqa: B023

            collected.add_loss(f"divergence, {estimator}/sum", ppo.compute_approx_kl.__name__, distance, at)
    return collected.arrays()


def skyrl_rest(cases: Cases, ppo, corrections) -> Answers:
    collected = Collected("SkyRL")
    reductions = {"token_mean": "token_mean", "sequence_mean": "sequence_mean", "constant": "seq_mean_token_sum_norm"}
    for i, mask in enumerate(cases["mask_CBT"]):
        for how, reduction in reductions.items():
            reduce = ppo.apply_loss_reduction_to_advantages_minibatch
            tokens = int(cases["constant_tokens_C"][i])
            weights = reduce(torch.ones_like(mask), mask, reduction, micro_batch_size=len(mask), max_seq_len=tokens)
            oracle = f'{reduce.__name__}("{reduction}")'
            collected.add(f"sequence_weights, {how}/value", oracle, (weights * mask).numpy())
        config = SimpleNamespace(
            token_tis_ratio_clip_high=float(cases["cap_C"][i]),
            token_mask_is_threshold_low=float(cases["gate_low_C"][i]),
            token_mask_is_threshold_high=float(cases["gate_high_C"][i]),
        )
        old, sampled = cases["old_logprob_CBT"][i], cases["reference_logprob_CBT"][i]
        everywhere = torch.ones_like(mask)
        weights, _ = corrections.compute_tis_ratio(old, sampled, everywhere, "token", config)
        collected.add("importance_weights/value", corrections.compute_tis_ratio.__name__, weights.numpy())
        inside, _ = corrections.compute_token_mask(old, sampled, everywhere, config)
        collected.add("inside_gate/value", corrections.compute_token_mask.__name__, inside.numpy())
        controller = ppo.AdaptiveKLController(
            float(cases["coefficient_C"][i]), float(cases["target_C"][i]), int(cases["horizon_C"][i])
        )
        controller.update(float(cases["kl_C"][i]), 1)
        collected.add("next_coefficient/value", "AdaptiveKLController.update", controller.value)
    return collected.arrays()


def trl_losses(cases: Cases) -> Answers:
    """TRL has its losses inside a method of a trainer, which is called on a stand-in for the trainer."""
    # TRL imports all of vLLM where it finds it, which no loss asks for.
    importlib.import_module("trl.import_utils").is_vllm_available = lambda *_, **__: False  # type: ignore[attr-defined]
    from trl.trainer.grpo_trainer import GRPOTrainer

    collected = Collected("TRL")
    for i in range(len(cases["logprob_CBT"])):
        of = {name: array[i] for name, array in cases.items()}
        low, high = float(of["clip_low_C"]), float(of["clip_high_C"])
        an_episodes = of["advantage_CBT"][:, 0]
        plain = {"loss_type": "bnpo", "epsilon_low": low, "epsilon_high": high}
        ways: dict[str, tuple[dict[str, object], Tensor]] = {
            "clipped_policy_loss/mean": (plain, of["advantage_CBT"]),
            "gspo_loss/mean of episodes": (
                plain | {"loss_type": "grpo", "importance_sampling_level": "sequence"},
                an_episodes,
            ),
            # TRL's bound is of the ratio itself, from above only.
            "cispo_loss/mean, clipped from above": (
                plain | {"loss_type": "cispo", "epsilon_high": 1.0 + high},
                of["advantage_CBT"],
            ),
            "divergence, k3/mean": (plain | {"beta": 1.0}, torch.zeros_like(an_episodes)),
            "sequence_weights, token_mean/loss": (plain, of["advantage_CBT"]),
            "sequence_weights, sequence_mean/loss": (plain | {"loss_type": "grpo"}, of["advantage_CBT"]),
            "sequence_weights, constant/loss": (plain | {"loss_type": "dr_grpo"}, of["advantage_CBT"]),
        }
        for name, (settings, advantage) in ways.items():

            def loss(logprob: Tensor) -> Tensor:
                trainer = stand_in(logprob, int(of["constant_tokens_C"]), **settings)  # noqa: B023
                return GRPOTrainer._compute_loss(trainer, None, trl_inputs(of, advantage))  # noqa: B023

            oracle = f'GRPOTrainer._compute_loss("{settings["loss_type"]}")'
            collected.add_loss(name, oracle, loss, of["logprob_CBT"])
    return collected.arrays()


def trl_inputs(of: Cases, advantage: Tensor) -> dict[str, Tensor]:
    mask = of["mask_CBT"]
    return {
        "prompt_ids": torch.zeros(len(mask), 1, dtype=torch.int64),
        "prompt_mask": torch.ones(len(mask), 1),
        "completion_ids": torch.zeros(mask.shape, dtype=torch.int64),
        "completion_mask": mask,
        "advantages": advantage,
        "old_per_token_logps": of["old_logprob_CBT"],
        "ref_per_token_logps": of["reference_logprob_CBT"],
        "num_items_in_batch": mask.sum(),
    }


def stand_in(
    logprob: Tensor,
    constant_tokens: int,
    *,
    loss_type: str,
    epsilon_low: float,
    epsilon_high: float,
    delta: float | None = None,
    beta: float = 0.0,
    importance_sampling_level: str = "token",
) -> SimpleNamespace:
    """The little of a trainer that its loss asks for. `logprob` is what its model would say."""
    return SimpleNamespace(
        _get_per_token_logps_and_entropies=lambda *_, **__: (logprob, torch.zeros_like(logprob), None),
        loss_type=loss_type,
        epsilon_low=epsilon_low,
        epsilon_high=epsilon_high,
        beta=beta,
        importance_sampling_level=importance_sampling_level,
        max_completion_length=constant_tokens,
        args=SimpleNamespace(delta=delta, use_bias_correction_kl=False, steps_per_generation=1),
        accelerator=SimpleNamespace(num_processes=1, gather=lambda x: x, reduce=lambda x, reduction: x),
        model=SimpleNamespace(training=True),
        current_gradient_accumulation_steps=1,
        top_entropy_quantile=1.0,
        off_policy_mask_threshold=None,
        aux_loss_enabled=False,
        use_vllm=False,
        _entropy_bonus_enabled=False,
        _metrics=defaultdict(lambda: defaultdict(list)),
    )


def main() -> None:
    torch.set_default_dtype(torch.float64)
    torch.set_num_threads(1)
    with np.load(sys.argv[1]) as file:
        cases = {name: torch.from_numpy(file[name]) for name in file.files}
    ppo, corrections = import_skyrl()
    answers = {
        **skyrl_advantages(cases, ppo),
        **skyrl_losses(cases, ppo),
        **skyrl_rest(cases, ppo, corrections),
        **trl_losses(cases),
    }
    np.savez(sys.argv[2], **answers)


if __name__ == "__main__":
    main()
