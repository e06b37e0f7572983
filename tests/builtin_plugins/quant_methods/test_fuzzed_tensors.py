"""Two thousand damaged weights of all formats: each is read, or rejected with one `ModelError`."""

from __future__ import annotations

import random
from collections.abc import Callable

import torch

from builtin_plugins.quant_methods.stored.formats import StoredFormat
from core.errors import ModelError
from core.model_spec.weight_shard import WeightShard
from tests.builtin_plugins.quant_methods.writers.all_formats import cases
from tests.builtin_plugins.quant_methods.writers.model import Tensors

OUT = 96
IN = 128
NUM_DAMAGES = 2000
PART = WeightShard(
    pieces=((slice(0, OUT), slice(0, OUT)),),
    columns_in=slice(0, IN),
    out_features=OUT,
    in_features=IN,
)
TYPES = (
    torch.float32,
    torch.float16,
    torch.bfloat16,
    torch.int8,
    torch.uint8,
    torch.int32,
    torch.int64,
)
FLOATS = (torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e8m0fnu, torch.bool)


def damaged(tensor: torch.Tensor, chance: random.Random) -> torch.Tensor:
    """Return a tensor of another dtype, shape or content."""
    ways: list[Callable[[], torch.Tensor]] = [
        lambda: tensor.float().to(chance.choice(TYPES + FLOATS)) if tensor.numel() else tensor,
        lambda: tensor.reshape(-1),
        lambda: tensor[:-1] if tensor.ndim else tensor,
        lambda: tensor.unsqueeze(chance.randrange(tensor.ndim + 1)),
        lambda: tensor.transpose(0, -1) if tensor.ndim else tensor,
        lambda: torch.empty(0, dtype=tensor.dtype),
        lambda: torch.empty(tuple([0] * tensor.ndim), dtype=tensor.dtype),
        lambda: tensor.reshape(-1)[:1].reshape(()) if tensor.numel() else tensor,
        lambda: torch.cat((tensor.reshape(-1), tensor.reshape(-1))).view(tensor.dtype),
        lambda: (
            torch.tensor([chance.randrange(256) for _ in range(tensor.nbytes)], dtype=torch.uint8)
            .view(tensor.dtype)
            .view(tensor.shape)
            if tensor.ndim and tensor.dtype != torch.bool
            else tensor
        ),
    ]
    return chance.choice(ways)()


def read(stored: StoredFormat, tensors: Tensors) -> bool:
    """Load a weight like a layer; False: it was rejected."""
    try:
        stored.check(PART)
        for suffix, tensor in tensors.items():
            shape = stored.shape(suffix, PART) if suffix in stored.suffixes else None
            if shape is not None and tuple(tensor.shape) != shape:
                return False
            if suffix in stored.optional_suffixes:
                stored.check_optional(suffix, tensor, PART)
        layout = stored.unpack({suffix: tensors[suffix] for suffix in stored.suffixes}, PART)
        assert tuple(layout.dequantize().shape) == (OUT, IN)
    except ModelError:
        return False
    return True


def test_fuzzed_weight_is_read_or_rejected() -> None:
    chance = random.Random(7)
    weight = torch.randn(OUT, IN, generator=torch.Generator().manual_seed(3))
    found = []
    for name, (write, quant) in cases().items():
        stored = quant().choose_format("model.layers.0.mlp.up_proj")
        assert stored is not None
        tensors = write(weight)[0]
        renamed = {
            stored.other_names.get(suffix, suffix): tensor for suffix, tensor in tensors.items()
        }
        assert read(stored, renamed), name
        found.append((name, stored, renamed))
    refused = 0
    for index in range(NUM_DAMAGES):
        name, stored, tensors = found[index % len(found)]
        suffix = chance.choice(sorted(tensors))
        try:
            refused += not read(stored, {**tensors, suffix: damaged(tensors[suffix], chance)})
        except Exception as error:
            raise AssertionError(f"{name}, {suffix}, damage {index}: {error!r}") from error
    assert refused > NUM_DAMAGES // 3
