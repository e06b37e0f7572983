"""What both halves do about an output that gets no more masks, or begins again, whatever step it is
told in.
"""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np

from builtin_plugins.features.structured_outputs.handle import Line
from builtin_plugins.features.structured_outputs.lines import Lines
from builtin_plugins.features.structured_outputs.news import Failed, News, Pace, Prepare
from builtin_plugins.features.structured_outputs.scheduling import Gate
from core import SamplingParams, StructuredOutputsParams
from core.api import InvalidRequest
from core.process.messages import Fault

FORM = StructuredOutputsParams(regex="a+")


class Rows:
    """One row that has computed all it knows."""

    rows = np.array([0])
    num_tokens = np.array([5])
    planned = np.array([4])
    in_flight = np.array([0])


def test_a_row_that_waits_for_a_mask_goes_on_when_there_is_none_and_is_taken_back_each_time() -> (
    None
):
    taken_back: list[tuple[str, int]] = []
    woken: list[str] = []
    gate = Gate(num_ranks=1)
    gate.attach(SimpleNamespace(recompute=lambda *what: taken_back.append(what), wake=woken.append))
    sampling = SamplingParams(structured_outputs=FORM)
    source = SimpleNamespace(eos_token_ids=())
    gate.may_start(SimpleNamespace(
        request_id="a", row=0, sampling=sampling, source=source, tokens=[1] * 5, prompt_len=3, num_tokens=5
    ))  # fmt: skip
    gate.result(msgspec.msgpack.encode([Pace("a", 0, is_slow=True)]))
    assert gate.limits(Rows()) == {0: 0}
    failed = msgspec.msgpack.encode(
        [Failed("a", 0, Fault.of(InvalidRequest("regex", "takes too long")))]
    )
    gate.result(failed)
    assert gate.limits(Rows()) == {}
    gate.result(failed)  # by the step that went without the mask
    assert taken_back == [("a", 4), ("a", 4)]
    assert woken == ["a", "a"]


def test_an_output_that_begins_again_does_not_begin_its_budget_anew() -> None:
    class Handle:
        def open(self, length: int, owner: str) -> Line:
            return Line(self, 0, length, owner)  # type: ignore[arg-type]

        def begin(self, *what: Any, skips: bool) -> None:
            """Nothing is made here."""

    def nothing(what: Any) -> None:
        """Nobody is told here."""

    handle = Handle()
    keepers: Any = SimpleNamespace(
        lock=nullcontext(), get=lambda key: handle, drop=nothing, watch=nothing
    )
    lines = Lines(keepers, nothing, 0)
    lines.update(News(soon=[Prepare("a", FORM, 5, [], [], [])]))
    lines.update(News(new=[(0, "a")]))
    first = lines[0]
    first.spent_s = 0.7
    lines.update(News(soon=[Prepare("a", FORM, 4, [], [], [])]))
    lines.update(News(new=[(0, "a")]))
    assert lines[0] is not first
    assert lines[0].spent_s == 0.7
