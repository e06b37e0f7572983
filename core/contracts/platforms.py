"""Where the engine runs: devices and executors."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import torch

    from core.config import EngineConfig
    from core.model_spec.kv import KVLayout
    from core.step import StepPlan, StepResult, WorkerInfo


class Platform(Protocol):
    """One kind of device. Constructed without arguments, as `start` brings the config; must be
    cheap until then.

    One whose ranks talk otherwise than over gloo has a method `process_group(store, rank, size)`
    that returns a process group of torch.distributed. One that knows how much memory weights and
    cache of a rank may take together has a method `free_memory_bytes(config)`, by which `engine
    plan` judges. One that computes while the host does other things has `overlaps = True`: the next
    step is scheduled while one runs, unless the user decides. One that reads prompts so slowly that
    others' streams would stop meanwhile has `mixed_prefill_tokens`: a server's default for
    `max_mixed_prefill_tokens`.

    One that computes beside the host says how in `stream()`: an object whose `launch(function)`
    runs functions in their order, at once or later, and returns an object whose `result()` waits
    for the function and all it gave the device to do, and returns what it returned. Without it
    functions run in a thread of their own at depth 2, at once at depth 1. One that wants steps of
    few sizes names them in `sizes(config)`, numbers of tokens in rising order: steps are padded
    with sequences of one token to the next of them, larger steps not at all. And one that records
    or compiles the model has `wrap(model, sizes)`, which returns what is called with each
    `ForwardBatch` instead of the model.
    """

    name: str
    device: str
    """What `torch.device` takes: "cpu", "cuda"."""

    def is_available(self) -> bool:
        """Say whether this machine has such a device."""

    def start(self, config: EngineConfig) -> None:
        """Prepare this process (threads, memory settings).

        Called once per worker, before the model is built.
        """

    def pick_dtype(self, checkpoint_dtype: str) -> str:
        """Return the dtype `--dtype auto` means for a checkpoint stored in `checkpoint_dtype`."""

    def kv_memory_bytes(self, config: EngineConfig, weight_bytes: int) -> int:
        """Return the bytes the KV cache may take beside `weight_bytes` of weights.

        Asked once they are loaded, and by `engine plan` of a platform that is never started.
        """

    def allocate(self, num_bytes: int) -> torch.Tensor:
        """Return zeroed device memory, uint8 [num_bytes]; memory not used yet should cost nothing
        where possible.
        """

    def facts(self) -> Mapping[str, Any]:
        """Return facts `Entry.when` may name: device, isa, memory."""


class Executor(Protocol):
    """Runs workers. Results come back in the order of the plans.

    One with processes of its own has a method `silence_s()`: for how long the most silent of them
    has given no sign of life.
    """

    depth: int
    """Plans that may be in flight at once; 1 means no scheduling ahead."""
    told: Callable[[str, bytes], None]
    """Set by the engine: takes what the worker half of a feature, by its name, tells outside of
    steps; from any thread.
    """

    def start(self) -> WorkerInfo:
        """Build the model on every worker. May take long; called once."""

    def allocate(self, layout: KVLayout) -> None:
        """Allocate the KV cache on every worker."""

    def submit(self, plan: StepPlan) -> None:
        """Queue one plan; never more than `depth` uncollected ones."""

    def collect(self) -> StepResult:
        """Wait for the oldest plan in flight and return its result.

        Raises if the step as a whole failed.
        """

    def call(self, name: str, data: bytes) -> list[bytes]:
        """Make a call, `<feature>.<verb>`, of the worker halves on every rank, behind the plans
        submitted so far; return
        what those say that have an answer, in the order of ranks. Raises what all of them raise;
        where only some do, the ranks no longer agree, and that is `EngineDead`.
        """

    def shutdown(self) -> None:
        """Release everything; safe to call twice and in any state."""
