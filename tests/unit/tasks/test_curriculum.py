"""The curriculum: its formula, no task starves, and a restored run deals the same tasks."""
# R20, R30

from __future__ import annotations

import json
from collections import Counter
from fractions import Fraction
from zlib import crc32

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcprl.config import RunConfig
from mcprl.errors import BadValueError, TaskFileError
from mcprl.goals import AnyText, Goal
from mcprl.records import Difficulty, Task
from mcprl.tasks import Curriculum, TaskOrder, make_order

EASY, MEDIUM, HARD = Difficulty


def tasks(*levels: Difficulty) -> list[Task]:
    prompt = ({"role": "user", "content": "Hi"},)
    return [
        Task(id=f"{level}{n}", prompt=prompt, goal=Goal(answer=AnyText()), difficulty=level)
        for n, level in enumerate(levels)
    ]


def play(order: Curriculum, steps: range, succeeds) -> list[list[str]]:
    """Deal and note; `succeeds(task_id, step)` gives the outcomes of its episodes."""
    dealt = []
    for step in steps:
        dealt.append([task.id for task in order.deal(step)])
        order.note({task_id: succeeds(task_id, step) for task_id in dealt[-1]})
    return dealt


levels = st.lists(st.sampled_from(Difficulty), min_size=1, max_size=25)
# Any fixed way in which episodes may turn out.
outcomes = st.integers(1, 2**32).map(
    lambda salt: lambda task_id, step: [bool(crc32(f"{salt} {task_id} {step} {n}".encode()) % 3) for n in range(4)]
)


@given(levels, st.data(), outcomes)
def test_a_restored_run_deals_exactly_what_the_uninterrupted_one_deals(drawn, data, succeeds):
    per_step = data.draw(st.integers(1, len(drawn)))
    seed, until = data.draw(st.integers(0, 2**63)), data.draw(st.integers(0, 8))
    whole = Curriculum(tasks(*drawn), per_step=per_step, seed=seed)
    expected = play(whole, range(12), succeeds)
    first = Curriculum(tasks(*drawn), per_step=per_step, seed=seed)
    play(first, range(until), succeeds)
    saved = json.loads(json.dumps(first.state()))
    resumed = Curriculum(tasks(*drawn), per_step=per_step, seed=seed)
    resumed.restore(saved)
    assert play(resumed, range(until, 12), succeeds) == expected[until:]
    assert resumed.state() == whole.state()


@given(levels, st.data(), outcomes)
def test_a_step_deals_the_asked_number_of_different_tasks_and_asking_twice_changes_nothing(drawn, data, succeeds):
    per_step = data.draw(st.integers(1, len(drawn)))
    order = Curriculum(tasks(*drawn), per_step=per_step, seed=3)
    for step in range(5):
        dealt = order.deal(step)
        assert len({task.id for task in dealt}) == per_step
        assert order.deal(step) == dealt
        order.note({task.id: succeeds(task.id, step) for task in dealt})


@given(
    st.lists(
        st.tuples(st.sampled_from(Difficulty), st.lists(st.lists(st.booleans(), min_size=1, max_size=5), max_size=3))
    ),
    st.integers(1, 6),
)
def test_the_weights_are_those_of_the_written_formula(histories, per_step):
    """In exact fractions, from the formula in the module's text."""
    made = tasks(*(level for level, _ in histories))
    per_step = min(per_step, len(made))
    order = Curriculum(made, per_step=per_step, seed=0)
    chance, tried = {}, set()
    for task, (_, groups) in zip(made, histories, strict=True):
        succeeded = count = Fraction(0)
        for group in groups:
            order.note({task.id: group})
            succeeded, count = succeeded / 2 + sum(group), count / 2 + len(group)
            tried.add(task.id)
        chance[task.id] = (succeeded + 1) / (count + 2)
    openness, so_far = {}, Fraction(1)
    for level in (EASY, MEDIUM, HARD):
        openness[level] = so_far
        members = [task.id for task in made if task.difficulty is level]
        seen = [chance[task_id] for task_id in members if task_id in tried]
        if members:
            mean = sum(seen, Fraction(0)) / max(len(seen), min(per_step, len(members)))
            so_far *= min(Fraction(1), mean / Fraction(6, 10)) ** 2
    wanted = [
        Fraction(1, 10) + openness[task.difficulty] * 4 * chance[task.id] * (1 - chance[task.id]) for task in made
    ]
    assert order.weights() == pytest.approx([float(weight) for weight in wanted], rel=1e-12)


def test_draws_follow_the_weights():
    made = tasks(EASY, EASY, EASY, MEDIUM)
    order = Curriculum(made, per_step=1, seed=11)
    order.note({"easy0": [True] * 8, "easy1": [True, False] * 4})
    weights = order.weights()
    counts = Counter(order.deal(step)[0].id for step in range(6000))
    for task, weight in zip(made, weights, strict=True):
        share = weight / sum(weights)
        spread = (share * (1 - share) / 6000) ** 0.5
        assert abs(counts[task.id] / 6000 - share) < 4.5 * spread


def test_stand_ins_continue_the_weighted_draw():
    made = tasks(EASY, EASY, EASY, MEDIUM)
    order = Curriculum(made, per_step=1, seed=11)
    order.note({"easy0": [True] * 8, "easy1": [True, False] * 4})
    weights = dict(zip((task.id for task in made), order.weights(), strict=True))
    drawn = [(order.deal(step)[0].id, [task.id for task in order.stand_ins(step)]) for step in range(6000)]
    assert all(sorted([first, *others]) == sorted(weights) for first, others in drawn)
    after = Counter(others[0] for first, others in drawn if first == "easy2")
    total, left = after.total(), {name: weight for name, weight in weights.items() if name != "easy2"}
    for name, weight in left.items():
        share = weight / sum(left.values())
        assert abs(after[name] / total - share) < 4.5 * (share * (1 - share) / total) ** 0.5


def test_easy_tasks_come_first_and_harder_ones_as_success_comes():
    made = tasks(*[EASY] * 10, *[MEDIUM] * 10, *[HARD] * 10)

    def shares(dealt: list[list[str]]) -> dict[str, float]:
        named = [task_id.rstrip("0123456789") for ids in dealt for task_id in ids]
        return {level: named.count(level) / len(named) for level in Difficulty}

    hopeless = shares(play(Curriculum(made, per_step=5, seed=1), range(200), lambda *_: [False] * 4))
    # A task that never succeeds has at least 0.1 + 4/18·17/18 = 0.31; all others have little more than 0.1.
    assert hopeless[EASY] > 0.5
    learner = Curriculum(made, per_step=5, seed=1)
    start = shares(play(learner, range(2), lambda *_: [False] * 4))
    assert start[EASY] >= 0.5
    easy_done = shares(play(learner, range(2, 80), lambda task_id, _: [task_id.startswith("easy")] * 4)[40:])
    assert easy_done[MEDIUM] > easy_done[HARD]
    assert easy_done[MEDIUM] > hopeless[MEDIUM]
    all_done = shares(play(learner, range(80, 240), lambda task_id, _: [not task_id.startswith("hard")] * 4)[80:])
    assert all_done[HARD] > easy_done[HARD]


def test_a_level_of_which_half_can_never_be_solved_does_not_shut_out_the_next():
    made = tasks(*[EASY] * 8, *[MEDIUM] * 8)
    order = Curriculum(made, per_step=4, seed=4)
    play(order, range(100), lambda task_id, _: [task_id.startswith("easy") and int(task_id[4:]) % 2 == 0] * 4)
    medium = order.weights()[8:]
    assert min(medium) > 0.1 + 0.1


def test_what_was_not_dealt_cannot_be_noted():
    order = Curriculum(tasks(EASY), per_step=1, seed=0)
    with pytest.raises(ValueError, match="the curriculum has no task 'nobody'"):
        order.note({"nobody": [True]})
    with pytest.raises(ValueError, match="without episodes"):
        order.note({"easy0": []})


@pytest.mark.parametrize("kind", [Curriculum, TaskOrder])
def test_a_state_of_other_tasks_or_of_another_order_is_refused(kind):
    other = TaskOrder if kind is Curriculum else Curriculum
    state = kind(tasks(EASY, HARD), per_step=1, seed=0).state()
    kind(tasks(EASY, HARD), per_step=2, seed=0).restore(state)
    for changed in (tasks(EASY), tasks(EASY, MEDIUM), tasks(EASY, HARD)[::-1]):
        with pytest.raises(TaskFileError, match="differ from those of the saved run"):
            kind(changed, per_step=1, seed=0).restore(state)
    with pytest.raises(TaskFileError, match="uses task order"):
        other(tasks(EASY, HARD), per_step=1, seed=0).restore(state)


@pytest.mark.parametrize("counts", [None, [], {"easy0": [1]}, {"easy0": "x"}])
def test_a_damaged_state_is_refused(counts):
    order = Curriculum(tasks(EASY), per_step=1, seed=0)
    with pytest.raises(TaskFileError, match="damaged"):
        order.restore(order.state() | {"counts": counts})


def test_more_tasks_a_step_than_there_are_is_refused():
    with pytest.raises(BadValueError, match="tasks_per_step is 2, but there are only 1 tasks"):
        Curriculum(tasks(EASY), per_step=2, seed=0)


@pytest.mark.parametrize(("name", "kind"), [("shuffled", TaskOrder), ("curriculum", Curriculum)])
def test_the_configuration_chooses_the_order(tmp_path, name, kind):
    config = RunConfig.model_validate(
        {
            "name": "x",
            "seed": 5,
            "model": {"path": "m"},
            "tasks": {"train": str(tmp_path / "t"), "order": name},
            "servers": {"file": str(tmp_path / "s")},
            "training": {"tasks_per_step": 2},
        }
    )
    made = tasks(EASY, EASY, HARD)
    order = make_order(made, config)
    assert isinstance(order, kind)
    assert order.deal(3) == kind(made, per_step=2, seed=5).deal(3)


def test_the_shuffled_order_learns_nothing_and_its_state_is_json():
    order = TaskOrder(tasks(EASY, EASY, HARD), per_step=1, seed=5)
    before = [order.deal(step) for step in range(6)]
    order.note({"easy0": [True]})
    order.restore(json.loads(json.dumps(order.state())))
    assert [order.deal(step) for step in range(6)] == before
