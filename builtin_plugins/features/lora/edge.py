"""Adapters by name, at the edge: which there are, where their files lie, and what is in them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from builtin_plugins.features.lora.messages import Wanted
from builtin_plugins.features.lora.peft import PeftConfig
from builtin_plugins.features.lora.settings import Settings
from builtin_plugins.features.lora.stored import CONFIG, AdapterFiles, BadAdapter
from core.api import InvalidRequest
from core.familiar.adapters import LoRARequest

FIELD: Final = "lora_request"
Locate = Callable[[str], str]
"""Returns the folder of a path that users give."""


@dataclass(frozen=True, slots=True)
class Known:
    """An adapter that can be asked for."""

    request: LoRARequest
    folder: Path
    base_model: str | None = None
    wanted: Wanted | None = None
    """What is in its files; None before somebody asked for it."""
    listed: bool = True
    """It is one of those that `/v1/models` shows."""

    @property
    def name(self) -> str:
        """What requests call it."""
        return self.request.lora_name


@dataclass(slots=True)
class Adapters:
    """All that are known here. In one event loop, or one thread."""

    settings: Settings
    locate: Locate
    known: dict[str, Known] = field(default_factory=dict)
    reading: dict[str, asyncio.Lock] = field(default_factory=dict)
    last_id: int = 0

    def described(self, name: str, path: str, base_model: str | None = None) -> Known:
        """Return one that operators name, with an id of its own.

        Raises `BadAdapter` where there is none.
        """
        self.last_id += 1
        return self._at(
            LoRARequest(name, self.last_id, path, base_model_name=base_model), listed=True
        )

    def _at(self, request: LoRARequest, *, listed: bool) -> Known:
        folder = Path(self.locate(request.lora_path)).expanduser()
        if not folder.is_dir():
            raise BadAdapter(
                f"{request.lora_path!r:.200} is no folder with a LoRA adapter ({CONFIG})."
            )
        self.last_id = max(self.last_id, request.lora_int_id)
        return Known(request, folder, request.base_model_name, listed=listed)

    def check_root(self, path: str) -> None:
        """Raise `BadAdapter` for a path that must not be named at run time."""
        folder = Path(self.locate(path)).expanduser().resolve()
        roots = self.settings.roots
        if roots and not any(folder.is_relative_to(root) for root in roots):
            allowed = ", ".join(map(str, roots))
            raise BadAdapter(
                f"{path!r:.200} lies outside of the folders that adapters may be loaded from "
                f"(--lora-roots {allowed})."
            )

    async def wanted(self, request: Any) -> Wanted:
        """Return what a request asks for, its files read. Raises `InvalidRequest`."""
        request = checked(request)
        lock = self.reading.setdefault(request.lora_name, asyncio.Lock())
        try:
            async with lock:
                found = self._find(request)
                if found.wanted is None:
                    found = await asyncio.to_thread(self.read, found)
                self.known[found.name] = found
        except BadAdapter as error:
            raise InvalidRequest(FIELD, f"adapter {request.lora_name!r:.100}: {error}") from error
        finally:
            if not lock.locked():
                self.reading.pop(request.lora_name, None)
        assert found.wanted is not None, "it was read"
        return found.wanted

    def _find(self, request: LoRARequest) -> Known:
        found = self.known.get(request.lora_name)
        if found is not None and found.request.lora_path == request.lora_path:
            if not request.load_inplace:
                return found
            found = None
        if found is None or request.load_inplace:
            self._check_id(request)
            return self._at(request, listed=False)
        raise BadAdapter(
            f"the name is that of {found.request.lora_path!r:.200}; give this one another name, or "
            "load_inplace=True."
        )

    def _check_id(self, request: LoRARequest) -> None:
        for name, known in self.known.items():
            if known.request.lora_int_id == request.lora_int_id and name != request.lora_name:
                raise BadAdapter(
                    f"its id {request.lora_int_id} is that of {name!r:.100}; give each adapter its "
                    "own."
                )

    def read(self, known: Known) -> Known:
        """Return it with the hash of its files, which were looked through. Raises `BadAdapter`."""
        files = AdapterFiles.of(known.folder, self.settings.most_bytes)
        config = PeftConfig.of(files.config)
        if config.most_rank > self.settings.max_rank:
            raise BadAdapter(
                f"LoRA rank {config.most_rank} is greater than max_lora_rank "
                f"{self.settings.max_rank}. Raise --max-lora-rank."
            )
        if not files.tensors:
            raise BadAdapter(f"{known.folder} holds no tensors; save the adapter again.")
        wanted = Wanted(files.digest(), str(known.folder.resolve()), known.name)
        return Known(known.request, known.folder, known.base_model, wanted, known.listed)

    def remove(self, name: str) -> Known | None:
        """Forget a name; requests that have its adapter keep it."""
        return self.known.pop(name, None)

    def listed(self) -> Sequence[Known]:
        """Return those that models are listed with."""
        return [known for known in self.known.values() if known.listed]


def checked(request: Any) -> LoRARequest:
    """Return what was given under `lora_request`. Raises `InvalidRequest`."""
    if isinstance(request, LoRARequest):
        return request
    raise InvalidRequest(FIELD, f"must be a LoRARequest(name, id, path), not {request!r:.100}.")
