"""Incremental text equals the text of all tokens at once, and never shows half a character."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.testing.byte_tokenizer import ByteTokenizer
from core.text.detokenizer import Detokenizer, StopTexts


def feed(detokenizer: Detokenizer, ids: Sequence[int], cuts: Sequence[int]) -> list[str]:
    texts = []
    start = 0
    for end in [*sorted(c for c in cuts if c < len(ids)), len(ids)]:
        texts.append(detokenizer.append(ids[start:end]))
        start = end
    return [*texts, detokenizer.flush()]


@given(st.text(max_size=80), st.text(max_size=10), st.lists(st.integers(0, 300), max_size=20))
def test_joined_text_equals_decoding_everything(text: str, prompt: str, cuts: list[int]) -> None:
    tokenizer = ByteTokenizer()
    ids = tokenizer.encode(text)
    assert "".join(feed(Detokenizer(tokenizer, tokenizer.encode(prompt), True), ids, cuts)) == text


@given(st.text(min_size=1, max_size=40))
def test_no_piece_ends_in_half_a_character(text: str) -> None:
    tokenizer = ByteTokenizer()
    detokenizer = Detokenizer(tokenizer, [], True)
    shown = ""
    for token in tokenizer.encode(text):
        shown += detokenizer.append([token])
        assert text.startswith(shown)
    assert shown + detokenizer.flush() == text


def test_bytes_that_never_become_a_character_are_shown_in_the_end() -> None:
    detokenizer = Detokenizer(ByteTokenizer(), [], True)
    assert detokenizer.append([0xE2, 0x82]) == ""
    assert detokenizer.flush() == "\N{REPLACEMENT CHARACTER}"


def test_broken_bytes_do_not_hold_text_back_for_ever() -> None:
    detokenizer = Detokenizer(ByteTokenizer(), [], True)
    assert len(detokenizer.append([0x80] * 20)) > 0


@pytest.mark.parametrize(("skip", "expected"), [(True, "ab"), (False, "a<|eos|>b")])
def test_special_tokens_are_shown_only_when_asked_for(skip: bool, expected: str) -> None:
    assert "".join(feed(Detokenizer(ByteTokenizer(), [], skip), [97, 256, 98], [1, 2])) == expected


class TestStopTexts:
    def test_found_across_pieces_and_cut_off(self) -> None:
        stops = StopTexts(["STOP"], include=False)
        assert stops.append("one ST") is None
        assert stops.append("OP two") == "STOP"
        assert stops.text == "one "

    def test_kept_when_asked_for(self) -> None:
        stops = StopTexts(["STOP"], include=True)
        assert stops.append("one STOP two") == "STOP"
        assert stops.text == "one STOP"

    def test_the_earliest_of_several_wins_and_the_longest_at_one_place(self) -> None:
        stops = StopTexts(["b", "bc", "c"], include=True)
        assert stops.append("abc") == "bc"

    @given(
        st.text("ab", max_size=30),
        st.lists(st.integers(1, 30), max_size=8),
        st.text("ab", min_size=1, max_size=4),
    )
    def test_same_cut_however_the_text_is_split(
        self, text: str, cuts: list[int], stop: str
    ) -> None:
        stops = StopTexts([stop], include=False)
        found = None
        start = 0
        for end in [*sorted(cuts), len(text)]:
            found = stops.append(text[start:end])
            start = max(start, end)
            if found:
                break
        assert (found is not None) == (stop in text)
        assert stops.text == text.split(stop)[0]

    def test_only_what_may_become_a_stop_text_is_held_back(self) -> None:
        stops = StopTexts(["\nUser:", "aab"], include=False)
        held = []
        for text in ("hello", "\n", "Us", "x", "a", "a", "a"):
            stops.append(text)
            held.append(stops.held_back)
        assert held == [0, 1, 3, 0, 1, 2, 2]

    @given(st.text("ab", max_size=30), st.lists(st.text("ab", min_size=1, max_size=4), max_size=3))
    def test_what_was_shown_is_never_taken_back(self, text: str, given_stops: list[str]) -> None:
        stops = StopTexts(given_stops, include=False)
        shown = ""
        for char in text:
            found = stops.append(char)
            assert stops.text.startswith(shown)
            if found:
                break
            shown = stops.text[: len(stops.text) - stops.held_back]
            assert not any(stop.startswith(char) for stop in given_stops) or stops.held_back > 0

    def test_a_text_may_begin_before_stopping_is_allowed(self) -> None:
        stops = StopTexts(["abc"], include=False)
        assert stops.append("abcab", may_stop=False) is None
        assert stops.append("c") == "abc"
        assert stops.text == "abc"


def test_spelled_special_tokens_are_marked_and_texts_like_them_are_not() -> None:
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
