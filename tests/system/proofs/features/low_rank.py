"""LoRA adapters by request, `lora_request="NAME"`; adapters and the base model share batches."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from core.api import InvalidRequest, Option, hookimpl

NAME = "low_rank"


class AdapterUpdates(msgspec.Struct, array_like=True, frozen=True):
    """Adapter changes of one step."""

    load: list[tuple[int, str]]
    """(slot, adapter folder) to load."""
    rows: list[tuple[int, int]]
    """(row, slot); -1 for the base model."""


@hookimpl
def engine_options():
    return [
        Option("adapters", list[str] | None, None, "name=folder."),
        Option("adapter_slots", int, 1, "Adapters in one batch."),
    ]


def folders(config: Any) -> dict[str, str]:
    return dict(item.split("=", 1) for item in config.options["adapters"] or ())


@hookimpl
def engine_admission_extensions(config, registry):
    return [Names(folders(config))] if folders(config) else []


@hookimpl
def engine_scheduler_extensions(config, registry):
    return [Slots(folders(config), config.options["adapter_slots"])] if folders(config) else []


@hookimpl
def engine_runner_extensions(config, registry):
    return [Deltas()] if folders(config) else []


class Names:
    """Admission half: the adapter's hash joins the cache domains, its name the features."""

    keywords = ("lora_request",)

    def __init__(self, known: dict[str, str]) -> None:
        self._hashes = {
            name: hashlib.sha256(
                b"".join(p.read_bytes() for p in sorted(Path(folder).iterdir()))
            ).digest()
            for name, folder in known.items()
        }

    async def prepare(self, request: Any) -> Any:
        name = request.plugin_fields["lora_request"]
        if name not in self._hashes:
            raise InvalidRequest(
                "lora_request", f"no adapter is called {name!r}; there are {sorted(self._hashes)}."
            )
        return replace(
            request,
            cache_domains=(*request.cache_domains, (NAME, self._hashes[name])),
            features={**request.features, NAME: name.encode()},
        )


class Slots:
    """Scheduler half: the slot of each adapter, and the requests that use it."""

    name = NAME

    def __init__(self, known: dict[str, str], num_slots: int) -> None:
        self._known = known
        self._slots: dict[str, int] = {}
        self._pins: list[set[str]] = [set() for _ in range(num_slots)]
        self._load: list[tuple[int, str]] = []
        self._waiting: dict[str, None] = {}
        self.num_loads = 0

    def attach(self, scheduler: Any) -> None:
        self._scheduler = scheduler

    def may_start(self, request: Any) -> bool:
        name = request.features.get(NAME, b"").decode()
        if not name:
            return True
        slot = self._slots.get(name)
        if slot is None:
            slot = next((i for i, pins in enumerate(self._pins) if not pins), None)
            if slot is None:
                self._waiting[request.request_id] = None
                return False
            self._slots = {n: s for n, s in self._slots.items() if s != slot} | {name: slot}
            self._load.append((slot, self._known[name]))
            self.num_loads += 1
        self._pins[slot].add(request.request_id)
        return True

    def finished(self, request: Any) -> bool:
        self._waiting.pop(request.request_id, None)
        for pins in self._pins:
            pins.discard(request.request_id)
        if any(not pins for pins in self._pins):
            waiting = self._waiting
            self._waiting = {}
            for request_id in waiting:
                self._scheduler.wake(request_id)
        return False

    def planned(self, plan: Any) -> bytes | None:
        rows = [
            (new.row, self._slots.get(new.features.get(NAME, b"").decode(), -1)) for new in plan.new
        ]
        load = self._load
        self._load = []
        return msgspec.msgpack.encode(AdapterUpdates(load, rows)) if load or rows else None


class Deltas:
    """Worker half: holds this rank's part of the matrices and says which tokens take which."""

    name = NAME

    def __init__(self) -> None:
        self._slot_of_row: dict[int, int] = {}
        self.active: list[tuple[int, Any]] = []
        """(slot, token indices) of the current step."""

    def attach(self, parts: Any) -> None:
        self._layers = {
            prefix: (module, rows)
            for module in parts.model.modules()
            for prefix, rows in getattr(module, "prefixes", {}).items()
        }

    def begin(self, payload: bytes | None) -> None:
        if payload is not None:
            updates = msgspec.msgpack.decode(payload, type=AdapterUpdates)
            for slot, folder in updates.load:
                self._load(slot, Path(folder))
            self._slot_of_row.update(updates.rows)

    def _load(self, slot: int, folder: Path) -> None:
        from safetensors.torch import load_file

        config = json.loads((folder / "adapter_config.json").read_text())
        scale = config["lora_alpha"] / config["r"]
        tensors = load_file(folder / "adapter_model.safetensors")
        for prefix, (layer, rows) in self._layers.items():
            a = tensors.pop(f"base_model.model.{prefix}.lora_A.weight", None)
            if isinstance(layer.adapter, Delta):
                layer.adapter.parts.get(slot, {}).pop(prefix, None)
            if a is None:
                continue
            b = tensors.pop(f"base_model.model.{prefix}.lora_B.weight")
            part = layer.parts[prefix]
            dtype = next(layer.parameters()).dtype
            if layer.adapter is None:
                layer.adapter = Delta(self)
            own = rows, part.columns(a, -1).to(dtype), part.rows(b, -2).to(dtype) * scale
            layer.adapter.parts.setdefault(slot, {})[prefix] = own
        if tensors:
            raise ValueError(f"{folder} adapts {sorted(tensors)[0]}, which the model has not")

    def before_forward(self, batch: Any, payload: bytes | None) -> None:
        import torch

        indices: dict[int, list[int]] = {}
        at = 0
        for row, count in zip(batch.rows, batch.counts, strict=True):
            slot = self._slot_of_row.get(row, -1)
            if slot >= 0:
                indices.setdefault(slot, []).extend(range(at, at + count))
            at += count
        self.active = [(slot, torch.tensor(index)) for slot, index in indices.items()]


class Delta:
    """What adapters add to one linear layer."""

    def __init__(self, deltas: Deltas) -> None:
        self._deltas = deltas
        self.parts: dict[int, dict[str, tuple[slice, Any, Any]]] = {}

    def __call__(self, layer: Any, x: Any, out: Any) -> Any:
        for slot, indices in self._deltas.active:
            mine = x[indices]
            for rows, a, b in self.parts.get(slot, {}).values():
                out[:, rows].index_add_(0, indices, mine @ a.T @ b.T)
        return out
