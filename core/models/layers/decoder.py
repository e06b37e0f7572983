"""The decoder module, built from a `DecoderSpec`. Knows no architecture by name."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec
import torch
from torch import nn

from core.errors import ModelError
from core.model_spec.compressed import GatedStreamsSpec
from core.model_spec.decoder import DecoderSpec
from core.model_spec.encoder import EncoderFacts, EncoderSpec
from core.model_spec.kv import LayerKV
from core.model_spec.rope import RopeSpec
from core.model_spec.tower import MULTIMODAL, PROMPT_EMBEDS
from core.models.layers.block import Block
from core.models.layers.block_residual import StreamReader
from core.models.layers.cross_attention import CrossAttention
from core.models.layers.embedding import (
    Embedding,
    Head,
    PerLayerInputs,
    expect_table,
)
from core.models.layers.encoder import Encoder, encoder_states
from core.models.layers.hyper_connections import GatedMean, StreamSum
from core.models.layers.linear import Linear, Slice, Tokens
from core.models.layers.norm import Norm, optional_norm
from core.models.layers.pooling import Dense, PoolingHead
from core.models.layers.positions import Rotary, position_table
from core.models.layers.residual import ForwardContext, add_residual
from core.models.layers.stage_weights import ignored_patterns
from core.models.layers.weights import WeightMap

if TYPE_CHECKING:
    from core.contracts.attention import ForwardBatch
    from core.contracts.models import BuildContext
    from core.models.layers.block import Attending
    from core.models.layers.indexer import Indexer
    from core.models.layers.ngrams import Ngrams
    from core.models.layers.recurrent import Recurrent
    from core.models.layers.state import LayerCache


class Decoder(nn.Module):
    """A decoder model without loaded weights; implements `core.contracts.Model`."""

    def __init__(self, spec: DecoderSpec, context: BuildContext) -> None:
        super().__init__()
        names = spec.names
        self._own = context.pipeline.layers(len(spec.layers))
        self.weights = WeightMap(
            rename=names.rename,
            ignored=[*names.ignored, *ignored_patterns(spec, self._own, context)],
            base=names.base,
        )
        """Expected tensors; a multi-part model adds this map to its own (`WeightMap.add_map`)."""
        self.weights.after_load(self._complete)
        self.spec = spec
        self.vocab_size = spec.vocab_size
        self._pipeline = context.pipeline
        self._dtype = context.dtype
        self._layers_read_embedding = spec.layers_read_embedding
        self._captured_layers: tuple[int, ...] = ()
        with torch.device(context.device):
            self._build_first(spec, context)
            self.encoder: Encoder | None = None
            if spec.encoder is not None:
                self.encoder = Encoder(spec, self.embed, context, self.weights)
            self._build_layers(spec, context)
            self._build_last(spec, context)
        self.tower: Any = None
        """The tower (`Tower`) of a model that reads images."""
        if spec.tower is not None and context.pipeline.is_first:
            self.tower = spec.tower.build(context)
            self.weights.set_remainder(self.tower.load_weights)
        prefixes = [names.layer_prefix(index) for index in self._own]
        caching = _list_caching(self._blocks, prefixes)
        self._caching = [part for part, _ in caching]
        self.kv_layers: Sequence[LayerKV] = [layer for _, layer in caching]

    def _build_first(self, spec: DecoderSpec, context: BuildContext) -> None:
        """Build embedding and positions, on the first stage."""
        names = spec.names
        weights = self.weights
        hidden = spec.hidden_size
        self.embed: Embedding | None = None
        self.per_layer_inputs: PerLayerInputs | None = None
        self.positions: nn.Parameter | None
        self.register_parameter("positions", None)
        self.token_types: nn.Parameter | None
        self.register_parameter("token_types", None)
        if not context.pipeline.is_first:
            return
        width = spec.embed_size or hidden
        ties = bool(spec.tied_head and spec.has_head and context.pipeline.is_last)
        self.embed = Embedding(spec.vocab_size, width, context, weights, names.embed, is_head=ties)
        if spec.tied_head and spec.has_head and not context.pipeline.is_last:
            _accept_head_as(f"{names.embed}.weight", (spec.vocab_size, width), names.head, weights)
        self.embed_in = _resize(
            width, hidden, names.embed_in, context, weights, bias=spec.embed_in_last
        )
        own = width if spec.embed_in_last else hidden
        self.embed_norm = optional_norm(spec.embed_norm, own, context, weights, names.embed_norm)
        self._embedding = context.ops.embedding
        if spec.per_layer_inputs is not None:
            self.per_layer_inputs = PerLayerInputs(
                spec.per_layer_inputs, len(spec.layers), hidden, names, context, weights
            )
        # Rounded to the model dtype, like a stored weight.
        self._embed_scale = float(torch.tensor(spec.embed_scale, dtype=context.dtype, device="cpu"))
        self.register_parameter("positions", position_table(spec, own, context, weights))
        if spec.token_types:
            size = (spec.token_types, own)
            types = expect_table(size, names.token_types, context, weights)
            self.register_parameter("token_types", types)

    def _build_layers(self, spec: DecoderSpec, context: BuildContext) -> None:
        """Build the layers of this stage."""
        blocks, self._rotaries = _make_blocks(spec, self._own, context, self.weights)
        self.layers = nn.ModuleList(blocks)
        self._blocks = tuple(blocks)

    def _build_last(self, spec: DecoderSpec, context: BuildContext) -> None:
        """Build final norm, head and pooling head, on the last stage."""
        names = spec.names
        weights = self.weights
        hidden = spec.hidden_size
        self.norm: Norm | None = None
        self.stream_sum: GatedMean | StreamSum | StreamReader | None = None
        self.head: Head | None = None
        if not context.pipeline.is_last:
            return
        width = hidden if spec.head_transform else spec.embed_size or hidden
        self.pooling_head: PoolingHead | None = None
        if spec.pooling is not None:
            self.pooling_head = PoolingHead(
                spec.pooling, spec.vocab_size if spec.pooling.logits else hidden, weights
            )
        self.stream_sum = _make_stream_sum(spec, context, weights)
        self.norm = optional_norm(spec.norm, hidden, context, weights, names.final_norm)
        _normalize_loops(self._blocks, spec.loop_length, self.norm)
        if not spec.has_head:
            return
        self.embed_out = _resize(hidden, width, names.embed_out, context, weights)
        self.head = _make_head(spec, width, self.embed, context, weights)
        self._softcap = context.ops.softcap

    def weight_shapes(self) -> Mapping[str, tuple[int, ...]]:
        """Return name and shape of every checkpoint tensor the model expects."""
        of_tower = {} if self.tower is None else self.tower.weight_shapes()
        return {**self.weights.shapes(), **of_tower}

    def load_weights(self, tensors: Iterable[tuple[str, torch.Tensor]]) -> None:
        """Load every parameter. Raises `ModelError` with missing, unexpected and misshapen
        tensors.
        """
        self.weights.load(tensors)

    def update_weights(self, tensors: Iterable[tuple[str, torch.Tensor]]) -> None:
        """Reload some parameters in place.

        Raises `ModelError` without any change for unknown and misshapen tensors.
        """
        self.weights.update(tensors)

    @property
    def weights_version(self) -> int:
        """Number of weight loads; KV cached before the last one is stale."""
        return self.weights.weights_version

    def _complete(self) -> None:
        """Compute the rotary tables after a load."""
        for rotary in self._rotaries:
            rotary.finish()

    def bind_kv(self, caches: Sequence[LayerCache]) -> None:
        """Set the cache of each caching layer, in the order of `kv_layers`."""
        for part, cache in zip(self._caching, caches, strict=True):
            part.cache = cache
        for block in self._blocks:
            if block.attention is not None and block.attention.source is not None:
                block.attention.cache = block.attention.source.cache

    def capture_hidden_states(self, layers: Sequence[int]) -> None:
        """Append the hidden states before these layers, in ascending order, to the output of
        `forward`.

        The number of layers means the output of the last one. Raises `ModelError` for other
        indices.
        """
        _check_captured(layers, self.spec, len(self.layers))
        self._captured_layers = tuple(layers)

    def forward(self, batch: ForwardBatch) -> torch.Tensor:
        """Return hidden states [num_tokens, hidden], after the final norm on the last stage.

        After `capture_hidden_states`, the captured states follow along the second axis.
        """
        return self.send(self.forward_stage(batch, self.receive(batch)))

    def receive(self, batch: ForwardBatch) -> torch.Tensor | None:
        """Return what the previous stage sends; None on the first stage."""
        if self.embed is not None:
            return None
        like = batch.input_ids
        size = self.spec.stream_width
        return self._pipeline.receive(like.new_empty(len(like), size, dtype=self._dtype))

    def send(self, hidden: torch.Tensor) -> torch.Tensor:
        """Send the output of this stage to the next one, and return it."""
        if not self._pipeline.is_last:
            size = self.spec.stream_width  # without captured hidden states
            self._pipeline.send(hidden[:, :size] if self._captured_layers else hidden)
        return hidden

    def forward_stage(self, batch: ForwardBatch, received: torch.Tensor | None) -> torch.Tensor:
        """Return the output of this stage's layers; the part of a step that platforms record."""
        for rotary in self._rotaries:
            rotary.begin_step(batch.rope_positions)
        x = self._embed(batch) if received is None else received
        plans = [*batch.attention, batch.counts]
        step = ForwardContext(batch.positions, plans, token_ids=batch.input_ids)
        step.item_states = batch.item_states
        step.encoder_states = encoder_states(self.encoder, batch)
        if self._layers_read_embedding:
            step.embedded = x.clone()  # add_rms_norm overwrites the residual stream
        residual: torch.Tensor | None = None
        own = None if self.per_layer_inputs is None else _per_layer_inputs(self, batch, x)
        captured: list[torch.Tensor] = []
        for index, block in enumerate(self._blocks):
            if index in self._captured_layers:
                captured.append(x.clone() if residual is None else x + residual)
            step.per_layer_input = None if own is None else own[index]
            x, residual = block(x, residual, step)
            if self._own[index] < len(batch.deepstack):
                x = x + batch.deepstack[self._own[index]]
        if self.stream_sum is not None:
            x = self.stream_sum(x if residual is None else x + residual, *step.blocks)
            residual = None
        out, stream = add_residual(self.norm, x, residual)
        if len(self._blocks) in self._captured_layers:
            captured.append(stream)
        return torch.cat((out, *captured), dim=1) if captured else out

    def embedded(self, token_ids: torch.Tensor) -> torch.Tensor:
        """Return scaled token embeddings [n, hidden] for the first layer, on the first stage."""
        assert self.embed is not None, "only the first stage has an embedding"
        x: torch.Tensor = self.embed(token_ids)
        if self._embed_scale != 1.0:
            x = x * self._embed_scale
        return self.embed_in(x) if self.embed_in is not None and not self.spec.embed_in_last else x

    def _embed(self, batch: ForwardBatch) -> torch.Tensor:
        """Return the input of the first layer, on the first stage."""
        x = self.embedded(batch.input_ids) if batch.embeddings is None else batch.embeddings
        if self.embed_norm is not None and self.spec.embed_norm_first:
            x = self.embed_norm(x)
        if self.positions is not None:
            x = x + self._embedding(batch.positions, self.positions[self.spec.position_offset :])
        if self.token_types is not None:
            # The tokenizer may have more types than the model.
            types = batch.token_types if len(self.token_types) > 1 else None
            x = x + (
                self.token_types[0] if types is None else self._embedding(types, self.token_types)
            )
        if self.embed_norm is not None and not self.spec.embed_norm_first:
            x = self.embed_norm(x)
        x = self.embed_in(x) if self.embed_in is not None and self.spec.embed_in_last else x
        hyper = self.spec.hyper_connections
        return x if hyper is None else x.repeat(1, hyper.streams)

    def pooled(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return float32 [n, numbers]: the pooling head's output for pooled hidden states."""
        assert self.pooling_head is not None, "only the last stage of a pooling model has one"
        read = hidden if self.head is None else self.logits(hidden)
        result: torch.Tensor = self.pooling_head(read)
        return result

    @property
    def facts(self) -> dict[str, bytes]:
        """Facts for admission: the encoder's limits, the tower's, the width of embeddings."""
        return _facts_of(self)

    def logits(self, hidden: torch.Tensor, tokens: Tokens | None = None) -> torch.Tensor:
        """Return logits [n, vocab] in float32; `tokens` as in `GeneratingModel.logits`."""
        assert self.head is not None, "only the last stage has a head"
        if self._captured_layers:
            hidden = hidden[:, : self.spec.hidden_size]
        if self.embed_out is not None:
            hidden = self.embed_out(hidden, tokens)
        logits: torch.Tensor = self.head(hidden, tokens)
        if self.spec.logit_scale != 1.0:
            logits = logits * self.spec.logit_scale
        if self.spec.logit_softcap is not None:
            logits = self._softcap(logits, self.spec.logit_softcap)
        if self.spec.num_padding_tokens:
            logits = logits[:, : -self.spec.num_padding_tokens]
        further = self.spec.num_prompt_tokens + self.spec.num_padding_tokens
        return _with_missing_tokens(logits, further)


def _check_captured(layers: Sequence[int], spec: DecoderSpec, count: int) -> None:
    """Raise `ModelError` if the hidden states before these layers cannot be captured."""
    if spec.hyper_connections is not None or spec.reads_blocks:
        raise ModelError("hidden states: this model has several residual streams, not one.")
    wrong = [layer for layer in layers if not 0 <= layer <= count]
    if wrong or list(layers) != sorted(set(layers)):
        raise ModelError(
            f"hidden states of layers: got {list(layers)}; the model has {count} layers."
        )


def _with_missing_tokens(logits: torch.Tensor, count: int) -> torch.Tensor:
    """Return logits with -inf for `count` further tokens, which are never sampled."""
    return torch.nn.functional.pad(logits, (0, count), value=float("-inf")) if count else logits


def _facts_of(decoder: Decoder) -> dict[str, bytes]:
    spec = decoder.spec.encoder
    facts = {}
    if spec is not None and decoder.encoder is not None:
        facts["encoder"] = _encoder_facts(spec, decoder.encoder.max_len, decoder.vocab_size)
    if decoder.tower is not None:
        facts[MULTIMODAL] = msgspec.msgpack.encode(decoder.tower.facts)
    if decoder.encoder is None and decoder.pooling_head is None:
        facts[PROMPT_EMBEDS] = msgspec.msgpack.encode(decoder.spec.hidden_size)
    return facts


def _per_layer_inputs(
    decoder: Decoder, batch: ForwardBatch, x: torch.Tensor
) -> tuple[torch.Tensor, ...]:
    """Return the per-layer embeddings of a step; placeholders of items have those of padding."""
    spec = decoder.spec.per_layer_inputs
    assert decoder.per_layer_inputs is not None
    assert spec is not None
    ids = batch.input_ids
    if batch.embeddings is not None and decoder.tower is not None:
        for placeholder in decoder.tower.facts.placeholders.values():
            ids = torch.where(ids == placeholder, spec.padding_token, ids)
    inputs: torch.Tensor = decoder.per_layer_inputs(ids, x)
    return inputs.unbind(1)


def _list_caching(
    blocks: Sequence[Block], prefixes: Sequence[str]
) -> list[tuple[Attending | Indexer | Ngrams | Recurrent | CrossAttention, LayerKV]]:
    """Return the caching parts, and give each layer the index of its plan."""
    found: list[tuple[Attending | Indexer | Ngrams | Recurrent | CrossAttention, LayerKV]] = []
    for name, block in zip(prefixes, blocks, strict=True):
        if block.source is not None:
            block.attention_plan = block.source.attention_plan
        elif block.attention is not None and block.attention.kv_spec is not None:
            block.attention_plan = len(found)
            found.append((block.attention, LayerKV(name, block.attention.kv_spec)))
        if block.attention is not None:
            for part in ("indexer", "compressed", "recent"):
                further = getattr(block.attention, part, None)
                if further is not None:
                    block.index_plan = len(found)
                    found.append((further, LayerKV(f"{name}.{part}", further.kv_spec)))
        if block.ngrams is not None:
            block.ngram_plan = len(found)
            found.append((block.ngrams, LayerKV(f"{name}.ngrams", block.ngrams.kv_spec)))
        if block.recurrent is not None:
            block.recurrent_plan = len(found)
            found.append((block.recurrent, LayerKV(name, block.recurrent.kv_spec)))
        if block.cross is not None:
            block.cross_plan = len(found)
            found.append((block.cross, LayerKV(f"{name}.cross", block.cross.kv_spec)))
    return found


def _resize(
    width: int,
    to: int,
    name: str,
    context: BuildContext,
    weights: WeightMap,
    *,
    bias: bool = False,
) -> Linear | None:
    """Return the projection between embedding width and hidden size, if they differ."""
    if width == to:
        return None
    return Linear(context, weights, name, width, [Slice("out", to)], bias=bias)


def _accept_head_as(embed: str, shape: tuple[int, int], head: str, weights: WeightMap) -> None:
    """Accept the tied head of another stage as the embedding, if the checkpoint has only that."""
    stored: list[torch.Tensor] = []
    weights.add_alternative(f"{head}.weight", shape, stored.append, of=())
    weights.add_fallback(embed, lambda: stored[-1] if stored else None)
    weights.after_load(stored.clear)


def _make_blocks(
    spec: DecoderSpec, own: range, context: BuildContext, weights: WeightMap
) -> tuple[list[Block], tuple[Rotary, ...]]:
    """Return the layers of this stage and their rotary embeddings."""
    rotaries: dict[RopeSpec, Rotary] = {}
    blocks = []
    stored: dict[int, Block] = {}
    for index in own:
        at = spec.stored_layers[index] if spec.stored_layers else index
        if at in stored:
            blocks.append(stored[at].again())
            continue
        layer = spec.layers[index]
        rope = None if layer.attention is None else layer.attention.rope
        if rope is not None and rope not in rotaries:
            rotaries[rope] = Rotary(rope, spec.max_positions, context)
            if rope.learned:
                rotaries[rope].expect_factors(spec.names.rope_factors, weights)
        rotary = None if rope is None else rotaries[rope]
        prefix = spec.names.layer_prefix(at)
        stored[at] = Block(layer, spec, prefix, rotary, context, weights)
        blocks.append(stored[at])
    for index, block in zip(own, blocks, strict=True):
        shares = spec.layers[index].kv_source_layer
        if shares is not None:
            block.attend_to(blocks[shares - own.start])
        selects = spec.layers[index].index_source_layer
        if selects is not None and spec.selects_tokens(spec.layers[index]):
            block.select_as(blocks[selects - own.start])
    return blocks, tuple(rotaries.values())


def _make_stream_sum(
    spec: DecoderSpec, context: BuildContext, weights: WeightMap
) -> GatedMean | StreamSum | StreamReader | None:
    """Return the sum of several residual streams; None for one."""
    if spec.reads_blocks:
        return StreamReader(spec.hidden_size, spec.names.final_streams, weights)
    hyper = spec.hyper_connections
    prefix = spec.names.hyper_head
    if isinstance(hyper, GatedStreamsSpec):
        return GatedMean(hyper, spec.hidden_size, prefix, context, weights)
    return None if hyper is None else StreamSum(hyper, spec.hidden_size, prefix, context, weights)


def _normalize_loops(blocks: Sequence[Block], length: int, norm: Norm | None) -> None:
    """Let every loop but the first begin with the final norm."""
    for block in blocks[length::length] if length else ():
        object.__setattr__(block, "entry_norm", norm)  # not a submodule


def _make_head(
    spec: DecoderSpec,
    width: int,
    embed: Embedding | None,
    context: BuildContext,
    weights: WeightMap,
) -> Head:
    """Return the LM head; a tied one uses the embedding of the first stage."""
    names = spec.names
    tied_to: Embedding | None = None
    if spec.tied_head:  # the last stage loads its own copy of the embedding
        size = spec.embed_size or width
        tied_to = embed or Embedding(
            spec.vocab_size, size, context, weights, names.embed, is_head=True
        )
    transform = None
    if spec.head_transform is not None:
        transform = Dense(spec.head_transform, width, weights, context.ops.linear)
        width = spec.head_transform.width
    head = Head(
        spec.vocab_size - spec.num_prompt_tokens,
        width,
        context,
        weights,
        names.head,
        tied_to=tied_to,
        bias=spec.head_bias,
        row=names.final_bias,
        transform=transform,
    )
    if spec.head_normalized:
        axis = 1 if spec.head_normalized == "rows" else 0
        weights.change(f"{names.head}.weight", partial(torch.nn.functional.normalize, dim=axis))
    return head


def _encoder_facts(spec: EncoderSpec, max_len: int, vocab_size: int) -> bytes:
    """Return the encoder's limits as msgpack `EncoderFacts`."""
    frames = spec.frames
    facts = EncoderFacts(
        max_len=max_len,
        vocab_size=0 if frames else spec.vocab_size or vocab_size,
        shape=(frames.size, 2 * max_len) if frames else (0, 0),
        start_tokens=spec.start_tokens,
    )
    return msgspec.msgpack.encode(facts)
