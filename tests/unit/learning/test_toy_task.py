"""The learner learns: a toy task in several turns, from random weights to near the best return there is."""
# R1 R2 R3

from __future__ import annotations

import sys
from pathlib import Path
from statistics import fmean

import pytest
import torch

sys.path.append(str(Path(__file__).resolve().parents[3] / "bench"))

from mcprl.records import StopReason, Weights
from toy.learning import best_mean_return, learn
from toy.locks import LOCKS, MAX_TURNS, TASKS, best_return
from toy.playing import make_model, play, published_model

UPDATES = 30


@pytest.fixture(autouse=True)
def _one_thread():
    """So small a model is slower on several."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def test_the_best_return_of_each_task_is_what_its_locks_pay_on_the_best_way():
    assert {task: best_return(task) for task in TASKS} == pytest.approx(
        {"gate": 1.5, "hall": 2.0, "door": 1.5, "fork": 1.3, "cellar": 0.2, "safe": 1.5}
    )
    # By the way that pays more at once the fork would bring 0.5 + 0.2.
    assert best_return("fork", turns=1) == pytest.approx(0.5)


def test_episodes_earn_in_each_turn_what_the_locks_pay_and_end_where_the_records_say(tmp_path: Path):
    make_model(tmp_path, seed=3)
    model = published_model(Weights(version=0), tmp_path)
    groups = play(model, 0, 0, group_size=16, generator=torch.Generator().manual_seed(4))
    stops: set[StopReason] = set()
    for trajectory in (t for group in groups for t in group.trajectories):
        lock: str | None = trajectory.task_id
        earned: list[float] = []
        for turn in trajectory.turns:
            assert lock is not None
            reward, lock = LOCKS[lock].answer(turn.sampled_ids)
            earned.append(reward)
        assert [turn.reward for turn in trajectory.turns] == earned
        assert trajectory.reward == pytest.approx(sum(earned))
        assert trajectory.stop is (StopReason.ANSWERED if lock is None else StopReason.TURN_LIMIT)
        assert lock is None or len(trajectory.turns) == MAX_TURNS
        assert trajectory.sampled[-1] is (lock is None)  # a limit cuts behind an observation
        stops.add(trajectory.stop)
    assert stops == {StopReason.ANSWERED, StopReason.TURN_LIMIT}


@pytest.mark.slow
async def test_grpo_comes_near_the_best_return(tmp_path: Path, record_property):
    moments = await learn(tmp_path, "grpo", 0, updates=UPDATES)
    share = fmean(moment.mean_return for moment in moments[-5:]) / best_mean_return()
    record_property("toy_grpo_share_of_best", round(share, 3))
    assert moments[0].mean_return < 0.3 * best_mean_return()
    assert share >= 0.9
    assert max(moment.parity for moment in moments) < 1e-4


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["ppo", pytest.param("ppo_turn", marks=pytest.mark.full)])
async def test_a_value_head_comes_to_foresee_returns_while_its_policy_learns(
    algorithm: str, tmp_path: Path, record_property
):
    moments = await learn(tmp_path, algorithm, 0, updates=UPDATES)
    variances = [moment.explained_variance or 0.0 for moment in moments]
    losses = [moment.value_loss or 0.0 for moment in moments]
    record_property(f"toy_{algorithm}_explained_variance", round(fmean(variances[-5:]), 3))
    assert variances[0] < 0.2
    assert fmean(variances[-5:]) > 0.5
    assert fmean(losses[-5:]) < 0.5 * fmean(losses[:5])
    assert fmean(moment.mean_return for moment in moments[-5:]) > 0.7 * best_mean_return()


@pytest.mark.slow
async def test_an_adapter_learns_the_same_task(tmp_path: Path):
    moments = await learn(tmp_path, "grpo", 0, updates=15, tuning="lora")
    assert moments[0].mean_return < 0.3 * best_mean_return()
    assert fmean(moment.mean_return for moment in moments[-3:]) > 0.45 * best_mean_return()
