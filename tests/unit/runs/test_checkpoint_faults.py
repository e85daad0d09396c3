"""A disk that fails or fills up, or a process killed, at every change of a file: a complete checkpoint remains."""
# R28

from __future__ import annotations

from collections import Counter

import pytest
from file_faults import NEW, OLD, SCENARIOS, Case, run_cases

pytestmark = pytest.mark.process


@pytest.fixture(scope="module")
def cases_of_all(tmp_path_factory) -> dict[str, list[Case]]:
    return run_cases(tmp_path_factory.mktemp("faults"))


@pytest.fixture(params=SCENARIOS)
def scenario(request) -> str:
    return request.param


@pytest.fixture
def cases(scenario, cases_of_all) -> list[Case]:
    return cases_of_all[scenario]


def test_a_whole_checkpoint_is_there_after_any_fault_of_a_save(cases, scenario, record_property):
    before, saved = SCENARIOS[scenario].there, SCENARIOS[scenario].saved
    lost = [case for case in cases if (case.step, case.holds) not in {(before, OLD), (saved, NEW)}]
    record_property("fault_cases", len(cases))
    record_property("previous_loads", 1 - len(lost) / len(cases))
    assert lost == []


def test_a_disk_fault_is_reported_and_never_ignored(cases):
    wrong = [case for case in cases if case.outcome != ("storage error" if case.fault.error else "killed")]
    assert wrong == []


def test_the_next_save_succeeds_and_leaves_nothing_of_the_failed_one(cases):
    assert [case for case in cases if case.again != "saved"] == []


def test_faults_reach_every_kind_of_change_whoever_makes_it(cases):
    kills = [case for case in cases if case.outcome == "killed"]
    calls = Counter(case.call for case in kills)
    # safetensors sizes its file and renames it by system calls of its own; nothing else here does either.
    assert calls["ftruncate"] == 1
    assert calls["renameat"] == 1
    assert calls["write"] == 4  # its file, two of JSON, the manifest
    assert calls["fsync"] >= 4 + 4  # each file, each folder, and the manifest
    assert {"mkdir", "openat", "rename", "unlinkat"} <= calls.keys()
    assert {case.holds for case in kills} == {OLD, NEW}
