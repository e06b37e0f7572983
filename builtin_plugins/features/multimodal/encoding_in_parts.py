"""A tower's run that stops between layers, to go on in a later step."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Sequence
from typing import Any, Final

import torch
from torch import nn

from core.model_spec.tower import EncodedItem


class EncodingInParts:
    """Encodes an item in a thread of its own, which runs only while the caller waits for it."""

    def __init__(
        self, key: bytes, encode: Callable[[], EncodedItem], layers: Sequence[nn.Module]
    ) -> None:
        """`layers` are the tower's, in any order; a tower without any is not stopped."""
        self.key: Final = key
        self._encode: Final = encode
        self._layers: Final = layers
        self._num_begun = 0
        """Layers that have begun."""
        self._limit = 0.0
        """Layers that may begin before the next stop."""
        self._is_cancelled = False
        self._is_done = False
        self._encoded: EncodedItem
        self._error: BaseException | None = None
        self._may_run: Final = threading.Semaphore(0)
        self._has_stopped: Final = threading.Semaphore(0)
        self._thread: Final = threading.Thread(target=self._run, name="encoder", daemon=True)
        self._thread.start()

    def advance(self, part: int, num_parts: int) -> None:
        """Run up to the end of a part, by its share of the layers."""
        self._go_on(math.ceil(len(self._layers) * part / num_parts))

    def finish(self) -> EncodedItem:
        """Return the item encoded; raises the tower's error."""
        self._go_on(math.inf)
        self._thread.join()
        if self._error is not None:
            raise self._error
        return self._encoded

    def cancel(self) -> None:
        """End the thread."""
        self._is_cancelled = True
        self._go_on(math.inf)
        self._thread.join()

    def _go_on(self, limit: float) -> None:
        if not self._is_done:
            self._limit = limit
            self._may_run.release()
            self._has_stopped.acquire()

    def _run(self) -> None:
        self._may_run.acquire()
        hooks = [layer.register_forward_pre_hook(self._before_layer) for layer in self._layers]
        try:
            with torch.inference_mode():
                self._encoded = self._encode()
        except BaseException as error:  # noqa: BLE001 - raised by `finish`
            self._error = error
        finally:
            for hook in hooks:
                hook.remove()
            self._is_done = True
            self._has_stopped.release()

    def _before_layer(self, *_: Any) -> None:
        """Stop before a layer of the next part. Other threads run the same layers, too."""
        if threading.current_thread() is not self._thread:
            return
        while self._num_begun >= self._limit:
            self._has_stopped.release()
            self._may_run.acquire()
        if self._is_cancelled:
            raise _Cancelled
        self._num_begun += 1


class _Cancelled(Exception):
    """Ends the run of a tower."""


def layers_of(tower: Any) -> list[nn.Module]:
    """Return the layers of a tower: the modules of its lists; none if it has no modules."""
    if not isinstance(tower, nn.Module):
        return []
    lists = [module for module in tower.modules() if isinstance(module, nn.ModuleList)]
    return [layer for layers in lists for layer in layers]
