"""Long texts are tokenized piece by piece, no further than what is asked of them can be seen.

A piece ends at a joint: a place where, as the tokenizer says, the tokens before and behind do not
depend on each other. Knows tokenizers and texts; knows no request.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Final

from core.contracts import Tokenizer
from core.errors import InvalidRequest, prompt_too_long

CHARS_PER_TOKEN: Final = 8
"""A text with more characters than this for each token allowed is likely too long, so its beginning
is read first.
"""
PIECE_CHARS: Final = 32_768
"""A piece is this long and then goes on to the next joint."""
LEAST_CHARS: Final = 1024
RUN_CHARS: Final = 2**18
"""A text without joints may be this long where it has to be cut: more would cost others too much
time and memory.
"""
_CONTEXT_CHARS: Final = 16
"""Read before a joint, so that no piece but the first begins as a text does."""

Stopped = Callable[[], bool]


class Abandoned(Exception):
    """Nobody waits for the tokens any more."""


class Windows:
    """Tokenizes long texts with one tokenizer, as if it had read them whole."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        around = _around(tokenizer)
        self._joints: re.Pattern[str] | None = (
            None if around is None else getattr(tokenizer, "joints", None)
        )
        self._before, self._after = around or ((), ())

    def whole(self, text: str, special: bool, most: int, stopped: Stopped) -> list[int]:
        """Return all tokens. Raises `InvalidRequest` as soon as there are more than `most`."""
        if self._joints is None:
            _refuse_long(text, most, self._tokenizer)
            return self._tokenizer.encode(text, special)
        size = min(PIECE_CHARS, max(LEAST_CHARS, CHARS_PER_TOKEN * most))
        ids = list(self._before if special else ())
        start = 0
        while start < len(text):
            stop = self._joint_from(text, start + size)
            if stop - start > size + RUN_CHARS:
                raise _no_place(text)
            ids += self._read(text, start, stop, stopped)
            if len(ids) > most and stop < len(text):
                raise _too_long(text, stop, len(ids), most)
            start = stop
        return [*ids, *(self._after if special else ())]

    def end(self, text: str, special: bool, keep: int, stopped: Stopped) -> list[int]:
        """Return the last `keep` tokens, and more where that costs nothing."""
        if self._joints is None:
            return self._settled_end(text, special, keep, stopped)
        size = min(PIECE_CHARS, max(LEAST_CHARS, CHARS_PER_TOKEN * keep))
        stop = len(text)
        found = [*(self._after if special else ())]
        while stop and len(found) < keep:
            start = self._joint_until(text, stop - size)
            if stop - start > size + RUN_CHARS:
                return self._settled_end(text, special, keep, stopped)
            found = [*self._read(text, start, stop, stopped), *found]
            stop = start
        return found if stop or not special else [*self._before, *found]

    def _read(self, text: str, start: int, stop: int, stopped: Stopped) -> list[int]:
        """Return the tokens of what lies between two joints."""
        if stopped():
            raise Abandoned
        encode = self._tokenizer.encode
        context = text[max(0, start - _CONTEXT_CHARS) : start]
        ids = encode(context + text[start:stop], add_special_tokens=False)
        return ids[len(encode(context, add_special_tokens=False)) :] if context else ids

    def _joint_from(self, text: str, place: int) -> int:
        """Return the first joint at a place or behind it, or the text's end."""
        if self._joints is None or place >= len(text):
            return len(text)
        for start in range(place - 1, min(len(text), place + RUN_CHARS), LEAST_CHARS):
            # A joint is known by the character behind it, too.
            found = self._joints.search(text, start, start + LEAST_CHARS + 1)
            if found is not None:
                return found.end()
        return len(text)

    def _joint_until(self, text: str, place: int) -> int:
        """Return the last joint at a place or before it, or the text's beginning."""
        stop = place
        least = max(0, place - RUN_CHARS)
        while stop > least and self._joints is not None:
            start = max(0, stop - LEAST_CHARS)
            found = [
                match.end() for match in self._joints.finditer(text, max(0, start - 1), stop + 1)
            ]
            if found:
                return found[-1]
            stop = start
        return 0

    def _settled_end(self, text: str, special: bool, keep: int, stopped: Stopped) -> list[int]:
        """Return the last tokens of a text without joints: of ever longer ends, until three agree
        about them.
        """
        if len(text) <= RUN_CHARS:
            return self._tokenizer.encode(text, special)
        size = max(LEAST_CHARS, CHARS_PER_TOKEN * keep)
        seen = []
        while size <= max(RUN_CHARS, 8 * CHARS_PER_TOKEN * keep) and size < len(text):
            if stopped():
                raise Abandoned
            ids = self._tokenizer.encode(text[len(text) - size :], special)
            seen.append(ids[-keep:])
            if len(ids) > keep and len(seen) > 2 and seen[-1] == seen[-2] == seen[-3]:
                return ids[-keep:]
            size = (
                2 * size + 37
            )  # an odd number: what repeats must not look settled because it is cut alike
        raise _no_place(text)


def _around(tokenizer: Tokenizer) -> tuple[Sequence[int], Sequence[int]] | None:
    """Return the special tokens before and after a text; None where they cannot be told from its
    own.
    """
    bare = tokenizer.encode("a", False)
    whole = tokenizer.encode("a", True)
    places = [i for i in range(len(whole) - len(bare) + 1) if whole[i : i + len(bare)] == bare]
    return (
        (whole[: places[0]], whole[places[0] + len(bare) :]) if bare and len(places) == 1 else None
    )


def _refuse_long(text: str, most: int, tokenizer: Tokenizer) -> None:
    """Raise `InvalidRequest` where ever longer beginnings of a long text show that it has too many
    tokens.
    """
    size = CHARS_PER_TOKEN * most
    while size < len(text):
        num_tokens = len(tokenizer.encode(text[:size], add_special_tokens=False))
        if num_tokens > most + CHARS_PER_TOKEN:  # the cut itself may have split a few tokens
            raise _too_long(text, size, num_tokens, most)
        size *= CHARS_PER_TOKEN


def _too_long(text: str, size: int, num_tokens: int, most: int) -> InvalidRequest:
    return prompt_too_long(
        f"has {len(text)} characters, of which the first {size} are {num_tokens} tokens already, "
        "but the "
        f"context holds {most}."
    )


def _no_place(text: str) -> InvalidRequest:
    return InvalidRequest(
        "prompt",
        f"has {len(text)} characters, among them more than {RUN_CHARS} without a word's end, so it "
        "cannot be "
        "tokenized piece by piece. Shorten it.",
    )
