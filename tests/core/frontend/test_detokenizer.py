"""Incremental text equals the text of all tokens, and never ends in half a character."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.frontend.text.detokenizer import Detokenizer, StopStrings
from core.testing.byte_tokenizer import ByteTokenizer


def feed(detokenizer: Detokenizer, ids: Sequence[int], cuts: Sequence[int]) -> list[str]:
    texts = []
    start = 0
    for end in [*sorted(c for c in cuts if c < len(ids)), len(ids)]:
        texts.append(detokenizer.append(ids[start:end]))
        start = end
    return [*texts, detokenizer.flush()]


@given(st.text(max_size=80), st.text(max_size=10), st.lists(st.integers(0, 300), max_size=20))
def test_joined_text_equals_decoding_all_tokens(text: str, prompt: str, cuts: list[int]) -> None:
    tokenizer = ByteTokenizer()
    ids = tokenizer.encode(text)
    assert "".join(feed(Detokenizer(tokenizer, tokenizer.encode(prompt), True), ids, cuts)) == text


@given(st.text(min_size=1, max_size=40))
def test_no_piece_ends_in_half_a_character(text: str) -> None:
    tokenizer = ByteTokenizer()
    detokenizer = Detokenizer(tokenizer, [], True)
    sent = ""
    for token in tokenizer.encode(text):
        sent += detokenizer.append([token])
        assert text.startswith(sent)
    assert sent + detokenizer.flush() == text


def test_incomplete_bytes_are_flushed_as_replacement_characters() -> None:
    detokenizer = Detokenizer(ByteTokenizer(), [], True)
    assert detokenizer.append([0xE2, 0x82]) == ""
    assert detokenizer.flush() == "\N{REPLACEMENT CHARACTER}"


def test_invalid_bytes_are_not_held_forever() -> None:
    detokenizer = Detokenizer(ByteTokenizer(), [], True)
    assert len(detokenizer.append([0x80] * 20)) > 0


@pytest.mark.parametrize(("skip", "expected"), [(True, "ab"), (False, "a<|eos|>b")])
def test_special_tokens_follow_skip_special_tokens(skip: bool, expected: str) -> None:
    assert "".join(feed(Detokenizer(ByteTokenizer(), [], skip), [97, 256, 98], [1, 2])) == expected


class TestStopStrings:
    def test_found_across_chunks_and_cut_off(self) -> None:
        stops = StopStrings(["STOP"], include=False)
        assert stops.append("one ST") is None
        assert stops.append("OP two") == "STOP"
        assert stops.text == "one "

    def test_included_with_include_stop(self) -> None:
        stops = StopStrings(["STOP"], include=True)
        assert stops.append("one STOP two") == "STOP"
        assert stops.text == "one STOP"

    def test_earliest_then_longest_stop_string_wins(self) -> None:
        stops = StopStrings(["b", "bc", "c"], include=True)
        assert stops.append("abc") == "bc"

    @given(
        st.text("ab", max_size=30),
        st.lists(st.integers(1, 30), max_size=8),
        st.text("ab", min_size=1, max_size=4),
    )
    def test_cut_does_not_depend_on_chunks(self, text: str, cuts: list[int], stop: str) -> None:
        stops = StopStrings([stop], include=False)
        found = None
        start = 0
        for end in [*sorted(cuts), len(text)]:
            found = stops.append(text[start:end])
            start = max(start, end)
            if found:
                break
        assert (found is not None) == (stop in text)
        assert stops.text == text.split(stop)[0]

    def test_only_a_possible_stop_string_is_held(self) -> None:
        stops = StopStrings(["\nUser:", "aab"], include=False)
        held = []
        for text in ("hello", "\n", "Us", "x", "a", "a", "a"):
            stops.append(text)
            held.append(stops.num_held_chars)
        assert held == [0, 1, 3, 0, 1, 2, 2]

    @given(st.text("ab", max_size=30), st.lists(st.text("ab", min_size=1, max_size=4), max_size=3))
    def test_sent_text_is_never_cut(self, text: str, stop_list: list[str]) -> None:
        stops = StopStrings(stop_list, include=False)
        sent = ""
        for char in text:
            found = stops.append(char)
            assert stops.text.startswith(sent)
            if found:
                break
            sent = stops.text[: len(stops.text) - stops.num_held_chars]
            assert not any(stop.startswith(char) for stop in stop_list) or stops.num_held_chars > 0

    def test_stop_string_may_start_before_min_tokens(self) -> None:
        stops = StopStrings(["abc"], include=False)
        assert stops.append("abcab", may_stop=False) is None
        assert stops.append("c") == "abc"
        assert stops.text == "abc"


def test_special_spans_mark_special_tokens_only() -> None:
    tokenizer = ByteTokenizer()
    special = min(tokenizer.special_ids)
    spelled = tokenizer.decode([special])
    detokenizer = Detokenizer(tokenizer, [], skip_special_tokens=False)
    text = detokenizer.append([*b"a", special, *spelled.encode(), special])
    assert text == f"a{spelled * 3}"
    size = len(spelled)
    assert detokenizer.spans == [(1, 1 + size), (1 + 2 * size, 1 + 3 * size)]
    skipping = Detokenizer(tokenizer, [], skip_special_tokens=True)
    assert (skipping.append([*b"a", special]), skipping.spans) == ("a", [])
