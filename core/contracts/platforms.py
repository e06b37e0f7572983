"""Where the engine runs: devices and executors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import torch

    from core.config import EngineConfig
    from core.kv_spec import KVLayout
    from core.step import StepPlan, StepResult, WorkerInfo


class Platform(Protocol):
    """One kind of device. Constructed without arguments; must be cheap until `start`.

    One whose ranks talk otherwise than over gloo has a method `process_group(store, rank, size)` that returns a
    process group of torch.distributed. One that knows how much memory weights and cache of a rank may take together
    has a method `free_memory_bytes(config)`, by which `engine plan` judges.
    """

    name: str
    device: str
    """What `torch.device` takes: "cpu", "cuda"."""

    def is_available(self) -> bool:
        """Say whether this machine has such a device."""

    def start(self, config: EngineConfig) -> None:
        """Prepare this process (threads, memory settings). Called once per worker, before the model is built."""

    def pick_dtype(self, checkpoint_dtype: str) -> str:
        """Return the dtype `--dtype auto` means for a checkpoint stored in `checkpoint_dtype`."""

    def kv_memory_bytes(self, config: EngineConfig, weight_bytes: int) -> int:
        """Return the bytes the KV cache may take beside `weight_bytes` of weights.

        Asked once they are loaded, and by `engine plan` of a platform that is never started.
        """

    def allocate(self, num_bytes: int) -> torch.Tensor:
        """Return zeroed device memory, uint8 [num_bytes]; memory not used yet should cost nothing where possible."""

    def facts(self) -> Mapping[str, Any]:
        """Return facts `Entry.when` may name: device, isa, memory."""


class Executor(Protocol):
    """Runs workers. Results come back in the order of the plans.

    One with processes of its own has a method `silence_s()`: for how long the most silent of them has given no sign
    of life.
    """

    depth: int
    """Plans that may be in flight at once; 1 means no scheduling ahead."""

    def start(self) -> WorkerInfo:
        """Build the model on every worker. May take long; called once."""

    def allocate(self, layout: KVLayout) -> None:
        """Allocate the KV cache on every worker."""

    def submit(self, plan: StepPlan) -> None:
        """Queue one plan; never more than `depth` uncollected ones."""

    def collect(self) -> StepResult:
        """Wait for the oldest plan in flight and return its result. Raises if the step as a whole failed."""

    def shutdown(self) -> None:
        """Release everything; safe to call twice and in any state."""
