"""The encoder of an encoder-decoder model: bidirectional layers over the inputs of new requests.

It runs in the step in which requests enter the batch. Only the cross-attention keys and values of
its output are cached.
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
from core.models.layers.block import Block
from core.models.layers.embedding import Embedding
from core.models.layers.mlp import make_activation
from core.models.layers.norm import optional_norm
from core.models.layers.positions import expect_sinusoids
from core.models.layers.residual import ForwardContext, add_residual
from core.models.layers.weights import assign_weight, empty_parameter

if TYPE_CHECKING:
    from core.contracts.attention import ForwardBatch
    from core.contracts.models import BuildContext
    from core.model_spec.decoder import DecoderSpec
    from core.model_spec.encoder import FramesSpec
    from core.models.layers.weights import WeightMap
    from core.step import NewRow


POSITIONS_AT_ONCE: Final = 8192
"""Positions encoded in one pass; bounds the activation memory of a full batch."""


class Frames(nn.Module):
    """Two convolutions of kernel size 3; the second has stride 2."""

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
                weights.add(
                    f"{prefix.format(index)}.{name}", shape, partial(assign_weight, parameter)
                )

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
    """Yield slices of inputs to encode in one pass."""
    start = num_positions = 0
    for index, length in enumerate(lengths):
        if num_positions and num_positions + length > POSITIONS_AT_ONCE:
            yield slice(start, index)
            start = index
            num_positions = 0
        num_positions += length
    yield slice(start, len(lengths))


def inputs_of(entering: Sequence[NewRow]) -> list[EncoderInput]:
    """Return the encoder inputs of new requests."""
    return [msgspec.msgpack.decode(new.features["encoder"], type=EncoderInput) for new in entering]


class Encoder(nn.Module):
    """Computes the encoder states that cross attention reads."""

    def __init__(
        self,
        decoder: DecoderSpec,
        embed: Embedding | None,
        context: BuildContext,
        weights: WeightMap,
    ) -> None:
        """`embed`: the decoder's embedding, used unless the encoder's names have another."""
        super().__init__()
        spec = decoder.encoder
        hidden = decoder.hidden_size
        assert spec is not None, "there is no encoder"
        names = spec.names
        self.spec = spec
        self._device = context.device
        self.max_len = spec.max_len or decoder.max_positions
        tower = decoder.tower
        self._placeholder = -1 if tower is None else tower.facts.placeholders["image"]
        """Token of an input that has an item's embedding."""
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
                f"{names.positions}.weight",
                table.shape,
                lambda tensor: assign_weight(table, tensor),
            )
        elif table is not None:
            expect_sinusoids(table.data, spec.sinusoidal_positions, names.positions, weights)
        self.embed_norm = optional_norm(spec.embed_norm, hidden, context, weights, names.embed_norm)
        own = replace(decoder, names=names, encoder=None, per_layer_inputs=None)
        self.layers = nn.ModuleList(
            Block(layer, own, names.layer.format(index), None, context, weights)
            for index, layer in enumerate(spec.layers)
        )
        self.norm = optional_norm(spec.norm, hidden, context, weights, names.final_norm)

    def forward(
        self, inputs: Sequence[EncoderInput], embeddings: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Return [sum of lengths, hidden], input after input.

        `embeddings`: those of the inputs' placeholder tokens, in order.
        """
        states = []
        for part in _portions([one.length for one in inputs]):
            own = inputs[part]
            if embeddings is None:
                states.append(self._encode(own, None))
                continue
            count = sum(one.token_ids.count(self._placeholder) for one in own)
            states.append(self._encode(own, embeddings[:count]))
            embeddings = embeddings[count:]
        return states[0] if len(states) == 1 else torch.cat(states)

    def _encode(
        self, inputs: Sequence[EncoderInput], embeddings: torch.Tensor | None
    ) -> torch.Tensor:
        lengths = [one.length for one in inputs]
        positions = torch.cat([torch.arange(length) for length in lengths]).to(
            self._device, non_blocking=True
        )
        x = self._enter(inputs, embeddings)
        if self.positions is not None:
            x = x + self.positions[positions + self.spec.position_offset]
        if self.embed_norm is not None:
            x = self.embed_norm(x)
        residual: torch.Tensor | None = None
        step = ForwardContext(positions, [lengths])
        for block in self.layers:
            x, residual = block(x, residual, step)
        return add_residual(self.norm, x, residual)[0]

    def _enter(
        self, inputs: Sequence[EncoderInput], embeddings: torch.Tensor | None
    ) -> torch.Tensor:
        if self.frames is not None:
            return self.frames(inputs)  # type: ignore[no-any-return]
        assert self.embed is not None, "it reads frames or tokens"
        ids = torch.tensor([token for one in inputs for token in one.token_ids])
        x: torch.Tensor = self.embed(ids.to(self._device, non_blocking=True))
        if self.spec.embed_scale != 1.0:
            x = x * self.spec.embed_scale
        if embeddings is None:
            return x
        at = (ids == self._placeholder).nonzero().flatten()
        return x.index_copy(0, at.to(self._device, non_blocking=True), embeddings.to(x.dtype))


def encoder_states(encoder: Encoder | None, batch: ForwardBatch) -> torch.Tensor | None:
    """Return the encoder states of new requests: of the encoder, or given by a feature."""
    given = None if batch.item_states is None else batch.item_states.entering
    if encoder is None:
        return given
    states: torch.Tensor | None = None
    if batch.entering:
        states = encoder(inputs_of(batch.entering), given)
    return states
