"""N-grams hash as in transformers, whatever parts of a text a step has."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import Qwen4ExpTextConfig
from transformers.models.qwen4_exp import modeling_qwen4_exp as theirs

from core.errors import ModelError
from core.model_spec.ngrams import NgramSpec
from core.models.layers.ngrams import Ngrams
from core.models.layers.state import plan_states
from core.models.layers.weights import WeightMap
from core.testing.checkpoints import tiny_config
from core.testing.one_sequence import plain_context

SEPARATOR = 299
SIZES: dict[str, Any] = {
    "vocab_size": 300,
    "width": 32,
    "size": 3,
    "heads": 2,
    "min_rows": 50,
    "multiple": 8,
    "shards": 4,
    "separator": SEPARATOR,
    "kernel": 3,
    "seed": 1234,
}


def spec(index: int = 1, **others: Any) -> NgramSpec:
    return NgramSpec(**{"index": index, "eps": 1e-6, **SIZES, **others})


@pytest.fixture
def embedding() -> theirs.Qwen4ExpTextNGramEmbedding:
    """Return transformers' embedding of the second layer with n-grams."""
    config = tiny_config("Qwen4ExpForCausalLM")
    assert isinstance(config, Qwen4ExpTextConfig)
    return theirs.Qwen4ExpTextNGramEmbedding(config, 32, layer_idx=2, ple_layer_index=1)


def test_rows_and_factors_equal_transformers(
    embedding: theirs.Qwen4ExpTextNGramEmbedding,
) -> None:
    assert spec().rows == embedding.head_vocab_sizes
    found = theirs._build_layer_multipliers(300, 3, 1, 1234)
    assert spec().multipliers == found.tolist()


@pytest.mark.parametrize("chunk", [1, 2, 7, 24])
def test_rows_of_tokens_equal_transformers_in_any_chunks(
    chunk: int, embedding: theirs.Qwen4ExpTextNGramEmbedding
) -> None:
    tokens = torch.randint(0, 299, (24,), generator=torch.Generator().manual_seed(3))
    tokens[[0, 5, 6, 13, 15]] = SEPARATOR
    layer = Ngrams(spec(), 2, 16, "ple", plain_context(), WeightMap())
    layer.cache = tuple(torch.zeros(3, *shape) for shape, _ in layer.kv_spec.parts)
    weight = embedding.ngram_embedding.weight
    weight.data = torch.arange(len(weight)).float()[:, None].repeat(1, 8)
    expected = embedding(tokens[None], None).view(24, 4, 8)[..., 0].long()
    found = []
    for start in range(0, 24, chunk):
        some = tokens[start : start + chunk]
        blocks = torch.tensor([[1, 2]], dtype=torch.int32).numpy()
        counts = torch.tensor([len(some)]).numpy()
        plan = plan_states(torch.tensor([start]).numpy(), counts, blocks, 64)
        found.append(plan.compute(layer._rows_of, some))
    assert torch.equal(torch.cat(found), expected)


def test_width_that_heads_do_not_divide_is_refused() -> None:
    with pytest.raises(ModelError, match="ple_embed_dim: got 30; expected a multiple"):
        spec(width=30)
