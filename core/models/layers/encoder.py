"""The encoder of a model that has one: layers of the common kind whose tokens see all of their
input.

It runs in the step in which a request enters the batch, over the inputs of all that enter; nothing
of it is cached but the keys and values that the decoder's layers make of what it gives.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Final

import msgspec
import torch
from torch import nn
from torch.nn.functional import conv1d

from core.model_spec.encoder import EncoderInput
from core.models.layers.activation import make_activation
from core.models.layers.block import Block
from core.models.layers.embedding import Embedding
from core.models.layers.norm import optional_norm
from core.models.layers.sinusoids import expect_sinusoids
from core.models.layers.stream import Step, join
from core.models.layers.weights import empty_parameter, place

if TYPE_CHECKING:
    from core.contracts import BuildContext
    from core.model_spec.decoder import DecoderSpec, FramesSpec
    from core.models.layers.weights import WeightMap
    from core.step import NewRow


POSITIONS_AT_ONCE: Final = 8192
"""Inputs of more positions than this are encoded one after the other, so that a full batch needs no
more memory.
"""


class Frames(nn.Module):
    """Two convolutions over three frames each; the second leaves out every other one."""

    def __init__(
        self, spec: FramesSpec, hidden: int, context: BuildContext, weights: WeightMap, prefix: str
    ) -> None:
        super().__init__()
        self._size = spec.size
        self._dtype = context.dtype
        self._device = context.device
        self._activate = make_activation(
            spec.activation, gated=False, prefix="", context=context, weights=weights
        )
        for index, width in ((1, spec.size), (2, hidden)):
            shapes: dict[str, tuple[int, ...]] = {"weight": (hidden, width, 3), "bias": (hidden,)}
            for name, shape in shapes.items():
                parameter = empty_parameter(*shape, dtype=context.dtype)
                self.register_parameter(f"{name}{index}", parameter)
                weights.add(f"{prefix.format(index)}.{name}", shape, partial(place, parameter))

    def forward(self, inputs: Sequence[EncoderInput]) -> torch.Tensor:
        """Return [positions, hidden]."""
        arrays = [
            torch.frombuffer(bytearray(one.features), dtype=torch.float32).view(one.shape)
            for one in inputs
        ]
        x = torch.stack(arrays).to(
            self._device, self._dtype, non_blocking=True
        )  # [n, size, frames]
        x = self._activate(
            conv1d(x, self.get_parameter("weight1"), self.get_parameter("bias1"), padding=1)
        )
        x = self._activate(
            conv1d(x, self.get_parameter("weight2"), self.get_parameter("bias2"), 2, padding=1)
        )
        return x.transpose(1, 2).flatten(0, 1)


def _portions(lengths: Sequence[int]) -> Iterator[slice]:
    """Yield which inputs to encode together."""
    start = held = 0
    for index, length in enumerate(lengths):
        if held and held + length > POSITIONS_AT_ONCE:
            yield slice(start, index)
            start = index
            held = 0
        held += length
    yield slice(start, len(lengths))


def inputs_of(entering: Sequence[NewRow]) -> list[EncoderInput]:
    """Return what the encoder is to read for requests that enter."""
    return [msgspec.msgpack.decode(new.features["encoder"], type=EncoderInput) for new in entering]


class Encoder(nn.Module):
    """Turns inputs into what cross attention reads."""

    def __init__(
        self,
        decoder: DecoderSpec,
        embed: Embedding | None,
        context: BuildContext,
        weights: WeightMap,
    ) -> None:
        """`embed` is the decoder's, which serves here too where the encoder's names have no other."""
        super().__init__()
        spec = decoder.encoder
        hidden = decoder.hidden_size
        assert spec is not None, "there is no encoder"
        names = spec.names
        self.spec = spec
        self._device = context.device
        self.max_len = spec.max_len or decoder.max_positions
        self.frames: Frames | None = None
        self.embed: Embedding | None = None
        if spec.frames is not None:
            self.frames = Frames(spec.frames, hidden, context, weights, names.frames)
        elif names.embed == decoder.names.embed:
            self.embed = embed
        else:
            self.embed = Embedding(spec.vocab_size, hidden, context, weights, names.embed)
        rows = spec.learned_positions or (self.max_len if spec.sinusoidal_positions else 0)
        table = (
            empty_parameter(rows + spec.position_offset, hidden, dtype=context.dtype)
            if rows
            else None
        )
        self.positions: nn.Parameter | None
        self.register_parameter("positions", table)
        if table is not None and spec.learned_positions:
            weights.add(
                f"{names.positions}.weight", table.shape, lambda tensor: place(table, tensor)
            )
        elif table is not None:
            expect_sinusoids(table.data, spec.sinusoidal_positions, names.positions, weights)
        self.embed_norm = optional_norm(spec.embed_norm, hidden, context, weights, names.embed_norm)
        own = replace(decoder, names=names, encoder=None, layer_inputs=None)
        self.layers = nn.ModuleList(
            Block(layer, own, names.layer.format(index), None, context, weights)
            for index, layer in enumerate(spec.layers)
        )
        self.norm = optional_norm(spec.norm, hidden, context, weights, names.final_norm)

    def forward(self, inputs: Sequence[EncoderInput]) -> torch.Tensor:
        """Return [sum of lengths, hidden], input after input."""
        made = [self._encode(inputs[part]) for part in _portions([one.length for one in inputs])]
        return made[0] if len(made) == 1 else torch.cat(made)

    def _encode(self, inputs: Sequence[EncoderInput]) -> torch.Tensor:
        lengths = [one.length for one in inputs]
        positions = torch.cat([torch.arange(length) for length in lengths]).to(
            self._device, non_blocking=True
        )
        x = self._enter(inputs)
        if self.positions is not None:
            x = x + self.positions[positions + self.spec.position_offset]
        if self.embed_norm is not None:
            x = self.embed_norm(x)
        residual: torch.Tensor | None = None
        step = Step(positions, [lengths])
        for block in self.layers:
            x, residual = block(x, residual, step)
        return join(self.norm, x, residual)[0]

    def _enter(self, inputs: Sequence[EncoderInput]) -> torch.Tensor:
        if self.frames is not None:
            return self.frames(inputs)  # type: ignore[no-any-return]
        assert self.embed is not None, "it reads frames or tokens"
        ids = torch.tensor([token for one in inputs for token in one.token_ids])
        x: torch.Tensor = self.embed(ids.to(self._device, non_blocking=True))
        return x if self.spec.embed_scale == 1.0 else x * self.spec.embed_scale
