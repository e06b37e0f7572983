"""Models that retrieve pages: vectors for each token, for late interaction, and scores of pairs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, Final

from builtin_plugins.models.vision.spec import spec as image_text_spec
from builtin_plugins.models.vision.tower import TransformersTowerSpec
from core.api import ModelError
from core.model_spec.decoder import DecoderSpec
from core.model_spec.facts import ModelFacts
from core.model_spec.pooling import DenseSpec, PoolingSpec

PREFIX: Final = "vlm."
"""Of the tensors of the vision-language model."""


def colqwen2(hf_config: object) -> DecoderSpec:
    """Return Qwen2-VL with a projection of each token. Positions have one axis, as trained."""
    facts = ModelFacts(hf_config)
    inner = facts.required("vlm_config")
    stated = inner if isinstance(inner, Mapping) else {}
    if stated.get("model_type") != "qwen2_vl":
        raise ModelError(
            f"vlm_config.model_type: got {stated.get('model_type')!r:.80}; expected 'qwen2_vl'. "
            "Serve another checkpoint."
        )
    found = _of_class(stated, "Qwen2VLForConditionalGeneration")
    assert isinstance(found.tower, TransformersTowerSpec)
    projection = DenseSpec(name="embedding_proj_layer", width=facts.count("embedding_dim", 128))
    rename = ((r"^vlm\.(model\.)?", "model."), *found.names.rename)
    return replace(
        found,
        names=replace(found.names, rename=rename),
        pooling=PoolingSpec(task="embed", per_token=True, head=(projection,)),
        tower=replace(found.tower, prefix=PREFIX, one_axis=True),
    )


def qwen3_vl_reranker(hf_config: object) -> DecoderSpec:
    """Return Qwen3-VL with a score; that of `classifier_from_token`, as trained, is set later."""
    found = _of_class(vars(hf_config), "Qwen3VLForConditionalGeneration")
    return replace(found, pooling=PoolingSpec(task="classify", is_cross_encoder=True))


def jina_reranker(hf_config: object) -> DecoderSpec:
    """Return Qwen2-VL with an MLP for the token that ends a pair, and the bias of its score."""
    found = _of_class(vars(hf_config), "Qwen2VLForConditionalGeneration")
    inner = DenseSpec(name="score.0", width=found.hidden_size, activation="relu")
    head = (inner, DenseSpec(name="score.2", width=1))
    facts: dict[str, Any] = {"logit_mean": 2.65, "pair_end_ids": (100,), "is_cross_encoder": True}
    return replace(found, pooling=PoolingSpec(task="classify", head=head, **facts))


def _of_class(fields: Mapping[str, Any], architecture: str) -> DecoderSpec:
    """Return the vision-language model of a class with the fields of a config."""
    found = image_text_spec(SimpleNamespace(**{**fields, "architectures": [architecture]}))
    assert isinstance(found, DecoderSpec)
    return found
