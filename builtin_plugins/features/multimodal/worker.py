"""Worker half: encodes the items of a step, and puts their embeddings into its batch."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import msgspec
import torch

from builtin_plugins.features.multimodal.encoder_memory import encoder_bytes
from builtin_plugins.features.multimodal.encoding_in_parts import EncodingInParts, layers_of
from builtin_plugins.features.multimodal.item_rows import ItemRow, Segment
from builtin_plugins.features.multimodal.item_states import CrossStates, encoder_embeddings
from builtin_plugins.features.multimodal.messages import (
    NAME,
    AheadItem,
    RequestItem,
    RequestItems,
    StepItems,
)
from builtin_plugins.features.multimodal.settings import Settings
from builtin_plugins.features.multimodal.store import TensorStore
from builtin_plugins.input_processors.api import EMBEDDINGS, ProcessedItem
from builtin_plugins.metric_sinks.api import MemoryOwners
from core.api import EngineConfig, ModelError
from core.api.execution import LoadedParts, NewRow, WorkerParts
from core.api.models import ForwardBatch
from core.model_spec.attention_params import LookAheadSpan
from core.model_spec.kv import RecurrentState, SlidingWindow
from core.model_spec.tower import EncodedItem, RopePositions

log = logging.getLogger(__name__)

LargestItem = Callable[[EngineConfig], ProcessedItem]
"""Returns the largest item, in tokens, of an allowed image. Raises `ModelError`."""
_decode_items = msgspec.msgpack.Decoder(RequestItems).decode
_decode_step = msgspec.msgpack.Decoder(StepItems).decode


class MultimodalWorker:
    """The encoder cache of one rank, and the inputs of steps with items."""

    name = NAME

    def __init__(self, settings: Settings, memory: MemoryOwners, largest_item: LargestItem) -> None:
        self._settings = settings
        self._memory = memory
        self._largest_item = largest_item
        self._reserved: torch.Tensor | None = None
        """Device memory of the encoder, until the KV cache has taken the rest."""
        self._rows: dict[int, ItemRow] = {}
        self._cache: dict[bytes, EncodedItem] = {}
        self._in_parts: EncodingInParts | None = None
        self._states: CrossStates | None = None

    def loaded(self, parts: LoadedParts) -> list[Any]:
        """Find the tower. Raises `ModelError` for an attention backend that cannot serve it."""
        self._model: Any = parts.model
        self._tower: Any = getattr(parts.model, "tower", None)
        self._backend: Any = parts.context.attention
        self._device = parts.context.device
        looks_ahead = self._tower is not None and self._tower.facts.look_ahead
        if looks_ahead and not hasattr(self._backend, "look_ahead"):
            name = parts.config.attention.attention_backend
            raise ModelError(
                f"--attention-backend: got {name}, which has no attention ahead in a span; "
                "expected one with `look_ahead` for this model. Remove the flag."
            )
        if self._device != "cpu" and parts.config.cache.kv_cache_memory_bytes is None:
            size = self.host_bytes(parts.model, parts.config)
            self._reserved = torch.empty(size, dtype=torch.uint8, device=self._device)
        return []

    def host_bytes(self, model: Any, config: EngineConfig) -> int:
        """Return the size of a full encoder cache, and of encoding the largest item."""
        tower = getattr(model, "tower", None)
        if tower is None or not self._settings.max_images:
            return 0
        cached = self._cache_bytes(model, config)
        try:
            item = self._largest_item(config)
            encoding = encoder_bytes(tower, item.modality, item.tensors)
        except Exception as error:  # noqa: BLE001 - of a plugin's tower or input processor
            log.warning("the memory of encoding an image is not known: %s", error)
            return cached
        return max(cached, item.num_tokens * self._token_bytes(model, config)) + encoding

    def _cache_bytes(self, model: Any, config: EngineConfig) -> int:
        """Return the size of a full encoder cache."""
        return self._settings.cache_tokens * self._token_bytes(model, config)

    def _token_bytes(self, model: Any, config: EngineConfig) -> int:
        """Return the size of an embedding."""
        dtype: torch.dtype = getattr(torch, config.model.dtype)
        return int((model.tower.facts.embedding_width or model.spec.hidden_size) * dtype.itemsize)

    def attach(self, parts: WorkerParts) -> None:
        """Set the batch."""
        self._reserved = None
        self._batch = parts.batch
        if self._tower is not None:
            limit = self._cache_bytes(parts.model, parts.config)
            self._memory.add("encoder_cache", self._num_bytes, lambda: limit)
            if self._tower.facts.cross_positions:
                self._states = CrossStates(parts, self._backend)

    def before_forward(self, batch: ForwardBatch, payload: bytes | None) -> None:
        """Encode what the step needs; set its embeddings, positions and attention."""
        step = StepItems() if payload is None else _decode_step(payload)
        for key in step.drop:
            self._cache.pop(key, None)
            if self._in_parts is not None and self._in_parts.key == key:
                self._stop_encoding()
        segments = self._segments(batch)
        if self._states is not None:
            self._states.fill(batch, _by_row(segments), self._encoded_of)
        elif self._tower.facts.in_encoder:
            batch.item_states = encoder_embeddings(batch, _by_row(segments), self._encoded_of)
        elif segments and payload is not None:
            self._set_embeddings(batch, segments)
        if self._tower.facts.look_ahead:
            self._set_look_ahead(batch, segments)
        for ahead in step.ahead:
            self._encode_ahead(ahead)
        if any(segment.row.rope is not None for segment in segments):
            set_positions(batch, segments)

    def close(self) -> None:
        """End the thread of an item in parts."""
        self._stop_encoding()

    def call(self, name: str, data: bytes) -> bytes | None:
        """Answer like the scheduler half."""
        return b"" if name == "counters" else None

    # --- rows

    def _segments(self, batch: ForwardBatch) -> list[Segment]:
        """Return the tokens of rows with items."""
        segments = []
        token = 0
        for row, start, count in zip(batch.rows, batch.starts, batch.counts, strict=True):
            found = self._item_row(row)
            if found is not None:
                segments.append(Segment(found, start, count, token))
            token += count
        return segments

    def _item_row(self, row: int) -> ItemRow | None:
        """Return a row's items; None without any."""
        requests = self._batch.requests
        new = requests[row] if row < len(requests) else None
        if new is None or NAME not in new.features:
            self._rows.pop(row, None)
            return None
        known = self._rows.get(row)
        if known is None or known.new is not new:
            items = _decode_items(new.features[NAME])
            known = self._rows[row] = ItemRow(new, items, self._rope_positions(new, items))
        return known

    def _rope_positions(self, new: NewRow, items: RequestItems) -> RopePositions | None:
        store = TensorStore(items.folder)
        inputs = (  # read for towers with M-RoPE only
            (item.modality, store.read(items.holder, item.content_hash)) for item in items.items
        )
        found: RopePositions | None = self._tower.rope_positions(
            new.token_ids[: new.prompt_len], inputs
        )
        return found

    # --- inputs of a step

    def _set_embeddings(self, batch: ForwardBatch, segments: Sequence[Segment]) -> None:
        """Replace the embeddings of placeholder tokens by those of their items."""
        embeddings: torch.Tensor | None = None
        deepstack: list[torch.Tensor] = []
        for segment, item, tokens, rows in _parts(segments):
            items = segment.row.items
            encoded = self._encoded(items.folder, items.holder, item)
            if embeddings is None:
                given = batch.embeddings
                embeddings = (
                    self._model.embedded(batch.input_ids).clone() if given is None else given
                )
            embeddings[tokens] = encoded.embeddings[rows].to(embeddings.dtype)
            if encoded.deepstack and not deepstack:
                deepstack = [torch.zeros_like(embeddings) for _ in encoded.deepstack]
            for level, own in zip(deepstack, encoded.deepstack, strict=bool(encoded.deepstack)):
                level[tokens] = own[rows].to(level.dtype)
        batch.embeddings = embeddings
        batch.deepstack = deepstack

    def _encoded_of(self, items: RequestItems, item: RequestItem) -> EncodedItem:
        return self._encoded(items.folder, items.holder, item)

    def _encoded(self, folder: str, holder: str, item: RequestItem) -> EncodedItem:
        """Return an item's embeddings, from the cache or the tower."""
        key = item.content_hash
        known = self._cache.get(key)
        if known is None:
            if self._in_parts is not None and self._in_parts.key == key:
                known = self._in_parts.finish()
                self._in_parts = None
            else:
                known = self._read_and_encode(folder, holder, item)
            self._cache[key] = known
            if len(known.embeddings) != item.num_tokens:
                raise RuntimeError(
                    f"the tower returned {len(known.embeddings)} embeddings for an item with "
                    f"{item.num_tokens} placeholder tokens"
                )
        return known

    def _encode_ahead(self, ahead: AheadItem) -> None:
        """Encode an item, or a part of one."""
        key = ahead.item.content_hash
        if ahead.is_last:
            self._encoded(ahead.folder, ahead.holder, ahead.item)
        elif self._device == "cpu" and key not in self._cache:
            if self._in_parts is None or self._in_parts.key != key or ahead.part == 1:
                self._stop_encoding()
                encode = partial(self._read_and_encode, ahead.folder, ahead.holder, ahead.item)
                self._in_parts = EncodingInParts(key, encode, layers_of(self._tower))
            self._in_parts.advance(ahead.part, ahead.num_parts)

    def _stop_encoding(self) -> None:
        if self._in_parts is not None:
            self._in_parts.cancel()
            self._in_parts = None

    def _read_and_encode(self, folder: str, holder: str, item: RequestItem) -> EncodedItem:
        tensors = TensorStore(folder).read(holder, item.content_hash)
        inputs = {name: tensor.to(self._device) for name, tensor in tensors.items()}
        return self._encode(item.modality, inputs)

    def _encode(self, modality: str, inputs: dict[str, torch.Tensor]) -> EncodedItem:
        """Return an item encoded by the tower, or by the client."""
        given = inputs.get(EMBEDDINGS)
        if given is None:
            encoded: EncodedItem = self._tower.encode(modality, inputs)
            return encoded
        first, *deepstack = torch.split(given, self._model.spec.hidden_size, dim=-1)
        return EncodedItem(first, tuple(deepstack))

    def _set_look_ahead(self, batch: ForwardBatch, segments: Sequence[Segment]) -> None:
        """Let the tokens of a run see each other."""
        spans = []
        for segment in segments:
            for start, end in segment.row.items.look_ahead:
                first = max(start, segment.start)
                if first < min(end, segment.start + segment.count):
                    offset = segment.token - segment.start
                    later = segment.row.items.later(end)
                    spans.append(LookAheadSpan(first + offset, end + offset, end, later))
        if not spans:
            return
        windows_only = self._tower.facts.look_ahead == "windowed_items"
        changed: dict[int, Any] = {}
        plans = list(batch.attention)
        for index, layer in enumerate(self._model.kv_layers):
            windowed = isinstance(layer.spec, SlidingWindow)
            if windowed or not (windows_only or isinstance(layer.spec, RecurrentState)):
                plan = plans[index]
                if id(plan) not in changed:
                    changed[id(plan)] = self._backend.look_ahead(plan, spans)
                plans[index] = changed[id(plan)]
        batch.attention = plans

    def _num_bytes(self) -> int:
        return sum(encoded.num_bytes for encoded in list(self._cache.values()))


def _by_row(segments: Sequence[Segment]) -> dict[int, ItemRow]:
    return {segment.row.new.row: segment.row for segment in segments}


def _parts(
    segments: Sequence[Segment],
) -> list[tuple[Segment, RequestItem, slice, slice]]:
    """Return each item's part of a step: its tokens, and the rows of its embeddings."""
    found = []
    for segment in segments:
        for item in segment.row.items.items:
            for run in item.runs:
                first = max(run.start, segment.start)
                end = min(run.start + run.length, segment.start + segment.count)
                if first < end:
                    at = segment.token + first - segment.start
                    row = run.row + first - run.start
                    tokens = slice(at, at + end - first)
                    found.append((segment, item, tokens, slice(row, row + end - first)))
    return found


def set_positions(batch: ForwardBatch, segments: Sequence[Segment]) -> None:
    """Set the multi-dimensional positions of a step.

    Generated tokens have one position each, so such steps stay recorded: only their positions are
    shifted. Positions beyond the rotary table need the step's own angles.
    """
    decodes = all(segment.start >= segment.row.new.prompt_len for segment in segments)
    shifts = [0 if s.row.rope is None else s.row.rope.shift for s in segments]
    if decodes and max(shifts) <= 0:
        shift = torch.zeros(len(batch.positions), dtype=torch.int64)
        for segment, by in zip(segments, shifts, strict=True):
            shift[segment.token : segment.token + segment.count] = by
        batch.positions = batch.positions + shift.to(batch.positions.device, non_blocking=True)
        return
    axes = max(len(s.row.rope.positions) for s in segments if s.row.rope is not None)
    positions = batch.positions.expand(axes, -1).clone()
    for segment, by in zip(segments, shifts, strict=True):
        rope = segment.row.rope
        if rope is None:
            continue
        known = rope.positions.shape[1]
        inside = max(0, min(segment.count, known - segment.start))
        at = segment.token
        prompt = rope.positions[:, segment.start : segment.start + inside]
        positions[:, at : at + inside] = prompt.to(positions.device)
        positions[:, at + inside : at + segment.count] += by
    batch.rope_positions = positions
