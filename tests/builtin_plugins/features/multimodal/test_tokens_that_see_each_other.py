"""Runs of tokens that see each other: what a step computes together, and what blocks name."""

from __future__ import annotations

import msgspec

from builtin_plugins.features.multimodal.admission import joint_span
from builtin_plugins.features.multimodal.messages import ItemRun, RequestItem, RequestItems

RUNS = [(2, 6), (9, 12), (12, 15)]
TOKENS = list(range(20))


def message(*, sees_all: bool, last: bytes = b"c") -> RequestItems:
    items = [
        RequestItem("image", name, end - start, [ItemRun(start, end - start, 0)])
        for name, (start, end) in zip((b"a", b"b", last), RUNS, strict=True)
    ]
    return RequestItems("", "", items, RUNS, sees_all)


def test_runs_that_see_all_runs_are_one_unit_with_the_text_between_them() -> None:
    assert message(sees_all=True).units() == [(2, 15)]
    assert message(sees_all=False).units() == RUNS
    assert msgspec.structs.replace(message(sees_all=True), look_ahead=[]).units() == []


def test_tokens_of_a_run_see_the_later_runs_without_the_text_between_them() -> None:
    together = message(sees_all=True)
    assert together.later(6) == ((9, 12), (12, 15))
    assert together.later(15) == ()
    assert message(sees_all=False).later(6) == ()


def test_cached_blocks_before_an_image_depend_on_all_later_images_and_the_text_between() -> None:
    span = joint_span(TOKENS, message(sees_all=True))
    assert (span.start, span.length) == (2, 13)
    assert joint_span([*TOKENS, 1], message(sees_all=True)) == span
    others = [
        joint_span(TOKENS, message(sees_all=True, last=b"d")),
        joint_span([*TOKENS[:7], 0, *TOKENS[8:]], message(sees_all=True)),
    ]
    assert all(other != span for other in others)
