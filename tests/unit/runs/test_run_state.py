"""The state of a run in a checkpoint: read back as written, refused if another version wrote it."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcprl.errors import OtherStateError
from mcprl.goals import Goal
from mcprl.records import Task
from mcprl.runs.checkpoints import RunState, deal_ids, deals_of, read_state, write_state
from mcprl.tasks import Deal

TASKS = [Task(id=f"t{n}", prompt=({"role": "user", "content": "Hi"},), goal=Goal()) for n in range(6)]
STATE = RunState(
    step=12,
    settings={"seed": 7},
    model="c14e",
    weights_version=11,
    kl_coefficient=0.1 + 0.2,
    order={"order": "curriculum", "counts": {"t0": [0.1, 3.0]}},
    health={"steps": 12, "windows": {"reward": [0.25]}},
    open_deals={"12": {"tasks": ["t1"], "stand_ins": []}},
)


def test_a_state_is_read_as_it_was_written(tmp_path):
    write_state(tmp_path, STATE)
    assert read_state(tmp_path) == STATE


@pytest.mark.parametrize("change", [{"format": 1}, {"step": "many"}, {"health": None}])
def test_a_state_that_this_version_does_not_write_is_refused(tmp_path, change):
    write_state(tmp_path, STATE)
    file = tmp_path / "state.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | change))
    with pytest.raises(OtherStateError, match=r"state\.json"):
        read_state(tmp_path)


@given(st.dictionaries(st.integers(0, 9), st.permutations(TASKS), max_size=3))
def test_deals_are_those_that_were_written_down(tmp_path_factory, orders):
    deals = {step: Deal(tasks=tuple(order[:2]), stand_ins=tuple(order[2:4])) for step, order in orders.items()}
    folder = tmp_path_factory.mktemp("state")
    write_state(folder, replace(STATE, open_deals=deal_ids(deals)))
    assert deals_of(read_state(folder).open_deals, TASKS) == deals
