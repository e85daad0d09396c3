"""The value loss and explained variance against plain Python and numpy."""
# R3, R9

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mcprl.learning.algorithms import explained_variance, value_loss

numbers = st.floats(-3.0, 3.0)
rows_of_three = st.lists(st.tuples(numbers, numbers, numbers), min_size=1, max_size=20)
rows_of_two = st.lists(st.tuples(numbers, numbers), min_size=2, max_size=30)


def columns(rows) -> tuple[torch.Tensor, ...]:
    return torch.tensor(rows, dtype=torch.float64).unbind(1)


@given(rows_of_three, st.one_of(st.none(), st.floats(0.05, 1.0)))
def test_the_value_loss_is_half_the_larger_of_two_squared_errors(rows, clip):
    wanted = []
    for value, old, earned in rows:
        clipped = value if clip is None else old + min(max(value - old, -clip), clip)
        wanted.append(0.5 * max((value - earned) ** 2, (clipped - earned) ** 2))
    assert value_loss(*columns(rows), clip=clip).tolist() == pytest.approx(wanted, rel=1e-9, abs=1e-12)


@pytest.mark.parametrize(
    ("value", "gradient"),
    [(0.1, -0.9), (0.5, 0.0), (-0.5, -1.5)],
    ids=["near the old value", "far towards the return", "far away from it"],
)
def test_a_value_that_has_come_far_enough_is_left_alone(value, gradient):
    value_N = torch.tensor([value], requires_grad=True)
    value_loss(value_N, torch.zeros(1), torch.ones(1), clip=0.2).sum().backward()
    assert value_N.grad.tolist() == pytest.approx([gradient])


@given(rows_of_two.filter(lambda rows: np.ptp([earned for _, earned in rows]) > 1e-3))
def test_explained_variance_is_that_of_numpy(rows):
    value_N, return_N = columns(rows)
    wanted = 1.0 - np.var((return_N - value_N).numpy()) / np.var(return_N.numpy())
    assert explained_variance(value_N, return_N) == pytest.approx(wanted, rel=1e-9, abs=1e-9)


def test_a_perfect_head_explains_all_and_a_constant_one_nothing():
    return_N = torch.tensor([0.0, 0.25, 1.0])
    assert explained_variance(return_N, return_N) == 1.0
    assert explained_variance(torch.full((3,), 0.7), return_N) == pytest.approx(0.0, abs=1e-6)


@pytest.mark.parametrize("returns", [[], [0.3], [0.1] * 9])
def test_nothing_is_explained_where_nothing_varies(returns):
    assert explained_variance(torch.zeros(len(returns)), torch.tensor(returns)) == 0.0
