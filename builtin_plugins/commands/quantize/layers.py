"""Which tensors of a checkpoint are weights of linear layers: the model is built without memory,
and told their names.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Final

import torch
from torch import nn

from core.api import BuildContext, DecoderSpec, EngineConfig, ModelError, ModelSource, Part
from core.models.layers.decoder import Decoder
from core.models.layers.experts import PlainExperts
from core.models.layers.linear import PlainLinear
from core.models.layers.loading import read_model
from core.models.layers.parallel import ParallelGroup, Pipeline
from core.models.ops.table import reference_ops

Named = Iterable[tuple[str, torch.Tensor]]

TABLE_POSITIONS: Final = 1024
"""Rotary tables are made for no more positions: nothing is computed with them."""


@dataclass(slots=True)
class Found:
    """The quantization method of a model that is only asked what it is made of."""

    name: str = "none"
    linear_weights: dict[str, str] = field(default_factory=dict)
    """By a tensor's name in the checkpoint: the prefix by which the model's layer knows it."""
    others: list[str] = field(default_factory=list)
    """Modules of other weights with two axes, embeddings left out."""
    reading: str = ""

    def linear(self, prefix: str) -> PlainLinear:
        """Return a method that writes down what comes."""
        del prefix
        return _Linear(self)

    def experts(self, prefix: str) -> PlainExperts:
        """Return the same for experts."""
        del prefix
        return _Experts(self)

    def take(self, layer: Any, part: Part) -> None:
        """Write down the tensor that is being read, if it is one weight [out, in]."""
        if not part.transposed and not part.num_experts:
            self.linear_weights[self.reading] = next(
                name for name, own in layer.parts.items() if own is part
            )


class _Linear(PlainLinear):
    def __init__(self, found: Found) -> None:
        self._found = found

    def onto(self, plain: Any) -> None:
        """Say that plain weights are made here, so that modules which rearrange a weight ask as
        well.
        """

    def load(self, layer: nn.Module, suffix: str, tensor: torch.Tensor, part: Part | slice) -> None:
        """Write the tensor's name down."""
        if isinstance(part, Part):  # rows are what older methods get
            self._found.take(layer, part)


class _Experts(PlainExperts):
    def __init__(self, found: Found) -> None:
        self._found = found

    def load(self, layer: nn.Module, suffix: str, tensor: torch.Tensor, part: Part) -> None:
        """Write the tensor's name down."""
        self._found.take(layer, part)


def linear_weights(
    config: EngineConfig, source: ModelSource, registry: Any, headers: Named
) -> Found:
    """Return which of the tensors are weights of linear layers.

    Raises `ModelError` for a model that is not built so.
    """
    spec, _ = read_model(config, source, registry)
    if not isinstance(spec, DecoderSpec):
        raise ModelError(
            f"{source.architecture} is served by modules that take no quantized weights; `engine "
            "models` lists those that do."
        )
    found = Found()
    attention: Any = None
    context = BuildContext(
        dtype=torch.bfloat16,
        device="meta",
        attention=attention,
        quant=found,
        ops=reference_ops(),
        group=ParallelGroup(1),
        pipeline=Pipeline(1, 0),
    )
    model = Decoder(replace(spec, max_positions=TABLE_POSITIONS), context)
    shapes: dict[str, int] = {}

    def told() -> Iterator[tuple[str, torch.Tensor]]:
        for name, tensor in headers:
            found.reading, shapes[name] = name, tensor.ndim
            yield name, tensor

    model.load_weights(told())
    plain = (
        name for name, axes in shapes.items() if axes == 2 and name not in found.linear_weights
    )
    stems = (name.removesuffix(".weight") for name in plain if name.endswith(".weight"))
    found.others = [stem for stem in stems if "embed" not in stem.rpartition(".")[2]]
    return found
