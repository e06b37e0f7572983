"""Sinusoidal positions, and stored ones that override them."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors.torch import load_file
from transformers.models.pegasus.modeling_pegasus import PegasusSinusoidalPositionalEmbedding

from builtin_plugins.models import bart
from core.models.layers.decoder import Decoder
from core.testing.checkpoints import make_checkpoint
from core.testing.one_sequence import plain_context, read_config

TABLES = ("model.encoder.embed_positions.weight", "model.decoder.embed_positions.weight")


def test_sinusoids_are_computed_unless_checkpoint_stores_positions(tmp_path: Path) -> None:
    folder = make_checkpoint("PegasusForConditionalGeneration", tmp_path, seed=1)
    tensors = load_file(folder / "model.safetensors")
    spec = bart.pegasus(read_config(folder))
    stored = {name: torch.randn(spec.max_positions, spec.hidden_size) for name in TABLES}
    others = {name: tensor for name, tensor in tensors.items() if name not in TABLES}

    def tables(weights: dict[str, torch.Tensor]) -> list[torch.Tensor]:
        decoder = Decoder(spec, plain_context())
        decoder.load_weights(weights.items())
        assert decoder.encoder is not None
        assert decoder.encoder.positions is not None
        assert decoder.positions is not None
        return [decoder.encoder.positions, decoder.positions]

    assert all(
        torch.equal(*pair)
        for pair in zip(tables({**others, **stored}), stored.values(), strict=True)
    )
    formula = PegasusSinusoidalPositionalEmbedding(
        spec.max_positions, spec.hidden_size
    ).create_weight()  # type: ignore[no-untyped-call]
    for found in tables(others):
        torch.testing.assert_close(found.data, formula, atol=1e-5, rtol=0)
