"""The worker half: reads adapters beside the steps, keeps them in host memory, and puts them into
slots.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import torch

from builtin_plugins.features.lora.active import Active, Handler
from builtin_plugins.features.lora.building import Builder, Built
from builtin_plugins.features.lora.deltas import Delta
from builtin_plugins.features.lora.messages import News, Told, Wanted
from builtin_plugins.features.lora.packing import kernel_for
from builtin_plugins.features.lora.places import Places
from builtin_plugins.features.lora.settings import NAME, Settings
from builtin_plugins.features.lora.sizes import adapter_bytes
from builtin_plugins.features.lora.stored import AdapterFiles, BadAdapter, Bits
from core.api import EngineConfig, ForwardBatch, ModelError
from core.contracts.memory import Memory
from core.contracts.scheduling import LoadedParts, WorkerParts
from core.contracts.threads import step_aside
from core.models.layers.embedding import Head

_decode = msgspec.msgpack.Decoder(News).decode
_wanted = msgspec.msgpack.Decoder(Wanted).decode
_encode = msgspec.msgpack.Encoder().encode


class Deltas:
    """Holds this rank's part of every adapter, and sets those of a step."""

    name = NAME

    def __init__(self, settings: Settings, memory: Memory) -> None:
        self._settings = settings
        self._memory = memory
        self._held: dict[bytes, Built] = {}
        self._reading: set[bytes] = set()
        self._lock = threading.Lock()
        self._handlers: dict[torch.nn.Module, Handler] = {}
        self._in_slot: list[Built | None] = [None] * settings.max_loras
        self._set: set[torch.nn.Module] = set()
        """Modules whose adapter is set."""
        self._set_for: tuple[int, ...] = ()
        """Slots whose adapters torch computes, of the step before."""
        self._packed: set[torch.nn.Module] = set()
        """Modules that an adapter was packed for: once set they stay, so that steps with adapters
        are alike.
        """
        self._loader = ThreadPoolExecutor(1, "lora", initializer=step_aside)

    def loaded(self, parts: LoadedParts) -> list[Any]:
        """Find the places of the model. Raises `ModelError` for one without any."""
        self._places = places_of(parts.model)
        self._dtype = dtype_of(self._settings, parts.context.dtype)
        device = parts.context.device
        has_triton = bool(parts.facts.get("triton"))
        kernel = kernel_for(self._dtype, device, self._settings.max_rank, has_triton=has_triton)
        self._active = Active(kernel, self._dtype, device, self._settings.max_loras)
        self._builder = Builder(
            self._places,
            parts.context.group,
            self._dtype,
            device,
            kernel,
            max_rank=self._settings.max_rank,
            sharded=self._settings.fully_sharded,
        )
        return []

    def host_bytes(self, model: Any, config: EngineConfig) -> int:
        """Return what all adapters in memory take, each as large as one may be."""
        dtype = dtype_of(self._settings, getattr(torch, config.model.dtype))
        return self._settings.max_held * adapter_bytes(
            places_of(model), self._settings.max_rank, dtype
        )

    def attach(self, parts: WorkerParts) -> None:
        """Take what the worker holds."""
        config = parts.config
        self._tell = parts.tell
        self._rank = parts.pipeline.rank * parts.group.size + parts.group.rank
        self._slot_of_row = [-1] * ((config.scheduler.max_num_seqs or 1) + 1)
        most = self._settings.max_held * adapter_bytes(
            self._places, self._settings.max_rank, self._dtype
        )
        self._memory.own("lora_adapters", self._num_bytes, lambda: most)

    def _num_bytes(self) -> int:
        with self._lock:
            return sum(built.num_bytes for built in self._held.values())

    # --- life of adapters

    def begin(self, payload: bytes | None) -> None:
        """Take what the step changes."""
        if payload is None:
            return
        news = _decode(payload)
        for digest in news.drop:
            self._drop(digest)
        for wanted in news.load:
            self._begin_load(wanted)
        for slot, digest in news.slots:
            with self._lock:
                self._put(slot, self._held[digest])
        for row, slot in news.rows:
            self._slot_of_row[row] = slot

    def call(self, name: str, data: bytes) -> bytes | None:
        """Begin to read an adapter that is asked for by a call; what else concerns workers comes
        with plans.
        """
        if name == "load":
            self._begin_load(_wanted(data))
        return b"" if name in ("load", "unload", "pin", "list") else None

    def _drop(self, digest: bytes) -> None:
        with self._lock:
            self._held.pop(digest, None)

    def _begin_load(self, wanted: Wanted) -> None:
        with self._lock:
            built = self._held.get(wanted.digest)
            if built is None and wanted.digest not in self._reading:
                self._reading.add(wanted.digest)
                self._loader.submit(self._load, wanted)
        if built is not None:
            self._tell_of(wanted, built)

    def _tell_of(self, wanted: Wanted, built: Built) -> None:
        self._tell(_encode(Told(wanted.digest, self._rank, "", built.unplaced, built.num_bytes)))

    def _put(self, slot: int, built: Built) -> None:
        before = self._in_slot[slot]
        for module in (*before.packed, *before.deltas) if before is not None else ():
            self._handlers[module].leave(slot)
        for module, layer in built.packed.items():
            self._handler(module).put_packed(slot, layer)
        for module, delta in built.deltas.items():
            self._handler(module).put(slot, delta)
        self._in_slot[slot] = built
        self._packed |= built.packed.keys()
        self._set_for = (-1,)  # whatever is set may be of what was there before

    def _handler(self, module: torch.nn.Module) -> Handler:
        parts: Mapping[str, slice] = module.prefixes  # type: ignore[assignment]
        return self._handlers.setdefault(module, Handler(self._active, len(parts)))

    def _load(self, wanted: Wanted) -> None:
        """Read an adapter, in the thread beside the steps, and tell how it went."""
        built: Built | None = None
        error = ""
        try:
            built = self._read(wanted)
        except BadAdapter as fault:
            error = str(fault)
        except Exception as fault:  # noqa: BLE001 - whoever asked is told; nobody waits for this thread
            error = f"it cannot be read: {type(fault).__name__}: {fault}"
        with self._lock:
            self._reading.discard(wanted.digest)
            if built is not None:
                self._held[wanted.digest] = built
        if built is not None:
            self._tell_of(wanted, built)
        else:
            self._tell(_encode(Told(wanted.digest, self._rank, error)))

    def _read(self, wanted: Wanted) -> Built:
        files = AdapterFiles.of(Path(wanted.folder), self._settings.most_bytes)
        kept: dict[str, Bits] = {}
        if files.digest(kept) != wanted.digest:
            raise BadAdapter(
                f"{wanted.folder} has changed since it was first named; load it again "
                "(load_inplace) to serve what is there."
            )
        return self._builder.build(files, kept)

    # --- steps

    def before_forward(self, batch: ForwardBatch, payload: bytes | None) -> None:
        """Set the adapters of the step's rows, and no others: a layer without one is computed as if
        there were none.
        """
        slots = [
            self._slot_of_row[row] if row < len(self._slot_of_row) else -1 for row in batch.rows
        ]
        if max(slots, default=-1) < 0:
            if self._set:
                self._set_adapters(set())
            return
        self._active.set(slots, batch.counts)
        plain = tuple(sorted(slot for slot in {*slots} - {-1} if self._deltas_of(slot)))
        torch_does = set[torch.nn.Module]().union(*(self._deltas_of(slot) for slot in plain))
        if plain != self._set_for or not self._set:
            self._set_adapters(self._packed | torch_does)
            self._set_for = plain
        if all(isinstance(module, Head) for module in torch_does):  # it is called behind the model
            batch.adapter_set = 1 + len(self._packed) + self._active.moves
        else:
            batch.adapted = True

    def _deltas_of(self, slot: int) -> Mapping[torch.nn.Module, Delta]:
        built = self._in_slot[slot]
        return built.deltas if built is not None else {}

    def _set_adapters(self, wanted: set[torch.nn.Module]) -> None:
        for module in self._set - wanted:
            module.adapter = None  # type: ignore[assignment]
        for module in wanted - self._set:
            module.adapter = self._handlers[module]  # type: ignore[assignment]
        self._set = wanted

    def close(self) -> None:
        """End the thread that reads."""
        self._loader.shutdown(wait=False, cancel_futures=True)


def dtype_of(settings: Settings, model: torch.dtype) -> torch.dtype:
    """Return the dtype of adapters in memory."""
    return model if settings.dtype == "auto" else getattr(torch, settings.dtype)


def places_of(model: Any) -> Places:
    """Return where a model can be adapted. Raises `ModelError` for one that cannot."""
    if getattr(model, "encoder", None) is not None or not getattr(model, "takes_adapters", True):
        raise ModelError(
            "--enable-lora: in this model some products are not of the tokens that are computed "
            "(of an encoder, or of a table "
            "of distances), so adapters are not served for it. Leave --enable-lora out, or merge "
            "the adapter into the model."
        )
    places = Places(model)
    if not places.by_prefix:
        raise ModelError(
            f"--enable-lora: {type(model).__name__} has no layers that take adapters (models that "
            "run through transformers' "
            "own modules have none). Leave it out, or merge the adapter into the model."
        )
    return places
