"""The smallest folder of a complete model, and a correct recipe."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from patients import Patient, well_patient
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace

SHAPE = {
    "hidden_size": 8,
    "intermediate_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "vocab_size": 16,
    "tie_word_embeddings": True,
}


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory) -> Path:
    """The files of a model: one tensor, and a tokenizer with one token per word."""
    folder = tmp_path_factory.mktemp("model")
    (folder / "config.json").write_text(json.dumps(SHAPE))
    header = json.dumps({"embedding": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}).encode()
    (folder / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + bytes(4))
    tokenizer = Tokenizer(WordLevel({"[UNK]": 0}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = Whitespace()
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


@pytest.fixture
def patient(tmp_path, model_folder) -> Patient:
    return well_patient(tmp_path, model_folder)
