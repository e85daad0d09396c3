"""Trajectories are read back as written, from Parquet and from JSON."""
# R27, R28

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from plain_trajectory import make_trajectory
from trajectory_strategies import trajectories

from mcprl.errors import StorageError
from mcprl.records import StopReason, Turn
from mcprl.runs.trajectories import (
    decode_trajectory,
    encode_trajectory,
    read_trajectories,
    write_trajectories,
)


@given(made=st.lists(trajectories(), max_size=4))
def test_trajectories_read_from_parquet_are_those_written(tmp_path_factory, made):
    path = tmp_path_factory.mktemp("trajectories") / "step-00000.parquet"
    write_trajectories(path, made)
    read = read_trajectories(path)
    assert read == made
    assert repr(read) == repr(made)  # where == sees no difference: 0.0 and -0.0, 1 and 1.0 and True
    for trajectory in read:
        assert isinstance(trajectory.stop, StopReason)
        assert all(isinstance(turn, Turn) for turn in trajectory.turns)


@given(made=trajectories())
def test_a_trajectory_is_decoded_as_it_was_encoded_on_one_line(made):
    encoded = encode_trajectory(made)
    assert b"\n" not in encoded
    assert repr(decode_trajectory(encoded)) == repr(made)


@given(text=st.text(st.characters(codec=None)))
@example(text="\ud83d\ude00")
def test_any_text_survives_encoding_and_two_halves_of_a_surrogate_pair_are_not_joined(text):
    assert decode_trajectory(encode_trajectory(make_trajectory(text=text))).turns[0].text == text


def test_a_reward_that_is_not_finite_is_kept(tmp_path):
    made = replace(make_trajectory(), reward=math.nan, reward_parts={"answer": math.inf})
    write_trajectories(tmp_path / "file.parquet", [made])
    for read in (decode_trajectory(encode_trajectory(made)), *read_trajectories(tmp_path / "file.parquet")):
        assert math.isnan(read.reward)
        assert read.reward_parts == {"answer": math.inf}


@pytest.mark.parametrize("levels", [100, 220, 400])
def test_arguments_nested_as_deep_as_a_policy_likes_are_recorded(tmp_path, levels):
    nested: object = "core"
    for _ in range(levels):
        nested = [nested]
    made = make_trajectory(nested=nested)
    write_trajectories(tmp_path / "file.parquet", [made])
    for read in (decode_trajectory(encode_trajectory(made)), *read_trajectories(tmp_path / "file.parquet")):
        assert json.dumps(read.turns[0].calls[0].arguments) == json.dumps({"x": nested})


@given(junk=st.binary(max_size=60))
def test_bytes_that_are_not_a_trajectory_are_a_value_error(junk):
    with pytest.raises(ValueError, match=r"\S"):
        decode_trajectory(junk)


@pytest.mark.parametrize("junk", [b"[" * 100_000, b"{}", b"null", b'{"step": "x"}'])
def test_json_that_is_not_a_trajectory_is_a_value_error(junk):
    with pytest.raises(ValueError, match=r"\S"):
        decode_trajectory(junk)


def test_a_parquet_file_that_cannot_be_written_is_a_fault_of_the_disk(tmp_path):
    with pytest.raises(StorageError):
        write_trajectories(tmp_path / "no folder" / "file.parquet", [make_trajectory()])
