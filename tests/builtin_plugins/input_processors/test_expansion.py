"""Placeholders of a prompt become the texts of its items; the same texts of users stay."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from builtin_plugins.input_processors.api import ProcessedItem, expand_ids, expand_text
from core.api import InvalidRequest
from core.api.serving import RenderedText

IMAGE = "<image>"
PLACES = {"image": IMAGE}
SPECIAL = re.compile("<image>|<row>")


def item(count: int) -> ProcessedItem:
    return ProcessedItem("image", f"\n{IMAGE * count}<row>\n", count, {})


def rendered(*parts: str) -> RenderedText:
    """Return a conversation in which the parts that are placeholders are the template's."""
    spans = []
    text = ""
    for part in parts:
        if part == IMAGE:
            spans.append((len(text), len(text) + len(part)))
        text += part
    return RenderedText(text, spans)


def test_placeholder_becomes_the_text_of_its_item() -> None:
    found = expand_text(rendered("a ", IMAGE, " b"), [item(2)], PLACES, SPECIAL)
    assert found == "a \n<image><image><row>\n b"
    assert [found[start:stop] for start, stop in found.control_spans] == [IMAGE, IMAGE, "<row>"]


@given(
    st.lists(st.text("ab<image>"), min_size=1, max_size=5),
    st.lists(st.integers(1, 4), min_size=5, max_size=5),
)
def test_placeholders_that_users_write_stay_text(texts: list[str], counts: list[int]) -> None:
    texts = [f"{text}{IMAGE} written" for text in texts]
    parts = [part for text in texts for part in (text, IMAGE)]
    items = [item(count) for count, _ in zip(counts, texts, strict=False)]
    found = expand_text(rendered(*parts), items, PLACES, SPECIAL)
    expected = "".join(text + each.text for text, each in zip(texts, items, strict=True))
    assert str(found) == expected
    own = [str(found)[slice(*span)] for span in found.control_spans]
    assert own.count(IMAGE) == sum(each.num_tokens for each in items)


@pytest.mark.parametrize("count", [0, 2])
def test_numbers_of_placeholders_and_items_must_agree(count: int) -> None:
    with pytest.raises(InvalidRequest, match="placeholders '<image>' for"):
        expand_text(rendered("a", IMAGE), [item(1)] * count, PLACES, SPECIAL)
    with pytest.raises(InvalidRequest, match="1 placeholders '7' for"):
        expand_ids([1, 7], [(item(1), [7])] * count, {"image": 7})


def test_ids_are_replaced_in_order() -> None:
    pairs = [(item(1), [7, 7, 9]), (item(1), [7])]
    assert expand_ids([1, 7, 2, 7], pairs, {"image": 7}) == [1, 7, 7, 9, 2, 7]
