"""Stop strings count in the answer only, whatever the chunks of the output."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from builtin_plugins.output_parsers.api import REASONING_BOUNDS, ReasoningBounds
from builtin_plugins.output_parsers.reasoning.admission import ReasoningAdmission
from builtin_plugins.output_parsers.reasoning.answer_finder import MarkerAnswerFinder
from core.api import InvalidRequest, SamplingParams
from core.api.features import PendingRequest
from core.frontend.text.detokenizer import StopStrings

BOUNDS = ReasoningBounds(starts=("<t>",), ends=("</t>", "</t2>"), at_start="optional")


class TestStopStringsAfterReasoning:
    @given(
        st.lists(st.sampled_from(["<t>", "</t>", "</t2>", "Q:", "Q", "<", "t>", " ", "x"])),
        st.sampled_from(["inside", "optional", "outside"]),
        st.booleans(),
        st.lists(st.integers(1, 30), max_size=8),
    )
    def test_cut_is_in_the_answer_and_independent_of_chunks(
        self, parts: list[str], at_start: Any, resumes: bool, cuts: list[int]
    ) -> None:
        bounds = msgspec.structs.replace(BOUNDS, at_start=at_start, resumes=resumes)
        text = "".join(parts)
        found = [self.read(bounds, text, given) for given in (cuts, [], range(len(text)))]
        assert found[0] == found[1] == found[2]
        visible, stop = found[0]
        assert text.startswith(visible)
        pieces = [*MarkerAnswerFinder(bounds).split(text)]
        has_stop = any("Q:" in piece for piece, is_answer in pieces if is_answer)
        assert (stop is not None) == has_stop
        assert has_stop or visible == text

    def read(
        self, bounds: ReasoningBounds, text: str, cuts: Sequence[int]
    ) -> tuple[str, str | None]:
        stops = StopStrings(["Q:"], False, MarkerAnswerFinder(bounds))
        start = 0
        sent = ""
        for end in [*sorted(cuts), len(text)]:
            found = stops.append(text[start:end])
            start = max(start, end)
            assert stops.text.startswith(sent)
            if found:
                return stops.text, found
            sent = stops.text[: len(stops.text) - stops.num_held_chars]
        found = stops.flush()
        return stops.text, found

    @pytest.mark.parametrize(
        ("text", "visible"),
        [
            ("<t>Q:</t>a Q: b", "<t>Q:</t>a "),
            (" <t>Q:</t2>Q:", " <t>Q:</t2>"),
            ("a <t>Q:", "a <t>"),
            ("<Q:", "<"),
            ("<t>Q: no end", "<t>Q: no end"),
        ],
    )
    def test_reasoning_has_no_stops(self, text: str, visible: str) -> None:
        assert self.read(BOUNDS, text, [])[0] == visible


def pending(bounds: Any) -> PendingRequest:
    return PendingRequest(
        request_id="r",
        prompt_token_ids=[1],
        sampling=SamplingParams(stop=["Q:"]),
        plugin_fields={REASONING_BOUNDS: bounds},
        features={"other": b"1"},
    )


def test_admission_sends_bounds_to_scheduler_and_one_finder_per_sequence():
    request = asyncio.run(ReasoningAdmission().prepare(pending(BOUNDS)))
    assert request.answer_finder is not None
    assert request.answer_finder() is not request.answer_finder()
    assert request.features["other"] == b"1"
    sent = request.features[REASONING_BOUNDS]
    assert msgspec.msgpack.decode(sent, type=ReasoningBounds) == BOUNDS


def test_bounds_of_another_type_are_refused_by_name():
    with pytest.raises(InvalidRequest, match="reasoning_bounds: got"):
        asyncio.run(ReasoningAdmission().prepare(pending({"ends": ["</t>"]})))
