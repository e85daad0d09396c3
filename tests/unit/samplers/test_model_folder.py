"""What is asked of a folder before its weights are loaded: all files, all of their bytes, the same model."""
# R23

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from mcprl.errors import BadValueError
from mcprl.samplers.model_folder import check_base_model, check_files, differing_settings

INDEX = "model.safetensors.index.json"


@pytest.fixture
def one_file(tmp_path) -> Path:
    (tmp_path / "config.json").write_text("{}")
    save_file({"a": torch.ones(3), "b": torch.ones(2, 2)}, tmp_path / "model.safetensors", metadata={"format": "pt"})
    return tmp_path


@pytest.fixture
def two_files(tmp_path) -> Path:
    (tmp_path / "config.json").write_text("{}")
    for name in "ab":
        save_file({name: torch.ones(3)}, tmp_path / f"{name}.safetensors")
    (tmp_path / INDEX).write_text(json.dumps({"weight_map": {"a": "a.safetensors", "b": "b.safetensors"}}))
    return tmp_path


@pytest.mark.parametrize("folder", ["one_file", "two_files"])
def test_a_whole_folder_passes(request, folder):
    check_files(request.getfixturevalue(folder))


@pytest.mark.parametrize("kept_bytes", [0, 5, 8, 60, -1])
def test_a_file_that_was_not_written_to_its_end_is_refused(one_file, kept_bytes):
    file = one_file / "model.safetensors"
    file.write_bytes(file.read_bytes()[:kept_bytes])
    with pytest.raises(BadValueError, match=r"E-CONF-003 .*model\.safetensors is missing, truncated.*Fix: "):
        check_files(one_file)


@pytest.mark.parametrize(
    ("missing", "reason"), [("config.json", "no config.json"), ("model.safetensors", r"no \*\.safetensors")]
)
def test_a_folder_without_settings_or_weights_is_refused(one_file, missing, reason):
    (one_file / missing).unlink()
    with pytest.raises(BadValueError, match=reason):
        check_files(one_file)


def test_a_file_without_tensors_is_refused(one_file):
    save_file({}, one_file / "model.safetensors")
    with pytest.raises(BadValueError, match="is missing all tensors"):
        check_files(one_file)


def test_a_file_that_the_index_names_must_be_there(two_files):
    (two_files / "b.safetensors").unlink()
    with pytest.raises(BadValueError, match=r"b\.safetensors is missing"):
        check_files(two_files)


def test_a_tensor_that_the_index_names_must_be_there(two_files):
    save_file({"c": torch.ones(3)}, two_files / "b.safetensors")
    with pytest.raises(BadValueError, match=r"b\.safetensors is missing at least tensor b"):
        check_files(two_files)


@pytest.mark.parametrize("text", ["{", "{}", ""])
def test_an_index_that_cannot_be_read_is_refused(two_files, text):
    (two_files / INDEX).write_text(text)
    with pytest.raises(BadValueError, match=r"index\.json cannot be read"):
        check_files(two_files)


def test_settings_that_change_the_model_are_told_apart_from_those_that_do_not():
    running = {"hidden_size": 64, "rope_parameters": {"rope_theta": 1e4}, "use_cache": True, "dtype": "bfloat16"}
    same = running | {"use_cache": False, "dtype": "float32", "a_setting_of_a_later_library": 1}
    assert differing_settings(running, same) == []
    other = same | {"hidden_size": 32, "rope_parameters": {"rope_theta": 5e5}}
    assert differing_settings(running, other) == [
        "hidden_size is 32 instead of 64",
        "rope_parameters is {'rope_theta': 500000.0} instead of {'rope_theta': 10000.0}",
    ]


@pytest.mark.parametrize(
    ("base", "model", "says"),
    [
        ("wide", "narrow", "hidden_size is 32 instead of 64"),
        ("wide", "copy of wide", None),
        ("wide", "Qwen/Qwen3-0.6B", None),  # may be the same model
        ("not here", "narrow", None),
        ("Qwen/Qwen3-0.6B", "Qwen/Qwen3-0.6B", None),
        ("Qwen/Qwen3-0.6B", "Qwen/Qwen3-8B", "their Hugging Face names differ"),
    ],
)
def test_an_adapter_of_another_model_is_refused_with_both_names(tmp_path, base, model, says):
    for name, size in (("wide", 64), ("copy of wide", 64), ("narrow", 32)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(json.dumps({"hidden_size": size, "use_cache": name == "wide"}))
    base, model = (name if "/" in name else str(tmp_path / name) for name in (base, model))
    (tmp_path / "adapter_config.json").write_text(json.dumps({"r": 4, "base_model_name_or_path": base}))
    if says is None:
        check_base_model(tmp_path, model)
    else:
        with pytest.raises(BadValueError, match=rf"trained on {base}, but model\.path is {model}: {says}"):
            check_base_model(tmp_path, model)
