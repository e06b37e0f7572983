"""Releases the device memory of tensors to the driver, and restores it.

A tensor's storage is emptied and refilled, so all tensors that share it are restored. It may move:
a change of the model's `storage_version` invalidates addresses.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import torch

from core.api import RequestFailed

GIB: Final = 1 << 30


class DeviceMemory:
    """Weights and caches of one model on one device."""

    def __init__(self, model: Any, caches: Iterable[torch.Tensor], device: str) -> None:
        self._model = model
        self._module = torch.get_device_module(device)
        self._caches = _Storages(caches)
        self._weights = _Storages([*model.parameters(), *model.buffers()])

    def release(self, *, save_weights: bool) -> int:
        """Release caches and weights, and return the number of bytes.

        `save_weights` copies the weights to the host.
        """
        self._module.synchronize()  # in-flight steps still read them
        # First, because CUDA graphs hold memory too.
        self._model.storage_version = getattr(self._model, "storage_version", 0) + 1
        num_bytes = self._caches.release(save=False) + self._weights.release(save=save_weights)
        self._module.empty_cache()
        return num_bytes

    def release_caches(self) -> int:
        """Release the caches alone, and return the number of bytes."""
        self._module.synchronize()
        self._model.storage_version = getattr(self._model, "storage_version", 0) + 1
        num_bytes = self._caches.release(save=False)
        self._module.empty_cache()
        return num_bytes

    def restore_caches(self) -> None:
        """Allocate the caches again, zeroed.

        Raises `RequestFailed` if the device lacks memory; the call may be repeated.
        """
        for storage in self._caches.allocate():
            storage.fill_(0)

    def restore_weights(self) -> bool:
        """Allocate the weights again, and copy them from the host.

        Returns True if the host does not have them, so they must be reloaded. Raises
        `RequestFailed` if the device lacks memory; the call may be repeated.
        """
        self._weights.allocate()
        return not self._weights.fill_from_host()


class _Storages:
    """Distinct storages of some tensors."""

    def __init__(self, tensors: Iterable[torch.Tensor]) -> None:
        self._tensors = list(tensors)
        self._released: list[tuple[torch.UntypedStorage, int]] = []
        """Released storages, with their sizes in bytes."""
        self._host_copies: list[torch.Tensor] | None = None

    def release(self, *, save: bool) -> int:
        """Empty all storages and return their size in bytes; `save` copies them to the host."""
        if self._released:
            if not save:
                self._host_copies = None
            return 0
        # Looked up each time, because replacing a parameter's data replaces its storage.
        storages = {
            each.untyped_storage().data_ptr(): each.untyped_storage() for each in self._tensors
        }
        self._released = [
            (storage, storage.nbytes()) for storage in storages.values() if storage.nbytes()
        ]
        self._host_copies = None
        if save:
            self._host_copies = [_on_host(storage) for storage, _ in self._released]
        for storage, _ in self._released:
            storage.resize_(0)
        return sum(num_bytes for _, num_bytes in self._released)

    def allocate(self) -> list[torch.Tensor]:
        """Restore the sizes of all storages; return those that were empty, as bytes."""
        allocated = []
        for storage, num_bytes in self._released:
            if not storage.nbytes():
                try:
                    storage.resize_(num_bytes)
                except torch.OutOfMemoryError as error:
                    raise RequestFailed(
                        f"{num_bytes / GIB:.2f} GiB are not free on this device; free them in the "
                        "processes that use it, and call wake_up() again. The engine stays asleep."
                    ) from error
                allocated.append(_bytes_of(storage))
        if self._host_copies is None:
            self._released = []
        return allocated

    def fill_from_host(self) -> bool:
        """Copy the contents back from the host; return False if it has none."""
        if self._host_copies is None:
            return False
        for (storage, _), host_copy in zip(self._released, self._host_copies, strict=True):
            _bytes_of(storage).copy_(host_copy, non_blocking=True)
        self._host_copies = None
        self._released = []
        return True


def _bytes_of(storage: torch.UntypedStorage) -> torch.Tensor:
    return torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)


def _on_host(storage: torch.UntypedStorage) -> torch.Tensor:
    """Return a copy in host memory, pinned for a GPU, so that it returns at bus speed."""
    is_pinned = storage.device.type == "cuda"
    host_copy = torch.empty(storage.nbytes(), dtype=torch.uint8, pin_memory=is_pinned)
    return host_copy.copy_(_bytes_of(storage))
