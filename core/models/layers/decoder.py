"""The one decoder: builds any model a `DecoderSpec` describes.

Knows facts, no architecture by name.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec
import torch
from torch import nn

from core.errors import ModelError
from core.model_spec.decoder import DecoderSpec
from core.model_spec.encoder import EncoderFacts
from core.model_spec.kv import LayerKV
from core.model_spec.rope import RopeSpec
from core.models.layers.block import Block
from core.models.layers.cross_attention import CrossAttention
from core.models.layers.embedding import Embedding, Head
from core.models.layers.encoder import Encoder, inputs_of
from core.models.layers.layer_input import LayerInputs
from core.models.layers.linear import Linear, Slice, Tokens
from core.models.layers.norm import Norm, optional_norm
from core.models.layers.pooling import PoolingHead
from core.models.layers.rotary import Rotary
from core.models.layers.sinusoids import expect_sinusoids
from core.models.layers.stream import Step, join
from core.models.layers.weights import WeightMap, empty_parameter, place

if TYPE_CHECKING:
    from core.contracts import BuildContext, ForwardBatch
    from core.models.layers.block import Attending
    from core.models.layers.recurrent import Recurrent
    from core.models.layers.state import LayerCache


class Decoder(nn.Module):
    """A decoder model, weights not yet loaded; satisfies `core.contracts.Model`."""

    def __init__(self, spec: DecoderSpec, context: BuildContext) -> None:
        super().__init__()
        names = spec.names
        self._own = context.pipeline.layers(len(spec.layers))
        self.weights = WeightMap(
            rename=names.rename, ignored=[*names.ignored, *self._of_others(spec, context)]
        )
        """What it expects; a model of several parts takes it into its own map
        (`WeightMap.add_map`).
        """
        self.weights.at_end(self._complete)
        self.spec = spec
        self.vocab_size = spec.vocab_size
        self._pipeline = context.pipeline
        self._dtype = context.dtype
        self._guided = spec.is_guided
        self._taps: tuple[int, ...] = ()
        with torch.device(context.device):
            self._build_first(spec, context)
            self.encoder = (
                Encoder(spec, self.embed, context, self.weights)
                if spec.encoder is not None
                else None
            )
            self._build_layers(spec, context)
            self._build_last(spec, context)
        self._caching: list[Attending | Recurrent | CrossAttention] = []
        self.kv_layers: Sequence[LayerKV] = self._list_caching()

    def _list_caching(self) -> list[LayerKV]:
        """Number what keeps something, and tell every layer which of the batch's plans are its own."""
        found: list[LayerKV] = []
        for index, block in zip(self._own, self._blocks, strict=True):
            name = self.spec.names.of_layer(index)
            if block.source is not None:
                block.attention_plan = block.source.attention_plan
            elif block.attention is not None and block.attention.kv_spec is not None:
                block.attention_plan = len(found)
                self._caching.append(block.attention)
                found.append(LayerKV(name, block.attention.kv_spec))
            if block.recurrent is not None:
                block.recurrent_plan = len(found)
                self._caching.append(block.recurrent)
                found.append(LayerKV(name, block.recurrent.kv_spec))
            if block.cross is not None:
                block.cross_plan = len(found)
                self._caching.append(block.cross)
                found.append(LayerKV(f"{name}.cross", block.cross.kv_spec))
        return found

    def _of_others(self, spec: DecoderSpec, context: BuildContext) -> list[str]:
        """Return patterns of the tensors that belong to other stages, or to nobody because the head
        is tied.
        """
        names = spec.names
        stage = context.pipeline
        others = [
            f"{names.of_layer(index)}.*"
            for index in range(len(spec.layers))
            if index not in self._own
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
            behind = spec.pooling.head if spec.pooling is not None else ()
            others += [
                f"{name}.*" for dense in behind for name in (dense.name, dense.norm_name) if name
            ]
        elif not spec.has_head:
            others += [f"{names.embed_out}.*", f"{names.head}.*"]
        elif spec.tied_head is True:
            others.append(f"{names.head}.weight")
        return others

    def _build_first(self, spec: DecoderSpec, context: BuildContext) -> None:
        """Make what turns tokens into vectors, on the first stage."""
        names = spec.names
        weights = self.weights
        hidden = spec.hidden_size
        self.embed: Embedding | None = None
        self.layer_inputs: LayerInputs | None = None
        self.positions: nn.Parameter | None
        self.register_parameter("positions", None)
        self.token_types: nn.Parameter | None
        self.register_parameter("token_types", None)
        if not context.pipeline.is_first:
            return
        width = spec.embed_size or hidden
        ties = bool(spec.tied_head and spec.has_head and context.pipeline.is_last)
        self.embed = Embedding(spec.vocab_size, width, context, weights, names.embed, is_head=ties)
        self.embed_in = self._resize(
            width, hidden, names.embed_in, context, bias=spec.embed_in_last
        )
        own = width if spec.embed_in_last else hidden
        self.embed_norm = optional_norm(spec.embed_norm, own, context, weights, names.embed_norm)
        self._embedding = context.ops.embedding
        if spec.layer_inputs is not None:
            self.layer_inputs = LayerInputs(
                spec.layer_inputs, len(spec.layers), hidden, names, context, weights
            )
        # Rounded like a stored weight would be: in bfloat16 the factor is one of its numbers.
        self._embed_scale = float(torch.tensor(spec.embed_scale, dtype=context.dtype, device="cpu"))
        if spec.learned_positions:
            table = empty_parameter(
                spec.learned_positions + spec.position_offset, own, dtype=context.dtype
            )
            self.register_parameter("positions", table)
            weights.add(
                f"{names.positions}.weight", table.shape, lambda tensor: place(table, tensor)
            )
        elif spec.sinusoidal_positions:
            table = empty_parameter(
                spec.max_positions + spec.position_offset, own, dtype=context.dtype
            )
            self.register_parameter("positions", table)
            expect_sinusoids(table.data, spec.sinusoidal_positions, names.positions, weights)
        if spec.token_types:
            types = empty_parameter(spec.token_types, own, dtype=context.dtype)
            self.register_parameter("token_types", types)
            weights.add(
                f"{names.token_types}.weight", types.shape, lambda tensor: place(types, tensor)
            )

    def _resize(
        self, width: int, to: int, name: str, context: BuildContext, *, bias: bool = False
    ) -> Linear | None:
        """Make the product between the widths of embedding and layers, where they differ."""
        return (
            None
            if width == to
            else Linear(context, self.weights, name, width, [Slice("out", to)], bias=bias)
        )

    def _build_layers(self, spec: DecoderSpec, context: BuildContext) -> None:
        """Make the layers of this stage."""
        rotaries: dict[RopeSpec, Rotary] = {}
        blocks = []
        stored: dict[int, Block] = {}
        for index in self._own:
            at = spec.stored_layers[index] if spec.stored_layers else index
            if at in stored:
                blocks.append(stored[at])
                continue
            layer = spec.layers[index]
            rope = None if layer.attention is None else layer.attention.rope
            if rope is not None and rope not in rotaries:
                rotaries[rope] = Rotary(rope, spec.max_positions, context)
            rotary = None if rope is None else rotaries[rope]
            stored[at] = Block(layer, spec, spec.names.of_layer(at), rotary, context, self.weights)
            blocks.append(stored[at])
        self.layers = nn.ModuleList(blocks)
        self._blocks = tuple(blocks)
        for index, block in zip(self._own, blocks, strict=True):
            shares = spec.layers[index].shares
            if shares is not None:
                block.attend_to(blocks[shares - self._own.start])
        self._rotaries = tuple(rotaries.values())

    def _build_last(self, spec: DecoderSpec, context: BuildContext) -> None:
        """Make what turns vectors into logits, on the last stage."""
        names = spec.names
        weights = self.weights
        hidden = spec.hidden_size
        self.norm: Norm | None = None
        self.head: Head | None = None
        if not context.pipeline.is_last:
            return
        width = spec.embed_size or hidden
        self.pooling_head: PoolingHead | None = None
        if spec.pooling is not None:
            self.pooling_head = PoolingHead(
                spec.pooling, spec.vocab_size if spec.pooling.logits else hidden, weights
            )
        self.norm = optional_norm(spec.norm, hidden, context, weights, names.final_norm)
        if not spec.has_head:
            return
        self.embed_out = self._resize(hidden, width, names.embed_out, context)
        tied_to: Embedding | None = None
        if spec.tied_head:  # without the first stage's embedding, it is loaded here as well
            tied_to = self.embed or Embedding(
                spec.vocab_size, width, context, weights, names.embed, is_head=True
            )
        self.head = Head(
            spec.vocab_size,
            width,
            context,
            weights,
            names.head,
            tied_to=tied_to,
            unless_stored=spec.tied_head == "unless stored",
            bias=spec.head_bias,
            row=names.final_bias,
        )
        self._softcap = context.ops.softcap

    def weight_shapes(self) -> Mapping[str, tuple[int, ...]]:
        """Return name and shape of every checkpoint tensor the model expects."""
        return self.weights.shapes()

    def load_weights(self, tensors: Iterable[tuple[str, torch.Tensor]]) -> None:
        """Fill every parameter.

        Raises `ModelError` naming missing, unexpected and misshapen tensors.
        """
        self.weights.load(tensors)

    def update_weights(self, tensors: Iterable[tuple[str, torch.Tensor]]) -> None:
        """Fill some parameters again, in place.

        Raises `ModelError`, nothing changed, for unknown and misshapen ones.
        """
        self.weights.update(tensors)

    @property
    def times_filled(self) -> int:
        """How often parameters were filled: what was cached before the last time is of other
        weights.
        """
        return self.weights.times_filled

    def _complete(self) -> None:
        """Compute what no checkpoint holds, once its tensors are in."""
        for rotary in self._rotaries:
            rotary.finish()

    def bind_kv(self, caches: Sequence[LayerCache]) -> None:
        """Take the cache of each caching layer, in the order of `kv_layers`."""
        for part, cache in zip(self._caching, caches, strict=True):
            part.cache = cache
        for block in self._blocks:
            if block.attention is not None and block.attention.source is not None:
                block.attention.cache = block.attention.source.cache

    def tap(self, layers: Sequence[int]) -> None:
        """Have the stream before these layers, in ascending order, returned behind the hidden
        states, side by side.

        As many as there are layers stands for what is behind the last one. Raises `ModelError` for
        others.
        """
        wrong = [layer for layer in layers if not 0 <= layer <= len(self.layers)]
        if wrong or list(layers) != sorted(set(layers)):
            raise ModelError(
                f"hidden states of layers {list(layers)} are wanted; the model has "
                f"{len(self.layers)} layers."
            )
        self._taps = tuple(layers)

    def forward(self, batch: ForwardBatch) -> torch.Tensor:
        """Return hidden states [num_tokens, hidden]: after the last norm or, on earlier stages, as
        they were sent on.

        Whoever has called `tap` finds the stream before layers behind them, along the second axis.
        """
        x = self._enter(batch)
        step = Step(batch.positions, [*batch.attention, batch.counts])
        if self.encoder is not None and batch.entering:
            step.made = self.encoder(inputs_of(batch.entering))
        if self._guided:
            step.embedded = x.clone()  # norms that add overwrite the stream
        residual: torch.Tensor | None = None
        own = None if self.layer_inputs is None else self.layer_inputs(batch.input_ids, x).unbind(1)
        tapped: list[torch.Tensor] = []
        for index, block in enumerate(self._blocks):
            if index in self._taps:
                tapped.append(x.clone() if residual is None else x + residual)
            step.own = None if own is None else own[index]
            x, residual = block(x, residual, step)
        out, stream = join(self.norm, x, residual)
        if not self._pipeline.is_last:
            self._pipeline.send(stream)
        if len(self._blocks) in self._taps:
            tapped.append(stream)
        return torch.cat((out, *tapped), dim=1) if tapped else out

    def embedded(self, token_ids: torch.Tensor) -> torch.Tensor:
        """Return the embedding of tokens [n], as wide as the first layer reads it, on the first
        stage.
        """
        assert self.embed is not None, "only the first stage has an embedding"
        x: torch.Tensor = self.embed(token_ids)
        if self._embed_scale != 1.0:
            x = x * self._embed_scale
        return self.embed_in(x) if self.embed_in is not None and not self.spec.embed_in_last else x

    def _enter(self, batch: ForwardBatch) -> torch.Tensor:
        """Return what the first of our layers reads."""
        if self.embed is None:
            shape = (batch.input_ids.shape[0], self.spec.hidden_size)
            return self._pipeline.receive(
                torch.empty(shape, dtype=self._dtype, device=batch.input_ids.device)
            )
        x: torch.Tensor = (
            self.embed(batch.input_ids) if batch.embeddings is None else batch.embeddings
        )
        if self._embed_scale != 1.0:
            x = x * self._embed_scale
        if self.embed_in is not None and not self.spec.embed_in_last:
            x = self.embed_in(x)
        if self.positions is not None:
            x = x + self._embedding(batch.positions, self.positions[self.spec.position_offset :])
        if self.token_types is not None:
            types = (
                batch.token_types if len(self.token_types) > 1 else None
            )  # a tokenizer may know more than the model
            x = x + (
                self.token_types[0] if types is None else self._embedding(types, self.token_types)
            )
        if self.embed_norm is not None:
            x = self.embed_norm(x)
        return self.embed_in(x) if self.embed_in is not None and self.spec.embed_in_last else x

    def pooled(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return float32 [n, numbers]: what the layers behind the pooler make of pooled hidden
        states.
        """
        assert self.pooling_head is not None, "only the last stage of a pooling model has one"
        return self.pooling_head(self.logits(hidden) if self.head is not None else hidden)  # type: ignore[no-any-return]

    @property
    def facts(self) -> dict[str, bytes]:
        """What features at the edge are told of the model: what its encoder takes, where it has
        one.
        """
        spec = self.spec.encoder
        if spec is None or self.encoder is None:
            return {}
        most = self.encoder.max_len
        frames = spec.frames
        stated = EncoderFacts(
            max_len=most,
            vocab_size=0 if frames else spec.vocab_size or self.vocab_size,
            shape=(frames.size, 2 * most) if frames else (0, 0),
            start_tokens=spec.start_tokens,
        )
        return {"encoder": msgspec.msgpack.encode(stated)}

    def logits(self, hidden: torch.Tensor, tokens: Tokens | None = None) -> torch.Tensor:
        """Return logits [n, vocab] in float32; `tokens` as `GeneratingModel.logits` has them."""
        assert self.head is not None, "only the last stage has a head"
        if self._taps:
            hidden = hidden[:, : self.spec.hidden_size]
        if self.embed_out is not None:
            hidden = self.embed_out(hidden, tokens)
        logits: torch.Tensor = self.head(hidden, tokens)
        if self.spec.logit_scale != 1.0:
            logits = logits * self.spec.logit_scale
        if self.spec.logit_softcap is not None:
            logits = self._softcap(logits, self.spec.logit_softcap)
        return logits
