"""Worker half: reads adapters in the background and activates those of a step."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import torch

from builtin_plugins.features.lora.adapter_builder import AdapterBuilder, BuiltAdapter
from builtin_plugins.features.lora.adapter_file import AdapterFiles, BadAdapter, RawBits
from builtin_plugins.features.lora.deltas import Delta
from builtin_plugins.features.lora.kernels import kernel_for
from builtin_plugins.features.lora.messages import AdapterRef, LoadResult, StepUpdate
from builtin_plugins.features.lora.settings import NAME, Settings
from builtin_plugins.features.lora.step_slots import ModuleAdapters, StepSlots
from builtin_plugins.features.lora.target_modules import TargetModules, adapter_bytes
from builtin_plugins.metric_sinks.api import MemoryOwners
from builtin_plugins.platforms.api import lower_thread_priority
from core.api import EngineConfig, ModelError
from core.api.execution import LoadedParts, WorkerParts
from core.api.models import ForwardBatch
from core.models.layers.cross_attention import CrossAttention
from core.models.layers.embedding import Head

_decode = msgspec.msgpack.Decoder(StepUpdate).decode
_decode_ref = msgspec.msgpack.Decoder(AdapterRef).decode
_encode = msgspec.msgpack.Encoder().encode


class LoraWorker:
    """Holds this rank's part of every adapter, and activates those of a step."""

    name = NAME

    def __init__(self, settings: Settings, memory: MemoryOwners) -> None:
        self._settings = settings
        self._memory = memory
        self._adapters: dict[bytes, BuiltAdapter] = {}
        self._loading: set[bytes] = set()
        self._lock = threading.Lock()
        self._module_adapters: dict[torch.nn.Module, ModuleAdapters] = {}
        self._in_slot: list[BuiltAdapter | None] = [None] * settings.max_loras
        self._active_modules: set[torch.nn.Module] = set()
        """Modules with an active adapter."""
        self._torch_slots: tuple[int, ...] = ()
        """Slots of the previous step with deltas that torch computes."""
        self._packed_modules: set[torch.nn.Module] = set()
        """Modules with a packed adapter.

        Once active they stay active, so steps with adapters are alike.
        """
        self._loader = ThreadPoolExecutor(1, "lora", initializer=lower_thread_priority)

    def loaded(self, parts: LoadedParts) -> list[Any]:
        """Find the target modules of the model. Raises `ModelError` if there are none."""
        self._targets = target_modules_of(parts.model)
        self._dtype = dtype_of(self._settings, parts.context.dtype)
        device = parts.context.device
        has_triton = bool(parts.facts.get("triton"))
        kernel = kernel_for(self._dtype, device, self._settings.max_rank, has_triton=has_triton)
        self._step_slots = StepSlots(kernel, self._dtype, device, self._settings.max_loras)
        self._builder = AdapterBuilder(
            self._targets,
            parts.context.group,
            self._dtype,
            device,
            kernel,
            max_rank=self._settings.max_rank,
            sharded=self._settings.fully_sharded,
        )
        return []

    def host_bytes(self, model: Any, config: EngineConfig) -> int:
        """Return the maximum bytes of all adapters in host memory."""
        dtype = dtype_of(self._settings, getattr(torch, config.model.dtype))
        return self._settings.max_cpu_loras * adapter_bytes(
            target_modules_of(model), self._settings.max_rank, dtype
        )

    def attach(self, parts: WorkerParts) -> None:
        """Set what the worker provides."""
        config = parts.config
        self._send = parts.send
        self._rank = parts.pipeline.rank * parts.group.size + parts.group.rank
        self._slot_of_row = [-1] * ((config.scheduler.max_num_seqs or 1) + 1)
        max_bytes = self._settings.max_cpu_loras * adapter_bytes(
            self._targets, self._settings.max_rank, self._dtype
        )
        self._memory.add("lora_adapters", self._num_bytes, lambda: max_bytes)

    def _num_bytes(self) -> int:
        with self._lock:
            return sum(built.num_bytes for built in self._adapters.values())

    # --- life of adapters

    def begin(self, payload: bytes | None) -> None:
        """Apply the step's changes."""
        if payload is None:
            return
        update = _decode(payload)
        for digest in update.drop:
            self._drop(digest)
        for ref in update.load:
            self._begin_load(ref)
        for slot, digest in update.slots:
            with self._lock:
                self._assign_slot(slot, self._adapters[digest])
        for row, slot in update.rows:
            self._slot_of_row[row] = slot

    def call(self, name: str, data: bytes) -> bytes | None:
        """Start reading an adapter that a call loads; other changes arrive with plans."""
        if name == "load":
            self._begin_load(_decode_ref(data))
        return b"" if name in ("load", "unload", "pin", "list") else None

    def _drop(self, digest: bytes) -> None:
        with self._lock:
            self._adapters.pop(digest, None)

    def _begin_load(self, ref: AdapterRef) -> None:
        with self._lock:
            built = self._adapters.get(ref.digest)
            if built is None and ref.digest not in self._loading:
                self._loading.add(ref.digest)
                self._loader.submit(self._load, ref)
        if built is not None:
            self._send_result(ref, built)

    def _send_result(self, ref: AdapterRef, built: BuiltAdapter) -> None:
        self._send(
            _encode(LoadResult(ref.digest, self._rank, "", built.unmatched, built.num_bytes))
        )

    def _assign_slot(self, slot: int, built: BuiltAdapter) -> None:
        before = self._in_slot[slot]
        for module in (*before.packed, *before.deltas) if before is not None else ():
            self._module_adapters[module].clear(slot)
        for module, layer in built.packed.items():
            self._adapters_of(module).put_packed(slot, layer)
        for module, delta in built.deltas.items():
            self._adapters_of(module).put(slot, delta)
        self._in_slot[slot] = built
        self._packed_modules |= built.packed.keys()
        self._torch_slots = (-1,)  # active deltas may belong to the previous adapter

    def _adapters_of(self, module: torch.nn.Module) -> ModuleAdapters:
        parts: Mapping[str, slice] = module.prefixes  # type: ignore[assignment]
        return self._module_adapters.setdefault(
            module, ModuleAdapters(self._step_slots, len(parts))
        )

    def _load(self, ref: AdapterRef) -> None:
        """Read an adapter in the background thread, and send the result."""
        built: BuiltAdapter | None = None
        error = ""
        try:
            built = self._read(ref)
        except BadAdapter as fault:
            error = str(fault)
        except Exception as fault:  # noqa: BLE001 - sent to the scheduler; no thread joins this one
            error = f"it cannot be read: {type(fault).__name__}: {fault}"
        with self._lock:
            self._loading.discard(ref.digest)
            if built is not None:
                self._adapters[ref.digest] = built
        if built is not None:
            self._send_result(ref, built)
        else:
            self._send(_encode(LoadResult(ref.digest, self._rank, error)))

    def _read(self, ref: AdapterRef) -> BuiltAdapter:
        files = AdapterFiles.read(Path(ref.folder), self._settings.max_bytes)
        tensors: dict[str, RawBits] = {}
        if files.digest(tensors) != ref.digest:
            raise BadAdapter(
                "the files have changed since they were first loaded; load them again "
                "(load_inplace) to serve the new content."
            )
        return self._builder.build(files, tensors)

    # --- steps

    def before_forward(self, batch: ForwardBatch, payload: bytes | None) -> None:
        """Activate the adapters of the step's rows only; other layers run their plain path."""
        slots = [
            self._slot_of_row[row] if row < len(self._slot_of_row) else -1 for row in batch.rows
        ]
        if max(slots, default=-1) < 0:
            if self._active_modules:
                self._activate(set())
            return
        self._step_slots.set(slots, batch.counts)
        plain = tuple(sorted(slot for slot in {*slots} - {-1} if self._deltas_in(slot)))
        torch_does = set[torch.nn.Module]().union(*(self._deltas_in(slot) for slot in plain))
        if plain != self._torch_slots or not self._active_modules:
            self._activate(self._packed_modules | torch_does)
            self._torch_slots = plain
        if all(isinstance(module, Head) for module in torch_does):  # runs after the model
            batch.adapter_set = 1 + len(self._packed_modules) + self._step_slots.moves
        else:
            batch.adapted = True

    def _deltas_in(self, slot: int) -> Mapping[torch.nn.Module, Delta]:
        built = self._in_slot[slot]
        return built.deltas if built is not None else {}

    def _activate(self, ref: set[torch.nn.Module]) -> None:
        for module in self._active_modules - ref:
            module.adapter = None  # type: ignore[assignment]
        for module in ref - self._active_modules:
            module.adapter = self._module_adapters[module]  # type: ignore[assignment]
        self._active_modules = ref

    def close(self) -> None:
        """Stop the background thread."""
        self._loader.shutdown(wait=False, cancel_futures=True)


def dtype_of(settings: Settings, model: torch.dtype) -> torch.dtype:
    """Return the dtype of adapters in memory."""
    return model if settings.dtype == "auto" else getattr(torch, settings.dtype)


def target_modules_of(model: Any) -> TargetModules:
    """Return the target modules of a model. Raises `ModelError` for one without any."""
    if getattr(model, "encoder", None) is not None or not getattr(model, "takes_adapters", True):
        raise ModelError(
            "--enable-lora: this model has products that are not of the step's tokens (an encoder "
            "or a distance table), so adapters are not served for it. Remove --enable-lora, or "
            "merge the adapter into the model."
        )
    encoder_products = [part.kv for part in model.modules() if isinstance(part, CrossAttention)]
    targets = TargetModules(model, encoder_products)
    if not targets.by_prefix:
        raise ModelError(
            f"--enable-lora: {type(model).__name__} has no layers that support adapters (models "
            "run by transformers modules have none). Remove --enable-lora, or merge the adapter "
            "into the model."
        )
    return targets
