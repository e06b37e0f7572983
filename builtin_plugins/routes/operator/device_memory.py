"""Memory of a device that is given back to its driver, and comes again: tensors stay, what they lie
in is gone meanwhile.

A tensor's storage is emptied and filled again, so all that share it, in whatever shape, have it
back. It may be elsewhere then: whoever remembers places is told by the model's `times_moved`.
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
        self._caches = _Part(caches)
        self._weights = _Part([*model.parameters(), *model.buffers()])

    def fall(self, *, keeps_weights: bool) -> int:
        """Give caches and weights back, the latter kept on the host if they are to be; return how
        many bytes.
        """
        self._module.synchronize()  # steps in flight still read them
        self._model.times_moved = (
            getattr(self._model, "times_moved", 0) + 1
        )  # before: what is recorded holds memory, too
        given = self._caches.give_back(keeps=False) + self._weights.give_back(keeps=keeps_weights)
        self._module.empty_cache()
        return given

    def wake_caches(self) -> None:
        """Take memory for caches again, zeroed.

        Raises `RequestFailed` where the device has not as much, and may be repeated.
        """
        for storage in self._caches.take_again():
            storage.fill_(0)

    def wake_weights(self) -> bool:
        """Take memory for weights again; say whether they are to be read into it, since nobody has
        kept them.

        Raises `RequestFailed` where the device has not as much, and may be repeated.
        """
        self._weights.take_again()
        return not self._weights.fill_from_host()


class _Part:
    """Storages, each once."""

    def __init__(self, tensors: Iterable[torch.Tensor]) -> None:
        self._tensors = list(tensors)
        self._asleep: list[tuple[torch.UntypedStorage, int]] = []
        self._kept: list[torch.Tensor] | None = None

    def give_back(self, *, keeps: bool) -> int:
        """Empty all storages and return what they had; `keeps`: the host has it meanwhile."""
        if self._asleep:
            self._kept = self._kept if keeps else None
            return 0
        # Found anew each time: whoever replaces a parameter's data gives it another storage.
        storages = {
            each.untyped_storage().data_ptr(): each.untyped_storage() for each in self._tensors
        }
        self._asleep = [
            (storage, storage.nbytes()) for storage in storages.values() if storage.nbytes()
        ]
        self._kept = [_on_host(storage) for storage, _ in self._asleep] if keeps else None
        for storage, _ in self._asleep:
            storage.resize_(0)
        return sum(num_bytes for _, num_bytes in self._asleep)

    def take_again(self) -> list[torch.Tensor]:
        """Give all storages the sizes they had; return those, as bytes, that were empty."""
        taken = []
        for storage, num_bytes in self._asleep:
            if not storage.nbytes():
                try:
                    storage.resize_(num_bytes)
                except torch.OutOfMemoryError as error:
                    raise RequestFailed(
                        f"{num_bytes / GIB:.2f} GiB are not free on this device, which others use "
                        "meanwhile; free them, and call "
                        "wake_up() again. What sleeps is kept."
                    ) from error
                taken.append(_bytes_of(storage))
        if self._kept is None:
            self._asleep = []
        return taken

    def fill_from_host(self) -> bool:
        """Copy back what the host has kept; False: nothing."""
        if self._kept is None:
            return False
        for (storage, _), kept in zip(self._asleep, self._kept, strict=True):
            _bytes_of(storage).copy_(kept, non_blocking=True)
        self._kept = None
        self._asleep = []
        return True


def _bytes_of(storage: torch.UntypedStorage) -> torch.Tensor:
    return torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)


def _on_host(storage: torch.UntypedStorage) -> torch.Tensor:
    """Return a copy in memory of the host, pinned where there is a device, so that it comes back at
    the bus' speed.
    """
    kept = torch.empty(
        storage.nbytes(), dtype=torch.uint8, pin_memory=storage.device.type == "cuda"
    )
    return kept.copy_(_bytes_of(storage))
