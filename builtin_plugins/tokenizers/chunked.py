"""Tokenizes long texts in chunks, and only as far as needed.

A chunk ends at a split point: a position where, according to the tokenizer, the tokens
on both sides do not depend on each other. Knows tokenizers and texts; knows no
requests.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Final

from core.api import InvalidRequest, prompt_too_long
from core.api.serving import RenderedText, Tokenizer

CHARS_PER_TOKEN: Final = 8
"""Characters per allowed token from which a text is likely too long, so its
start is read first.
"""
CHUNK_CHARS: Final = 32_768
"""Size of a chunk, which extends to the next split point."""
MIN_CHARS: Final = 1024
RUN_CHARS: Final = 2**18
"""Maximum distance between split points in a text that must be split.

Longer runs would cost too much time and memory.
"""
_CONTEXT_CHARS: Final = 16
"""Characters read before a split point, so that no later chunk starts like a
text.
"""

Stopped = Callable[[], bool]
"""Returns True once the client has left."""


class Abandoned(Exception):
    """The client has left; the tokens are not needed any more."""


class ChunkedTokenizer:
    """Tokenizes long texts in chunks, with the same tokens as the whole text
    has.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._split_points: re.Pattern[str] | None = None
        self._before: Sequence[int] = ()
        self._after: Sequence[int] = ()
        special = special_tokens_around(tokenizer)
        if special is not None:
            self._before, self._after = special
            self._split_points = getattr(tokenizer, "split_points", None)

    def encode(self, text: str, special: bool, limit: int, stopped: Stopped) -> list[int]:
        """Return all tokens.

        Raises `InvalidRequest` as soon as there are more than `limit`.
        """
        if self._split_points is None:
            _check_length(text, limit, self._tokenizer)
            return _encode(self._tokenizer, text, special)
        size = min(CHUNK_CHARS, max(MIN_CHARS, CHARS_PER_TOKEN * limit))
        ids = list(self._before if special else ())
        start = 0
        while start < len(text):
            stop = self._split_after(text, start + size)
            if stop - start > size + RUN_CHARS:
                raise _no_split_point(text)
            ids += self._encode_chunk(text, start, stop, stopped)
            if len(ids) > limit and stop < len(text):
                raise _too_long(text, stop, len(ids), limit)
            start = stop
        return [*ids, *(self._after if special else ())]

    def encode_end(self, text: str, special: bool, keep: int, stopped: Stopped) -> list[int]:
        """Return the last `keep` tokens, and more if they cost nothing."""
        if self._split_points is None:
            return self._encode_stable_end(text, special, keep, stopped)
        size = min(CHUNK_CHARS, max(MIN_CHARS, CHARS_PER_TOKEN * keep))
        stop = len(text)
        found = [*(self._after if special else ())]
        while stop and len(found) < keep:
            start = self._split_before(text, stop - size)
            if stop - start > size + RUN_CHARS:
                return self._encode_stable_end(text, special, keep, stopped)
            found = [*self._encode_chunk(text, start, stop, stopped), *found]
            stop = start
        return found if stop or not special else [*self._before, *found]

    def _encode_chunk(self, text: str, start: int, stop: int, stopped: Stopped) -> list[int]:
        """Return the tokens between two split points."""
        if stopped():
            raise Abandoned
        first = max(0, start - _CONTEXT_CHARS)
        ids = _encode(self._tokenizer, text[first:stop], False)
        if first == start:
            return ids
        return ids[len(_encode(self._tokenizer, text[first:start], False)) :]

    def _split_after(self, text: str, position: int) -> int:
        """Return the first split point at or after a position, or the text's
        end.
        """
        if self._split_points is None or position >= len(text):
            return len(text)
        end = min(len(text), position + RUN_CHARS)
        for start in range(position - 1, end, MIN_CHARS):
            # A match also sees the character after the split point.
            found = self._split_points.search(text, start, start + MIN_CHARS + 1)
            if found is not None:
                return found.end()
        return len(text)

    def _split_before(self, text: str, position: int) -> int:
        """Return the last split point at or before a position, or the text's
        start.
        """
        if self._split_points is None:
            return 0
        stop = position
        lowest = max(0, position - RUN_CHARS)
        while stop > lowest:
            start = max(0, stop - MIN_CHARS)
            matches = self._split_points.finditer(text, max(0, start - 1), stop + 1)
            found = [match.end() for match in matches]
            if found:
                return found[-1]
            stop = start
        return 0

    def _encode_stable_end(
        self, text: str, special: bool, keep: int, stopped: Stopped
    ) -> list[int]:
        """Return the last tokens of a text without split points.

        Tokenizes ever longer ends until three of them agree.
        """
        if len(text) <= RUN_CHARS:
            return _encode(self._tokenizer, text, special)
        size = max(MIN_CHARS, CHARS_PER_TOKEN * keep)
        max_size = max(RUN_CHARS, 8 * CHARS_PER_TOKEN * keep)
        seen: list[list[int]] = []
        while size <= max_size and size < len(text):
            if stopped():
                raise Abandoned
            ids = _encode(self._tokenizer, text[len(text) - size :], special)
            seen.append(ids[-keep:])
            if len(ids) > keep and len(seen) > 2 and seen[-1] == seen[-2] == seen[-3]:
                return ids[-keep:]
            # odd, so that periodic text is not cut at equal phases
            size = 2 * size + 37
        raise _no_split_point(text)


def _encode(tokenizer: Tokenizer, text: str, special: bool) -> list[int]:
    encode = getattr(tokenizer, "encode_rendered", None)
    if isinstance(text, RenderedText) and encode is not None:
        return list(encode(text, special))
    return tokenizer.encode(text, special)


def special_tokens_around(tokenizer: Tokenizer) -> tuple[Sequence[int], Sequence[int]] | None:
    """Return the special tokens before and after a text; None if they are
    ambiguous.
    """
    bare = tokenizer.encode("a", False)
    whole = tokenizer.encode("a", True)
    size = len(bare)
    offsets = [i for i in range(len(whole) - size + 1) if whole[i : i + size] == bare]
    if not bare or len(offsets) != 1:
        return None
    return whole[: offsets[0]], whole[offsets[0] + size :]


def _check_length(text: str, limit: int, tokenizer: Tokenizer) -> None:
    """Raise `InvalidRequest` if ever longer starts of a long text show too
    many tokens.
    """
    size = CHARS_PER_TOKEN * limit
    while size < len(text):
        num_tokens = len(_encode(tokenizer, text[:size], False))
        # the cut may have split a few tokens
        if num_tokens > limit + CHARS_PER_TOKEN:
            raise _too_long(text, size, num_tokens, limit)
        size *= CHARS_PER_TOKEN


def _too_long(text: str, size: int, num_tokens: int, limit: int) -> InvalidRequest:
    return prompt_too_long(
        f"has {len(text)} characters, of which the first {size} are {num_tokens} tokens already, "
        f"but the context holds {limit}."
    )


def _no_split_point(text: str) -> InvalidRequest:
    return InvalidRequest(
        "prompt",
        f"has {len(text)} characters, among them more than {RUN_CHARS} without a word's end, "
        "so it cannot be tokenized piece by piece. Shorten it.",
    )
