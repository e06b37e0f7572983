"""The process of the input processor: decodes, hashes and processes items, one prompt at a time."""

from __future__ import annotations

import hashlib
import json
import os
import sys
import traceback
from collections import OrderedDict
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

import msgspec

from builtin_plugins.executors.api import Start
from builtin_plugins.features.multimodal.client_tensors import ClientTensor
from builtin_plugins.features.multimodal.item_embeddings import key_of
from builtin_plugins.features.multimodal.messages import (
    EMBEDDINGS_MODE,
    Begun,
    OpenStore,
    Prepare,
    Prepared,
    PreparedItem,
    RawItem,
    Ready,
)
from builtin_plugins.features.multimodal.store import StoreFull, TensorStore
from builtin_plugins.input_processors.api import EMBEDDINGS, ITEM, InputProcessor, ProcessedItem
from core.api import EngineConfig, EngineError, InvalidRequest, ModelError
from core.api.serving import RenderedText

if TYPE_CHECKING:
    import torch

    from builtin_plugins.executors.api import ParentChannel
    from core.api import Registry

KIND: Final = "input_processors"
DEFAULT: Final = "transformers"
"""Input processor of architectures without one of their own."""
NICE: Final = 5
"""Priority below the engine's: images must not delay running answers."""
MAX_FILES: Final = 8192
"""Encoded files with a known content hash."""
SWEEP_S: Final = 60.0
"""Interval in which an idle process releases what no request holds any more."""


def run(start: Start, registry: Registry, channel: ParentChannel) -> None:
    """Answer each `Prepare` of the parent."""
    channel.expect(OpenStore | Prepare)
    opened: OpenStore = channel.receive()
    os.nice(NICE)
    store = TensorStore(opened.folder, opened.cache_bytes)
    store.open()
    channel.stage("loading the input processor")
    worker = ProcessorWorker(start.config, load_processor(start.config, registry), store)
    channel.send(Ready())
    while True:
        request: Prepare | None = channel.receive(SWEEP_S)
        if request is None:
            store.sweep()
            continue
        channel.send(Begun(request.number))
        channel.send(worker.answer(request))


def load_processor(config: EngineConfig, registry: Registry) -> InputProcessor:
    """Return the input processor of the served model. Raises `ModelError`."""
    source = registry.find_model(config.model.model, config)
    if source is None:
        raise ModelError(f"--model: got {config.model.model!r}; no plugin knows it any more.")
    names = {registered.entry.name for registered in registry.entries(KIND)}
    name = source.architecture if source.architecture in names else DEFAULT
    processor: InputProcessor = registry.make(registry.choose(KIND, name), source, config)[0]
    return processor


class ProcessorWorker:
    """Processes the items of prompts; the store remembers those of earlier prompts."""

    def __init__(self, config: EngineConfig, processor: InputProcessor, store: TensorStore) -> None:
        self._config = config
        self._processor = processor
        self._store = store
        self._files: OrderedDict[bytes, bytes] = OrderedDict()
        """Content hashes of encoded files, by a hash of the file; the latest last."""

    def answer(self, request: Prepare) -> Prepared:
        """Return a prompt expanded; its items are held in the store."""
        self._store.sweep()
        try:
            return self._prepare(request)
        except InvalidRequest as error:
            return Prepared(request.number, error_field=error.field, error=_reason(error))
        except EngineError as error:
            return Prepared(request.number, error_field="multi_modal_data", error=str(error))
        except StoreFull as error:
            text = f"{error}; send the request again later."
            return Prepared(
                request.number, error_field="multi_modal_data", error=text, is_full=True
            )
        except Exception as error:  # noqa: BLE001 - fails this request only
            traceback.print_exc(file=sys.stderr)
            text = f"cannot be processed ({type(error).__name__}); send another image."
            return Prepared(request.number, error_field="multi_modal_data", error=text)

    def _prepare(self, request: Prepare) -> Prepared:
        found: list[tuple[bytes, ProcessedItem]] = []
        known: list[bool] = []
        for raw in request.items:
            found.append(self._process(raw, request))
            known.append(not found[-1][1].tensors)
            self._store.hold(request.holder, [found[-1][0]])
        items = [item for _, item in found]
        listed = [
            PreparedItem(item.modality, content_hash, item.num_tokens, was_known)
            for (content_hash, item), was_known in zip(found, known, strict=True)
        ]
        if request.text is None:
            ids = self._processor.expand_ids(request.token_ids, items)
            return Prepared(request.number, listed, token_ids=ids)
        prompt = self._rendered(request.text, request.control_spans)
        expanded = self._processor.expand(prompt, items)
        if not isinstance(expanded, RenderedText):
            return Prepared(request.number, listed, token_ids=expanded)
        spans = list(expanded.control_spans)
        is_complete = self._processor.completes_prompts
        return Prepared(request.number, listed, str(expanded), spans, is_complete=is_complete)

    def _rendered(self, text: str, spans: list[tuple[int, int]] | None) -> RenderedText:
        """Return a prompt with its placeholders as control spans, also of a plain text."""
        if spans is not None:
            return RenderedText(text, spans)
        found = []
        for placeholder in self._processor.placeholders.values():
            at = text.find(placeholder)
            while at >= 0:
                found.append((at, at + len(placeholder)))
                at = text.find(placeholder, at + len(placeholder))
        return RenderedText(text, sorted(found))

    def _process(self, raw: RawItem, request: Prepare) -> tuple[bytes, ProcessedItem]:
        """Return an item's content hash, and the item processed."""
        settings = json.dumps([self._processor.identity, request.kwargs], sort_keys=True)
        named = None
        if raw.uuid is not None:
            named = _digest("uuid", settings, request.tenant, raw.uuid)
            if (known := self._known(raw.modality, named)) is not None:
                return named, known
        if not raw.data:
            raise InvalidRequest(
                raw.field, f"got uuid {raw.uuid!r:.80} of no known content; send the content, too."
            )
        if raw.mode == EMBEDDINGS_MODE:
            return self._process_embeddings(raw, named or _digest("embeds", settings, raw.data))
        file_hash = b"" if raw.mode else _digest("file", settings, raw.data)
        content_hash = self._files.get(file_hash, b"") if named is None else b""
        if content_hash and (known := self._known(raw.modality, content_hash)) is not None:
            self._files.move_to_end(file_hash)
            return content_hash, known
        image = self._image(raw)
        content_hash = named or _digest(
            "content", settings, f"{image.mode} {image.size}", image.tobytes()
        )
        if file_hash and named is None:
            self._remember(file_hash, content_hash)
        if (known := self._known(raw.modality, content_hash)) is not None:
            return content_hash, known
        item = self._processed(raw, image, request.kwargs)
        self._write(content_hash, item)
        return content_hash, item

    def _processed(self, raw: RawItem, image: Any, kwargs: dict[str, Any]) -> ProcessedItem:
        """Return an image processed. Raises `InvalidRequest` for the item's field."""
        try:
            return self._processor.process(raw.modality, image, kwargs)
        except InvalidRequest as error:
            raise (error.renamed(raw.field) if error.field == ITEM else error) from error
        except EngineError:
            raise
        except Exception as error:  # libraries raise anything for odd sizes, or without memory
            traceback.print_exc(file=sys.stderr)
            raise InvalidRequest(
                raw.field,
                f"got {image.width} x {image.height} pixels, which cannot be processed "
                f"({type(error).__name__}); expected another image. Replace it.",
            ) from error

    def _remember(self, file_hash: bytes, content_hash: bytes) -> None:
        """Note the content hash of an encoded file, which need not be decoded again."""
        self._files[file_hash] = content_hash
        if len(self._files) > MAX_FILES:
            self._files.popitem(last=False)

    def _process_embeddings(self, raw: RawItem, content_hash: bytes) -> tuple[bytes, ProcessedItem]:
        """Return an item of embeddings that the client has computed."""
        if (known := self._known(raw.modality, content_hash)) is not None:
            return content_hash, known
        try:
            item = self._processor.embedded(raw.modality, read_embeddings(raw))
        except InvalidRequest as error:
            raise (error.renamed(raw.field) if error.field == ITEM else error) from error
        self._write(content_hash, item)
        return content_hash, item

    def _write(self, content_hash: bytes, item: ProcessedItem) -> None:
        facts = {"text": item.text, "num_tokens": str(item.num_tokens)}
        self._store.write(content_hash, item.tensors, facts)

    def _known(self, modality: str, content_hash: bytes) -> ProcessedItem | None:
        facts: Mapping[str, str] | None = self._store.facts(content_hash)
        if facts is None:
            return None
        return ProcessedItem(modality, facts["text"], int(facts["num_tokens"]), {})

    def _image(self, raw: RawItem) -> Any:
        """Return an item as RGB image. Raises `InvalidRequest`."""
        from PIL import Image

        from builtin_plugins.features.multimodal.media.decode import as_rgb, decode_image
        from builtin_plugins.features.multimodal.media.settings import MediaSettings

        limits = MediaSettings.from_options(self._config.options).limits
        if not raw.mode:
            return decode_image(raw.data, raw.field, limits)
        width, height = raw.size
        if width * height > limits.max_pixels:
            raise InvalidRequest(
                raw.field,
                f"got {width} x {height} pixels; expected at most {limits.max_pixels}. Resize it.",
            )
        image = Image.frombytes(raw.mode, raw.size, raw.data)
        return as_rgb(image, limits.background)


def read_embeddings(raw: RawItem) -> dict[str, torch.Tensor]:
    """Return the tensors of an item of embeddings. Raises `InvalidRequest`."""
    import torch  # lazy: processors without it need none

    found = {}
    sent = msgspec.msgpack.decode(raw.data, type=dict[str, ClientTensor])
    for name, tensor in sent.items():
        data = bytearray(tensor.data)
        read = torch.frombuffer(data, dtype=getattr(torch, tensor.dtype)).reshape(tensor.shape)
        if read.is_floating_point() and not read.isfinite().all():
            raise InvalidRequest(raw.field, f"got {name} with numbers that are not finite.")
        found[EMBEDDINGS if name == key_of(raw.modality) else name] = read
    return found


def _digest(*parts: str | bytes) -> bytes:
    """Return SHA-256 of the parts and their lengths."""
    digest = hashlib.sha256()
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        digest.update(f"{len(data)}:".encode())
        digest.update(data)
    return digest.digest()


def _reason(error: InvalidRequest) -> str:
    return str(error).removeprefix(f"{error.field}: ")
