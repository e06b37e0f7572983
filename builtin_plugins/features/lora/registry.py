"""The frontend's registry of adapters by name, with their folders and digests."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from builtin_plugins.features.lora.adapter_file import CONFIG, WEIGHTS, AdapterFiles, BadAdapter
from builtin_plugins.features.lora.messages import AdapterRef
from builtin_plugins.features.lora.peft import PeftConfig
from builtin_plugins.features.lora.settings import Settings
from core.api import InvalidRequest, LoRARequest

FIELD: Final = "lora_request"
MAX_NAME_LENGTH: Final = 256
MAX_PATH_LENGTH: Final = 4096
Locate = Callable[[str], str]
"""Returns the folder of a path given by a user."""


@dataclass(frozen=True, slots=True)
class KnownAdapter:
    """An adapter that requests can name."""

    request: LoRARequest
    folder: Path
    base_model: str | None = None
    ref: AdapterRef | None = None
    """Digest and folder of its files; None until its first request."""
    listed: bool = True
    """Whether `/v1/models` lists it."""

    @property
    def name(self) -> str:
        """Name in requests."""
        return self.request.lora_name


@dataclass(slots=True)
class AdapterRegistry:
    """All known adapters. Used from one event loop, or one thread."""

    settings: Settings
    locate: Locate
    known: dict[str, KnownAdapter] = field(default_factory=dict)
    reading: dict[str, asyncio.Lock] = field(default_factory=dict)
    last_id: int = 0

    def describe(self, name: str, path: str, base_model: str | None = None) -> KnownAdapter:
        """Return an adapter named by an operator, with an id of its own.

        Raises `BadAdapter` if there is none.
        """
        check_name(name)
        self.last_id += 1
        return self._at(
            LoRARequest(name, self.last_id, path, base_model_name=base_model), listed=True
        )

    def _at(self, request: LoRARequest, *, listed: bool) -> KnownAdapter:
        check_path(request.lora_path)
        folder = Path(self.locate(request.lora_path)).expanduser()
        if not folder.is_dir():
            raise BadAdapter(
                f"{request.lora_path!r:.200}: got no folder; expected one with a LoRA adapter "
                f"({CONFIG}). Check the path."
            )
        self.last_id = max(self.last_id, request.lora_int_id)
        return KnownAdapter(request, folder, request.base_model_name, listed=listed)

    def check_root(self, path: str) -> None:
        """Raise `BadAdapter` for a path that may not be loaded at run time."""
        check_path(path)
        roots = self.settings.roots
        if not roots:
            return
        folder = Path(self.locate(path)).expanduser()
        for each in (folder, folder / CONFIG, folder / WEIGHTS):  # files may be links
            try:
                target = each.resolve()
            except (OSError, RuntimeError):  # a loop of links
                target = None
            if target is None or not any(target.is_relative_to(root) for root in roots):
                raise BadAdapter(
                    f"got {path!r:.200}; expected a folder in one of --lora-roots, without links "
                    "that leave them. Move the adapter."
                )

    async def ref(self, request: Any) -> AdapterRef:
        """Return the adapter of a request, its files read. Raises `InvalidRequest`."""
        request = validate_request(request)
        lock = self.reading.setdefault(request.lora_name, asyncio.Lock())
        try:
            async with lock:
                found = self._find(request)
                if found.ref is None:
                    found = await asyncio.to_thread(self.read, found)
                self.known[found.name] = found
        except BadAdapter as error:
            raise InvalidRequest(FIELD, f"adapter {request.lora_name!r:.100}: {error}") from error
        finally:
            if not lock.locked():
                self.reading.pop(request.lora_name, None)
        assert found.ref is not None, "it was read"
        return found.ref

    def _find(self, request: LoRARequest) -> KnownAdapter:
        found = self.known.get(request.lora_name)
        if found is not None and found.request.lora_path == request.lora_path:
            if not request.load_inplace:
                return found
            found = None
        if found is None or request.load_inplace:
            self._check_id(request)
            return self._at(request, listed=False)
        raise BadAdapter(
            f"its name belongs to {found.request.lora_path!r:.200}. Use another name, or "
            "load_inplace=True."
        )

    def _check_id(self, request: LoRARequest) -> None:
        for name, known in self.known.items():
            if known.request.lora_int_id == request.lora_int_id and name != request.lora_name:
                raise BadAdapter(
                    f"its id {request.lora_int_id} belongs to {name!r:.100}. Give each adapter its "
                    "own id."
                )

    def read(self, known: KnownAdapter) -> KnownAdapter:
        """Return it with the hash of its files, which are validated. Raises `BadAdapter`."""
        files = AdapterFiles.read(known.folder, self.settings.max_bytes)
        config = PeftConfig.parse(files.config)
        if config.max_rank > self.settings.max_rank:
            raise BadAdapter(
                f"LoRA rank {config.max_rank} is greater than max_lora_rank "
                f"{self.settings.max_rank}. Raise --max-lora-rank."
            )
        if not files.tensors:
            raise BadAdapter("the adapter has no tensors. Save it again.")
        ref = AdapterRef(files.digest(), str(known.folder.resolve()), known.name)
        return KnownAdapter(known.request, known.folder, known.base_model, ref, known.listed)

    def remove(self, name: str) -> KnownAdapter | None:
        """Remove a name; running requests finish with its adapter."""
        return self.known.pop(name, None)

    def listed(self) -> Sequence[KnownAdapter]:
        """Return the adapters listed with the model."""
        return [known for known in self.known.values() if known.listed]


def check_name(name: str) -> None:
    """Raise `BadAdapter` for a name that logs, metrics and URLs cannot carry."""
    if len(name) > MAX_NAME_LENGTH or not name.isprintable() or name != name.strip():
        raise BadAdapter(
            f"its name: got {len(name)} characters; expected up to {MAX_NAME_LENGTH} printable "
            "ones without surrounding spaces. Use another name."
        )
    if ".." in name.split("/") or name.startswith("/"):
        raise BadAdapter("its name: got a path upwards; expected NAME or OWNER/NAME. Rename it.")


def check_path(path: str) -> None:
    """Raise `BadAdapter` for a path that no file system knows."""
    if "\0" in path or len(path) > MAX_PATH_LENGTH:
        raise BadAdapter(
            f"its path: got {len(path)} characters; expected up to {MAX_PATH_LENGTH}, none of them "
            "NUL. Check the path."
        )


def validate_request(request: Any) -> LoRARequest:
    """Return the value of `lora_request`. Raises `InvalidRequest`."""
    if isinstance(request, LoRARequest):
        return request
    raise InvalidRequest(FIELD, f"got {request!r:.100}; expected a LoRARequest(name, id, path).")
