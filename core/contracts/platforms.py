"""Platforms: the devices an engine runs on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import torch

    from core.config import EngineConfig


class Platform(Protocol):
    """One kind of device. Constructed without arguments; must be cheap before
    `start`.

    Optional members:
    - `process_group(store, rank, size)`: returns a torch.distributed process group, for
      ranks that do not use gloo.
    - `free_memory_bytes(config)`: memory for weights and cache of one rank; used by
      `engine plan`.
    - `profile(config, layers, run)`: measures a step
      after loading.
      `run(layout, plan)` runs one on caches of its own.
    - `overlaps = True`: it computes while the host works, so asynchronous scheduling is
      on by default.
    - `mixed_prefill_tokens`: default of `max_mixed_prefill_tokens` of a server; for a
      platform on which prefills would stall other streams.
    - `stream()`: returns an object with `launch(function)`, which runs functions in
      order, at once or later. `launch` returns an object with `result()`, which waits
      for the function and its device work. Without it functions run in a thread at
      depth 2, and at once at depth 1.
    - `sizes(config)`: ascending numbers of tokens to which steps are padded with
      sequences of one token; larger steps are not padded.
    - `wrap(model, sizes)`: returns the callable that replaces the model for each
      `ForwardBatch`, such as a compiled or captured one.
    """

    name: str
    device: str
    """Argument of `torch.device`: "cpu", "cuda"."""

    def is_available(self) -> bool:
        """Return whether this machine has such a device."""

    def start(self, config: EngineConfig) -> None:
        """Prepare the process (threads, memory settings), once per worker, before the build."""

    def pick_dtype(self, checkpoint_dtype: str) -> str:
        """Return the dtype of `--dtype auto` for a checkpoint of this dtype."""

    def kv_memory_bytes(self, config: EngineConfig, weight_bytes: int) -> int:
        """Return the bytes available to the KV cache next to `weight_bytes`
        of weights.

        Called after loading, and by `engine plan` on a platform that is never started.
        """

    def allocate(self, num_bytes: int) -> torch.Tensor:
        """Return zeroed device memory, uint8 [num_bytes]; preferably without touching it."""

    def facts(self) -> Mapping[str, Any]:
        """Return facts for `Entry.when`: device, isa, memory."""
