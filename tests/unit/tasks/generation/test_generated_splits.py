"""Generated tasks: how many and how hard, always the same, and nothing of validation in training."""

# R20

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from split_leaks import WORLD, family_of, leaks, subject_of, symbols_in, wording_of, words_of

from mcprl.errors import BadValueError
from mcprl.records import Difficulty
from mcprl_market.generation import FAMILIES, SHARES, SUBSTITUTES, TOOLS, generate


@pytest.fixture(scope="module")
def splits():
    return generate(WORLD)


@pytest.fixture(scope="module")
def everything(splits):
    return (*splits[0], *splits[1])


def test_the_same_arguments_give_the_same_tasks(splits):
    assert generate(WORLD) == splits


def test_another_seed_asks_other_questions_of_the_same_world(splits):
    train, _ = generate(WORLD, seed=1)
    assert {task.world for task in train} == {f"market-{WORLD}"}
    shared = {words_of(task) for task in train} & {words_of(task) for task in splits[0]}
    assert len(shared) < len(train) / 4


def test_another_world_has_tasks_of_its_own(splits):
    train, validation = generate(8, train=60, validation=20)
    assert {task.world for task in (*train, *validation)} == {"market-8"}
    about_companies = {words_of(task) for task in splits[0] if symbols_in(words_of(task))}
    assert not {words_of(task) for task in train} & about_companies


def test_each_difficulty_has_its_share(splits):
    for tasks, size in zip(splits, (400, 100), strict=True):
        assert len(tasks) == size
        counts = Counter(task.difficulty for task in tasks)
        assert counts == {difficulty: round(share * size) for difficulty, share in SHARES.items()}


def test_difficulties_can_be_chosen_and_keep_their_proportion():
    easy, _ = generate(WORLD, train=30, validation=10, difficulties=(Difficulty.EASY,))
    assert [task.difficulty for task in easy] == [Difficulty.EASY] * 30
    train, validation = generate(WORLD, train=20, validation=10, difficulties=(Difficulty.HARD, Difficulty.EASY))
    counts = [Counter(task.difficulty for task in tasks) for tasks in (train, validation)]
    assert counts == [{Difficulty.EASY: 11, Difficulty.HARD: 9}, {Difficulty.EASY: 5, Difficulty.HARD: 5}]


def test_families_can_be_chosen():
    splits = generate(WORLD, train=12, validation=6, difficulties=(Difficulty.EASY,), families=("price", "chief"))
    assert [Counter(map(family_of, tasks)) for tasks in splits] == [{"price": 6, "chief": 6}, {"price": 3, "chief": 3}]


@pytest.mark.parametrize(
    ("difficulties", "families", "says"),
    [
        ((Difficulty.EASY,), ("prices",), "no easy task family is named prices"),
        ((Difficulty.HARD,), ("price",), "no hard task family is named price\\."),
        ((Difficulty.EASY, Difficulty.HARD), ("price",), "none of the chosen families has hard tasks"),
    ],
)
def test_families_that_cannot_be_had_are_refused(difficulties, families, says):
    with pytest.raises(BadValueError, match=says):
        generate(WORLD, difficulties=difficulties, families=families)


def test_difficulty_is_how_many_calls_it_takes(everything):
    needed = {Difficulty.EASY: {1}, Difficulty.MEDIUM: {2, 3}, Difficulty.HARD: {4, 5, 6}}
    assert [task.id for task in everything if len(task.goal.calls) not in needed[task.difficulty]] == []
    assert {len(task.goal.calls) for task in everything} == {1, 2, 3, 4, 5, 6}


def test_ids_and_prompts_are_all_different(everything):
    assert len({task.id for task in everything}) == len(everything)
    assert len({words_of(task) for task in everything}) == len(everything)


def test_every_family_is_in_both_splits(splits):
    names = {family.name for family in FAMILIES}
    assert [{family_of(task) for task in tasks} for tasks in splits] == [names, names]


def test_every_tool_is_needed_by_some_task_of_each_split(splits):
    for tasks in splits:
        assert {call.tool for task in tasks for call in task.goal.calls} == set(TOOLS)


def test_a_solution_makes_exactly_the_calls_that_the_goal_expects(everything):
    for task in everything:
        made = [(call.name, dict(call.arguments)) for call in task.solution.calls]
        assert [name for name, _ in made] == [call.tool for call in task.goal.calls]
        assert all(
            dict(need.arguments).items() <= given.items()
            for need, (_, given) in zip(task.goal.calls, made, strict=True)
        )


def test_tools_on_offer_are_the_needed_ones_and_three_that_lead_nowhere(everything):
    for task in everything:
        needed = {call.tool for call in task.goal.calls}
        others = set(task.tools) - needed
        assert needed <= set(task.tools)
        assert len(task.tools) == len(set(task.tools))
        if family_of(task) != "price-if-open":  # the tool of the branch not taken is on offer too
            assert len(others) == 3
            assert [other for other in others for kind in SUBSTITUTES if other in kind and kind & needed] == []


def test_the_number_of_distractors_is_a_choice():
    train, _ = generate(WORLD, train=60, validation=20, distractors=0)
    assert all(set(task.tools) == {call.tool for call in task.goal.calls} for task in train if "if-open" not in task.id)


def test_nothing_of_validation_is_in_training(splits):
    assert leaks(*splits) == []


def test_no_task_is_asked_twice_within_a_split(splits):
    for tasks in splits:
        twice = [subject for subject, count in Counter(map(subject_of, tasks)).items() if count > 1]
        # These ask for one of several figures of the same company and day, which the prompt's words tell apart.
        several = {
            "day-range",
            "last-session",
            "earnings",
            "headline",
            "polygon-headline",
            "bar-of-day",
            "price-target",
        }
        assert [subject for subject in twice if subject[0] not in several] == []


def test_leaks_are_found(splits):
    train, validation = splits
    stolen = replace(train[0], id=validation[0].id)
    assert len(leaks(train, (stolen,))) >= 2
    about = next(task for task in train if family_of(task) == "price")
    reworded = replace(
        about, id="validation-price-000", prompt=({"role": "user", "content": f"{words_of(about)} Now!"},)
    )
    assert any("asks for what" in leak for leak in leaks(train, (reworded,)))
    moved = next(task for task in train if family_of(task) == "mover")
    assert any("asks for what" in leak for leak in leaks(train, (replace(moved, id="validation-mover-000"),)))


def test_half_of_validation_has_wordings_that_training_never_sees(splits):
    seen = {wording_of(task) for task in splits[0]}
    unseen = [task for task in splits[1] if wording_of(task) not in seen]
    assert len(unseen) >= 50
    assert {family_of(task) for task in unseen} == {family.name for family in FAMILIES}


def test_a_world_without_enough_to_ask_says_so():
    with pytest.raises(BadValueError, match="tasks for validation"):
        generate(WORLD, train=10, validation=12_000)
