"""Token ids to text as they come, and the texts that end it. Knows one sequence; knows no request."""

from __future__ import annotations

from codecs import utf_8_decode
from collections.abc import Mapping, Sequence
from typing import Final

from core.contracts import Tokenizer

CONTEXT_TOKENS: Final = 6
"""Prompt tokens decoded along with the first output, because leading spaces depend on what stands
before.
"""
MAX_PENDING: Final = 8
"""Tokens that may wait for the rest of a character; UTF-8 needs 4 bytes, so more than this never
completes.
"""
UNFINISHED: Final = "\N{REPLACEMENT CHARACTER}"


def detokenizer_of(
    tokenizer: Tokenizer, prompt_token_ids: Sequence[int], skip_special_tokens: bool
) -> Detokenizer | ByteDetokenizer:
    """Return what spells a sequence behind its prompt, the quick way where the tokenizer allows it."""
    joined = getattr(tokenizer, "joined_bytes", None)
    pieces = None if joined is None else joined(skip_special_tokens)
    if pieces is None:
        return Detokenizer(tokenizer, prompt_token_ids, skip_special_tokens)
    special = frozenset[int]() if skip_special_tokens else tokenizer.special_ids
    return ByteDetokenizer(pieces, special, prompt_token_ids)


class ByteDetokenizer:
    """As `Detokenizer`, for tokenizers whose texts are the bytes of their tokens joined."""

    __slots__ = ("_begun", "_pieces", "_special", "num_chars", "spans")

    def __init__(
        self, pieces: Mapping[int, bytes], special: frozenset[int], prompt_token_ids: Sequence[int]
    ) -> None:
        self._pieces = pieces
        self._special = special
        self.spans: list[tuple[int, int]] = []
        """Where in the whole text special tokens are spelled."""
        self.num_chars = 0
        """Length of the text that was returned."""
        self._begun = b""
        """Bytes of a character that is not complete."""
        self._decode(
            b"".join([pieces[token] for token in prompt_token_ids[-CONTEXT_TOKENS:]])
        )  # it may end within one

    def append(self, token_ids: Sequence[int]) -> str:
        """Take more tokens and return the text that is now certain."""
        pieces = self._pieces
        if not self._special or self._special.isdisjoint(token_ids):
            if len(token_ids) == 1:  # nearly always
                text = self._decode(pieces[token_ids[0]])
            else:
                text = self._decode(b"".join([pieces[token] for token in token_ids]))
            self.num_chars += len(text)
            return text
        out = []
        for token in token_ids:
            out.append(self._decode(pieces[token]))
            self.num_chars += len(out[-1])
            if token in self._special:
                self.spans.append(
                    (self.num_chars - len(pieces[token].decode(errors="replace")), self.num_chars)
                )
        return "".join(out)

    def flush(self) -> str:
        """Return what was held back; the sequence has ended."""
        text = self._begun.decode(errors="replace")
        self._begun = b""
        self.num_chars += len(text)
        return text

    def _decode(self, data: bytes) -> str:
        """Return the text of the characters that are complete."""
        if self._begun:
            data = self._begun + data
        text, used = utf_8_decode(data, "replace")
        self._begun = data[used:]
        return text


class Detokenizer:
    """Turns one sequence's tokens into text, without ever showing half a character.

    The texts of all `append` calls plus that of `flush` joined equal the text of all tokens decoded
    at once.
    """

    __slots__ = (
        "_read",
        "_shown",
        "_skip_special",
        "_special",
        "_tokenizer",
        "_window",
        "num_chars",
        "spans",
    )

    def __init__(
        self, tokenizer: Tokenizer, prompt_token_ids: Sequence[int], skip_special_tokens: bool
    ) -> None:
        self._tokenizer = tokenizer
        self._skip_special = skip_special_tokens
        self._special = frozenset[int]() if skip_special_tokens else tokenizer.special_ids
        self.spans: list[tuple[int, int]] = []
        """Where in the whole text special tokens are spelled."""
        self.num_chars = 0
        """Length of the text that was returned."""
        self._window = list(prompt_token_ids[-CONTEXT_TOKENS:])
        """Tokens decoded together: some already shown, as context, then those waiting."""
        self._read = len(self._window)
        """How many tokens of the window are shown."""
        self._shown = len(tokenizer.decode(self._window, skip_special_tokens))
        """Characters of the window's text that are shown."""

    def append(self, token_ids: Sequence[int]) -> str:
        """Take more tokens and return the text that is now certain."""
        out = []
        for token in token_ids:
            self._window.append(token)
            text = self._tokenizer.decode(self._window, self._skip_special)
            pending = len(self._window) - self._read
            if text.endswith(UNFINISHED) and pending <= MAX_PENDING:
                continue
            out.append(self._show(text))
            if token in self._special:
                self.spans.append(
                    (self.num_chars - len(self._tokenizer.decode([token])), self.num_chars)
                )
        return "".join(out)

    def flush(self) -> str:
        """Return what was held back; the sequence has ended."""
        if self._read == len(self._window):
            return ""
        return self._show(self._tokenizer.decode(self._window, self._skip_special))

    def _show(self, text: str) -> str:
        """Return what is new in the window's text; trim the window now and then: a token costs
        constant time.
        """
        new = text[self._shown :]
        if len(self._window) > 4 * CONTEXT_TOKENS:
            del self._window[:-CONTEXT_TOKENS]
            text = self._tokenizer.decode(self._window, self._skip_special)
        self._read = len(self._window)
        self._shown = len(text)
        self.num_chars += len(new)
        return new


class StopTexts:
    """Finds the first of several texts in a growing output, linear in its length.

    Each text has an automaton (Knuth, Morris, Pratt) that knows how much of it stands at the end of
    the output, so that a stream holds back what may yet become a stop text, and nothing else.
    """

    __slots__ = ("_fallbacks", "_include", "_matched", "_stops", "text")

    def __init__(self, stops: Sequence[str], include: bool) -> None:
        self._stops = tuple(stops)
        self._fallbacks = [_fallbacks(stop) for stop in self._stops]
        self._matched = [0] * len(self._stops)
        self._include = include
        self.text = ""

    @property
    def held_back(self) -> int:
        """Characters at the end that may yet turn out to belong to a stop text."""
        return 0 if self._include else max(self._matched, default=0)

    def append(self, text: str, may_stop: bool = True) -> str | None:
        """Add text; return the stop text that ended the output, having cut the output at it."""
        best: tuple[int, int, str] | None = None
        for i, stop in enumerate(self._stops):
            end = self._advance(i, text, may_stop)
            if end is not None:
                start = len(self.text) + end - len(stop)
                best = min(best or (start, -len(stop), stop), (start, -len(stop), stop))
        self.text += text
        if best is None:
            return None
        start, _, stop = best
        self.text = self.text[: start + len(stop)] if self._include else self.text[:start]
        return stop

    def _advance(self, i: int, text: str, may_stop: bool) -> int | None:
        """Feed text to one automaton; return how many characters of it complete the stop text, if
        any do.
        """
        stop = self._stops[i]
        fallbacks = self._fallbacks[i]
        matched = self._matched[i]
        for end, char in enumerate(text, 1):
            while matched and (matched == len(stop) or stop[matched] != char):
                matched = fallbacks[matched]
            matched += stop[matched] == char
            if may_stop and matched == len(stop):
                return end
        self._matched[i] = matched
        return None


def _fallbacks(stop: str) -> list[int]:
    """Return, for each length of a beginning, that of the longest shorter beginning that it ends
    with.
    """
    fallbacks = [0, 0]
    for char in stop[1:]:
        length = fallbacks[-1]
        while length and stop[length] != char:
            length = fallbacks[length]
        fallbacks.append(length + (stop[length] == char))
    return fallbacks
