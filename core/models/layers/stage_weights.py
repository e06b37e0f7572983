"""Tensors of a checkpoint that a pipeline stage does not read."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from core.contracts.models import BuildContext
    from core.model_spec.decoder import DecoderSpec

TRAINING_HEADS: Final = "v_head.*"
"""Value heads of reinforcement learning, which training tools store with the model."""


def ignored_patterns(spec: DecoderSpec, own: range, context: BuildContext) -> list[str]:
    """Return patterns of tensors of other pipeline stages, and of heads that only training has."""
    names = spec.names
    stage = context.pipeline
    others = [TRAINING_HEADS]
    stored = spec.stored_layers or range(len(spec.layers))
    mine = {stored[index] for index in own}
    others += [f"{names.layer_prefix(at)}.*" for at in stored if at not in mine]
    others += [
        f"{names.layer_prefix(at)}.{names.indexer}.*"
        for at, layer in zip(stored, spec.layers, strict=True)
        if getattr(layer.attention, "indexer", None) is not None
        and (layer.index_source_layer is not None or not spec.selects_tokens(layer))
    ]
    if not stage.is_first:
        others += [
            f"{prefix}.*"
            for prefix in (names.positions, names.token_types, names.embed_in, names.embed_norm)
        ]
        if not (stage.is_last and spec.tied_head and spec.has_head):
            others.append(f"{names.embed}.weight")
    if not stage.is_last:
        others += [f"{names.final_norm}.*", f"{names.embed_out}.*", f"{names.head}.*"]
        others += [f"{names.hyper_head}*", f"{names.final_streams}*"]
        head = spec.pooling.head if spec.pooling is not None else ()
        others += [f"{name}.*" for dense in head for name in (dense.name, dense.norm_name) if name]
    elif not spec.has_head:
        others += [f"{names.embed_out}.*", f"{names.head}.*"]
    return others
