"""Both halves handle failing masks and restarting outputs in any step."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np

from builtin_plugins.executors.process.messages import RemoteError
from builtin_plugins.features.structured_outputs.constrained_outputs import ConstrainedOutputs
from builtin_plugins.features.structured_outputs.grammar_handle import ConstrainedOutput
from builtin_plugins.features.structured_outputs.messages import (
    MaskFailed,
    MaskTiming,
    PrepareMask,
    StepChanges,
)
from builtin_plugins.features.structured_outputs.scheduling import MaskScheduler
from core import SamplingParams, StructuredOutputsParams
from core.api import InvalidRequest

FORM = StructuredOutputsParams(regex="a+")


class Rows:
    """One row without pending tokens."""

    rows = np.array([0])
    num_tokens = np.array([5])
    planned = np.array([4])
    num_unverified = np.array([0])


def test_paused_row_resumes_and_recomputes_when_its_mask_fails() -> None:
    recomputed: list[tuple[str, int]] = []
    woken: list[str] = []
    scheduling = MaskScheduler(num_ranks=1)
    scheduler = SimpleNamespace(recompute=lambda *what: recomputed.append(what), wake=woken.append)
    scheduling.attach(scheduler)
    sampling = SamplingParams(structured_outputs=FORM)
    source = SimpleNamespace(eos_token_ids=())
    request = SimpleNamespace(
        features={},
        request_id="a",
        row=0,
        sampling=sampling,
        source=source,
        tokens=[1] * 5,
        prompt_len=3,
        num_tokens=5,
    )
    scheduling.may_start(request)
    scheduling.result(msgspec.msgpack.encode([MaskTiming("a", 0, is_slow=True)]))
    assert scheduling.limits(Rows()) == {0: 0}
    failed = msgspec.msgpack.encode(
        [MaskFailed("a", 0, RemoteError.from_exception(InvalidRequest("regex", "takes too long")))]
    )
    scheduling.result(failed)
    assert scheduling.limits(Rows()) == {}
    scheduling.result(failed)  # sent by the step without the mask
    assert recomputed == [("a", 4), ("a", 4)]
    assert woken == ["a", "a"]


def test_restarted_output_keeps_its_spent_budget() -> None:
    class Handle:
        def open(self, length: int, owner: str) -> ConstrainedOutput:
            return ConstrainedOutput(self, 0, length, owner)  # type: ignore[arg-type]

        def begin(self, *what: Any) -> None:
            """Make no mask."""

    def ignore(what: Any) -> None:
        """Drop the message."""

    handle = Handle()
    pool: Any = SimpleNamespace(
        lock=nullcontext(), get=lambda key: handle, drop=ignore, watch=ignore
    )
    lines = ConstrainedOutputs(pool, ignore, 0)
    lines.update(StepChanges(soon=[PrepareMask("a", FORM, 5, [], [], [])]))
    lines.update(StepChanges(new=[(0, "a")]))
    first = lines[0]
    first.spent_s = 0.7
    lines.update(StepChanges(soon=[PrepareMask("a", FORM, 4, [], [], [])]))
    lines.update(StepChanges(new=[(0, "a")]))
    assert lines[0] is not first
    assert lines[0].spent_s == 0.7
