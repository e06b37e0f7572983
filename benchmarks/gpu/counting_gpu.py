"""Fake GPU that records what each step launches, by place in the step.

A device operation of torch counts as one launch; some, such as a sort, are several on a GPU.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, TypeVar

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from triton.runtime.interpreter import GridExecutor

from benchmarks.gpu.fake_gpu import FakeGpu
from core.worker.stream import SyncStream

T = TypeVar("T")
OUTSIDE: Final = "outside"
"""Place of launches before and after the model: inputs, the head and sampling."""
MODEL: Final = "model"
"""Place of launches of the model outside its layers."""
ONCE: Final = ("_plan", "_plan_tokens")
"""Kernels that the first layer launches for all layers."""
ALLOCATIONS: Final = frozenset(
    {"empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "resize_", "set_"}
)
"""Operations of torch that launch nothing."""


@dataclass(frozen=True, slots=True)
class Launch:
    """One launch of a step."""

    place: str
    """`outside`, `model`, or the layer, such as `layer 3`."""
    name: str
    """A Triton kernel, or an operation of torch."""


class LaunchCounter(TorchDispatchMode):
    """Records the launches of Triton kernels and of torch while it is active."""

    def __init__(self) -> None:
        super().__init__()
        self.place = OUTSIDE
        self.launches: list[Launch] = []
        self.decodes = False
        """Whether the model ran with one token for each sequence."""

    def add(self, name: str) -> None:
        """Record a launch at the current place."""
        self.launches.append(Launch(MODEL if name in ONCE else self.place, name))

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        given = dict(kwargs or {})
        composite = torch._C.DispatchKey.CompositeImplicitAutograd
        if torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), composite):
            with self:
                return func.decompose(*args, **given)
        out = func(*args, **given)
        if _computes(func, out, [*args, *given.values()]):
            self.add(func._schema.name.removeprefix("aten::"))
        return out


def _computes(func: Any, out: Any, arguments: Sequence[Any]) -> bool:
    """Return whether an operation writes elements: it is no allocation and no view."""
    if func._schema.name.removeprefix("aten::") in ALLOCATIONS:
        return False
    made = [
        each
        for each in (out if isinstance(out, (tuple, list)) else [out])
        if torch.is_tensor(each) and each.numel()
    ]
    if func._schema.is_mutable or not made:
        return bool(made)
    memory = {each.untyped_storage().data_ptr() for each in arguments if torch.is_tensor(each)}
    return all(each.untyped_storage().data_ptr() not in memory for each in made)


@contextmanager
def _counted_kernels(counter: LaunchCounter) -> Iterator[None]:
    """Record launches of Triton kernels, without what the interpreter computes by torch."""
    launch = GridExecutor.__call__

    def counted(self: Any, *args: Any, **kwargs: Any) -> None:
        counter.add(self.fn.__name__)
        with torch.utils._python_dispatch._disable_current_modes():
            launch(self, *args, **kwargs)

    GridExecutor.__call__ = counted
    try:
        yield
    finally:
        GridExecutor.__call__ = launch


class CountingGpu(FakeGpu):
    """A fake GPU; `steps` has the launches of each step that only decodes."""

    name = "counting_gpu"
    steps: list[list[Launch]] = []
    _counter: LaunchCounter | None = None

    def stream(self) -> Any:
        """Return a stream that records what each function launches."""
        platform = self

        class CountingStream(SyncStream):
            def launch(self, function: Callable[[], T]) -> Any:
                return super().launch(partial(platform._counted, function))

        return CountingStream()

    def _counted(self, function: Callable[[], T]) -> T:
        counter = LaunchCounter()
        self._counter = counter
        with _counted_kernels(counter), counter:
            out = function()
        if counter.decodes:
            CountingGpu.steps.append(counter.launches)
        return out

    def wrap(self, model: Any, sizes: Sequence[int]) -> Callable[[Any], torch.Tensor]:
        """Return the model; hooks of its layers set the place of launches."""

        def enter(place: str, *unused: Any) -> None:
            assert self._counter is not None, "a layer runs in the stream"
            self._counter.place = place

        for index, block in enumerate(model._blocks):
            block.register_forward_pre_hook(partial(enter, f"layer {index}"))
            block.register_forward_hook(partial(enter, MODEL))

        def forward(batch: Any) -> torch.Tensor:
            assert self._counter is not None, "the model runs in the stream"
            self._counter.decodes = len(batch.counts) == len(batch.input_ids)
            self._counter.place = MODEL
            try:
                out: torch.Tensor = model(batch)
            finally:
                self._counter.place = OUTSIDE
            return out

        return forward
