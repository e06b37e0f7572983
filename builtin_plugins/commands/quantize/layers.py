"""Finds the weights of linear layers in a checkpoint, by building the model without memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import nn

from core.api import EngineConfig, ModelError
from core.api.models import BuildContext, ModelSource
from core.model_spec.decoder import DecoderSpec
from core.model_spec.parallel import ParallelGroup, Pipeline
from core.model_spec.weight_shard import WeightShard
from core.models.layers.decoder import Decoder
from core.models.layers.experts import PlainExperts
from core.models.layers.linear import PlainLinear
from core.models.layers.loading import read_model
from core.models.ops.table import reference_ops

if TYPE_CHECKING:
    from core.api.plugins import LoadedRegistry

Named = Iterable[tuple[str, torch.Tensor]]

TABLE_POSITIONS: Final = 1024
"""Limit of rotary tables, which are not used here."""


@dataclass(slots=True)
class Found:
    """A quantization method that records the model's linear weights."""

    name: str = "none"
    linear_weights: dict[str, str] = field(default_factory=dict)
    """Model prefix by checkpoint tensor name."""
    others: list[str] = field(default_factory=list)
    """Modules of other two-dimensional weights, without embeddings."""
    reading: str = ""

    def linear(self, prefix: str) -> PlainLinear:
        """Return a method that records what it loads."""
        del prefix
        return _Linear(self)

    def experts(self, prefix: str) -> PlainExperts:
        """Return the same for experts."""
        del prefix
        return _Experts(self)

    def take(self, layer: Any, part: WeightShard) -> None:
        """Record the tensor being read if it is one weight [out, in]."""
        if not part.transposed and not part.num_experts:
            self.linear_weights[self.reading] = next(
                name for name, own in layer.parts.items() if own is part
            )


class _Linear(PlainLinear):
    def __init__(self, found: Found) -> None:
        self._found = found

    def onto(self, plain: Any) -> None:
        """Report a plain weight, so that modules which rearrange weights call this method too."""

    def load(
        self, layer: nn.Module, suffix: str, tensor: torch.Tensor, part: WeightShard | slice
    ) -> None:
        """Write the tensor's name down."""
        if isinstance(part, WeightShard):  # rows are what older methods get
            self._found.take(layer, part)


class _Experts(PlainExperts):
    def __init__(self, found: Found) -> None:
        self._found = found

    def load(self, layer: nn.Module, suffix: str, tensor: torch.Tensor, part: WeightShard) -> None:
        """Write the tensor's name down."""
        self._found.take(layer, part)


def linear_weights(
    config: EngineConfig, source: ModelSource, registry: LoadedRegistry, headers: Named
) -> Found:
    """Return the linear weights among the tensors.

    Raises `ModelError` for a model that cannot be built this way.
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

    def recorded_tensors() -> Iterator[tuple[str, torch.Tensor]]:
        for name, tensor in headers:
            found.reading = name
            shapes[name] = tensor.ndim
            yield name, tensor

    model.load_weights(recorded_tensors())
    plain = (
        name for name, axes in shapes.items() if axes == 2 and name not in found.linear_weights
    )
    stems = (name.removesuffix(".weight") for name in plain if name.endswith(".weight"))
    found.others = [stem for stem in stems if "embed" not in stem.rpartition(".")[2]]
    return found
