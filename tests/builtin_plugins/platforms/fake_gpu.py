"""A CPU device that captures and replays graphs: Triton's interpreter, recorded torch calls.

It runs the GPU platform's whole path: static buffers, capture sizes, launch and fetch, replays. A
replay repeats only what was recorded, so a step that depends on anything else gives other tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from triton.runtime.interpreter import GridExecutor

from builtin_plugins.platforms.cuda.cuda_graphs import CudaGraphModel
from builtin_plugins.platforms.cuda.platform import GpuPlatform
from core.api import Entry, hookimpl
from core.models.layers.parallel import gloo

GIB = 1 << 30
NO_CPU = ("no:ops_cpu", "no:quant_cpu_packed", "no:attention_paged")
"""Plugins without which the CPU's kernels stay out."""


class FakeRecorder:
    """Records the device calls of a function."""

    def __init__(self) -> None:
        self.replays = 0
        self._calls: list[Callable[[], object]] | None = None

    @property
    def is_recording(self) -> bool:
        """Whether calls are recorded now."""
        return self._calls is not None

    def add(self, call: Callable[[], object]) -> None:
        """Record a call that is no operation of torch's dispatcher, such as a collective."""
        if self._calls is not None:
            self._calls.append(call)

    def record(
        self, function: Callable[[], torch.Tensor]
    ) -> tuple[Callable[[], object], torch.Tensor]:
        """Run the function and record every call with its tensors."""
        calls: list[Callable[[], object]] = []
        self._calls = calls
        with record_launches(calls), _Operations(calls):
            out = function()
        self._calls = None

        def replay() -> None:
            self.replays += 1
            for call in calls:
                call()

        return replay, out


@contextmanager
def record_launches(calls: list[Callable[[], object]]) -> Any:
    """Add each launch to `calls`, without the interpreter's own torch calls."""
    launch = GridExecutor.__call__

    def stored(self: Any, *args: Any, **kwargs: Any) -> None:
        def run() -> None:
            launch(self, *args, **kwargs)

        with torch.utils._python_dispatch._disable_current_modes():
            run()
        calls.append(run)

    GridExecutor.__call__ = stored
    try:
        yield
    finally:
        GridExecutor.__call__ = launch


class _Operations(TorchDispatchMode):
    """Adds each operation that computes something to `calls`."""

    def __init__(self, calls: list[Callable[[], object]]) -> None:
        super().__init__()
        self._calls = calls

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        given = dict(kwargs or {})
        out = func(*args, **given)
        if func._schema.is_mutable:
            self._calls.append(lambda: func(*args, **given))
            return out
        memory = {
            each.untyped_storage().data_ptr()
            for each in (*args, *given.values())
            if torch.is_tensor(each)
        }
        made = [
            each
            for each in (out if isinstance(out, (tuple, list)) else [out])
            if torch.is_tensor(each)
        ]
        if any(each.untyped_storage().data_ptr() in memory for each in made if each.numel()):
            return out  # a view stays one

        def again() -> None:
            found = func(*args, **given)
            for old, new in zip(
                made, found if isinstance(found, (tuple, list)) else [found], strict=False
            ):
                old.copy_(new)

        self._calls.append(again)
        return out


class _RecordedGroup:
    """A Gloo group; replays repeat its collectives, as a graph repeats those of NCCL."""

    def __init__(self, group: Any) -> None:
        self._group = group

    def allreduce(self, tensors: list[torch.Tensor]) -> Any:
        """Sum tensors over the ranks."""
        FakeGpu.recorder.add(lambda: self._group.allreduce(tensors).wait())
        return self._group.allreduce(tensors)

    def allgather(self, out: list[list[torch.Tensor]], tensors: list[torch.Tensor]) -> Any:
        """Gather tensors of the ranks."""
        FakeGpu.recorder.add(lambda: self._group.allgather(out, tensors).wait())
        return self._group.allgather(out, tensors)

    def send(self, tensors: list[torch.Tensor], rank: int, tag: int) -> Any:
        """Send to a rank; a graph holds no transfer, and NCCL has no tags."""
        assert not FakeGpu.recorder.is_recording
        del tag
        return self._group.send(tensors, rank, 0)

    def recv(self, tensors: list[torch.Tensor], rank: int, tag: int) -> Any:
        """Receive from a rank, in order of its sends."""
        assert not FakeGpu.recorder.is_recording
        del tag
        return self._group.recv(tensors, rank, 0)


class FakePeerMemory:
    """Peer memory by a backend's sums; `sums` has the numbers of shots and bytes."""

    def __init__(self, backend: Any) -> None:
        self._backend = backend
        self.sums: list[tuple[int, int]] = []

    def one_shot(self, x: torch.Tensor) -> None:
        """Overwrite x with its sum over the ranks."""
        self.sums.append((1, x.nbytes))
        self._backend.allreduce([x]).wait()

    def two_shot(self, x: torch.Tensor) -> None:
        """Overwrite x with its sum over the ranks."""
        self.sums.append((2, x.nbytes))
        self._backend.allreduce([x]).wait()


class _Event:
    def record(self) -> None:
        """Do nothing."""

    def synchronize(self) -> None:
        """Do nothing."""


class FakeGpu(GpuPlatform):
    """A GPU of 2 GiB, half of it in use by others."""

    name = "fake"
    device = "cpu"
    made: CudaGraphModel | None = None
    recorder = FakeRecorder()
    peak_bytes = 0
    """Memory that steps take above what was reserved before."""

    @property
    def _module(self) -> Any:
        return SimpleNamespace(
            device_count=lambda: 1,
            mem_get_info=lambda: (GIB, 2 * GIB),
            empty_cache=lambda: None,
            synchronize=lambda: None,
            reset_peak_memory_stats=lambda: None,
            memory_reserved=lambda: GIB,
            max_memory_reserved=lambda: GIB + self.peak_bytes,
            Event=_Event,
        )

    def _backend(self, store: Any, rank: int, size: int) -> Any:
        """Return a group of Gloo instead of NCCL."""
        return _RecordedGroup(gloo(store, rank, size))

    def _peer_memory(self, backend: Any, store: Any, rank: int, size: int) -> FakePeerMemory:
        """Return memory that Gloo copies."""
        return FakePeerMemory(backend)

    def wrap(self, model: Any, sizes: Sequence[int]) -> Callable[[Any], torch.Tensor]:
        """Return the model, recorded by this device."""
        if not sizes:
            return model.__call__
        FakeGpu.recorder = FakeRecorder()
        FakeGpu.made = CudaGraphModel(
            model, sizes, self._max_model_len, FakeGpu.recorder, mixed=self._mixed
        )
        return FakeGpu.made


@hookimpl
def engine_platforms() -> list[Entry]:
    return [Entry("fake", FakeGpu, "a device that records and replays", priority=1000)]
