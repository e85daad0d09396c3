"""The memory of an update, counted on fake tensors."""

from __future__ import annotations

import pytest
from small_models import small_config
from transformers import Qwen3Config

from mcprl.learning.memory import count_update, predict_update

HIDDEN, INNER, LAYERS, VOCABULARY, TOKENS = 64, 128, 6, 512, 256


@pytest.fixture
def model(tmp_path):
    Qwen3Config(
        vocab_size=VOCABULARY,
        hidden_size=HIDDEN,
        intermediate_size=INNER,
        num_hidden_layers=LAYERS,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        tie_word_embeddings=True,
    ).save_pretrained(tmp_path)
    return tmp_path


@pytest.mark.slow
def test_few_layers_are_enough_to_predict_all(model):
    for learner in ({"checkpointing": True}, {"checkpointing": False}, {"tuning": "full", "checkpointing": True}):
        config = small_config(model, **learner)
        counted = count_update(config, str(model), tokens=TOKENS)
        predicted = predict_update(config, str(model), tokens=TOKENS)
        assert predicted.weights == pytest.approx(counted.weights)
        assert predicted.peak == pytest.approx(counted.peak, rel=0.05)


def test_weights_and_moments_are_those_of_the_model(model):
    counted = count_update(small_config(model, tuning="full"), str(model), tokens=TOKENS)
    queries, keys = 4 * 16, 2 * 16
    layer = HIDDEN * (2 * queries + 2 * keys + 3 * INNER) + 2 * HIDDEN + 2 * 16
    parameters = VOCABULARY * HIDDEN + LAYERS * layer + HIDDEN
    assert counted.weights == pytest.approx(4 * parameters, rel=0.01)  # and the rotary frequencies
    assert counted.moments == 8 * parameters
    assert counted.activations > 4 * parameters  # the gradients alone


@pytest.mark.slow
def test_activations_grow_with_the_pack_and_shrink_with_checkpointing(model):
    def activations(tokens: int, *, checkpointing: bool) -> float:
        return count_update(small_config(model, checkpointing=checkpointing), str(model), tokens=tokens).activations

    assert activations(TOKENS, checkpointing=True) < 0.6 * activations(TOKENS, checkpointing=False)
    assert activations(2 * TOKENS, checkpointing=False) > 1.5 * activations(TOKENS, checkpointing=False)


def test_no_mask_of_tokens_by_tokens_is_counted(model):
    config = small_config(model, checkpointing=False)
    long, longer = (count_update(config, str(model), tokens=tokens).activations for tokens in (2048, 4096))
    assert longer == pytest.approx(2 * long, rel=0.05)
