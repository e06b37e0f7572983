"""Incremental detokenization, and stop strings. Knows one sequence."""

from __future__ import annotations

from codecs import utf_8_decode
from collections.abc import Mapping, Sequence
from typing import Final

from core.contracts.text import AnswerFinder, Tokenizer

CONTEXT_TOKENS: Final = 6
"""Number of prompt tokens decoded with the first output: leading spaces
depend on them.
"""
MAX_PENDING: Final = 8
"""Maximum number of tokens that wait for the rest of a character.

UTF-8 needs up to 4 bytes; more tokens than this never complete one.
"""
UNFINISHED: Final = "\N{REPLACEMENT CHARACTER}"


def make_detokenizer(
    tokenizer: Tokenizer, prompt_token_ids: Sequence[int], skip_special_tokens: bool
) -> Detokenizer | ByteDetokenizer:
    """Return a detokenizer for the output after a prompt; the fast one if
    possible.
    """
    joined = getattr(tokenizer, "joined_bytes", None)
    pieces = None if joined is None else joined(skip_special_tokens)
    if pieces is None:
        return Detokenizer(tokenizer, prompt_token_ids, skip_special_tokens)
    special = frozenset[int]() if skip_special_tokens else tokenizer.special_ids
    return ByteDetokenizer(pieces, special, prompt_token_ids)


class ByteDetokenizer:
    """A fast `Detokenizer` for tokenizers that join the bytes of tokens to a
    text.
    """

    __slots__ = ("_partial", "_pieces", "_special", "num_chars", "spans")

    def __init__(
        self, pieces: Mapping[int, bytes], special: frozenset[int], prompt_token_ids: Sequence[int]
    ) -> None:
        self._pieces = pieces
        self._special = special
        self.spans: list[tuple[int, int]] = []
        """Character ranges of special tokens in the whole text."""
        self.num_chars = 0
        """Number of characters returned so far."""
        self._partial = b""
        """Bytes of an incomplete character."""
        # The prompt may end inside a character.
        self._decode(b"".join([pieces[token] for token in prompt_token_ids[-CONTEXT_TOKENS:]]))

    def append(self, token_ids: Sequence[int]) -> str:
        """Add tokens; return the new text, without incomplete characters."""
        pieces = self._pieces
        if not self._special or self._special.isdisjoint(token_ids):
            if len(token_ids) == 1:  # the hot path
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
                length = len(pieces[token].decode(errors="replace"))
                self.spans.append((self.num_chars - length, self.num_chars))
        return "".join(out)

    def flush(self) -> str:
        """Return the remaining text at the end of the sequence."""
        text = self._partial.decode(errors="replace")
        self._partial = b""
        self.num_chars += len(text)
        return text

    def _decode(self, data: bytes) -> str:
        """Return the text of the complete characters."""
        if self._partial:
            data = self._partial + data
        text, used = utf_8_decode(data, "replace")
        self._partial = data[used:]
        return text


class Detokenizer:
    """Turns one sequence's tokens into text, without ever returning half a
    character.

    The texts of all `append` calls and of `flush` joined equal the text of all tokens
    at once.
    """

    __slots__ = (
        "_num_read",
        "_num_sent",
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
        """Character ranges of special tokens in the whole text."""
        self.num_chars = 0
        """Number of characters returned so far."""
        self._window = list(prompt_token_ids[-CONTEXT_TOKENS:])
        """Tokens decoded together: sent ones as context, then pending ones."""
        self._num_read = len(self._window)
        """Number of sent tokens in the window."""
        self._num_sent = len(tokenizer.decode(self._window, skip_special_tokens))
        """Number of sent characters of the window's text."""

    def append(self, token_ids: Sequence[int]) -> str:
        """Add tokens; return the new text, without incomplete characters."""
        out = []
        for token in token_ids:
            self._window.append(token)
            text = self._tokenizer.decode(self._window, self._skip_special)
            pending = len(self._window) - self._num_read
            if text.endswith(UNFINISHED) and pending <= MAX_PENDING:
                continue
            out.append(self._new_text(text))
            if token in self._special:
                length = len(self._tokenizer.decode([token]))
                self.spans.append((self.num_chars - length, self.num_chars))
        return "".join(out)

    def flush(self) -> str:
        """Return the remaining text at the end of the sequence."""
        if self._num_read == len(self._window):
            return ""
        return self._new_text(self._tokenizer.decode(self._window, self._skip_special))

    def _new_text(self, text: str) -> str:
        """Return the new part of the window's text; trims the window for constant cost."""
        new = text[self._num_sent :]
        if len(self._window) > 4 * CONTEXT_TOKENS:
            del self._window[:-CONTEXT_TOKENS]
            text = self._tokenizer.decode(self._window, self._skip_special)
        self._num_read = len(self._window)
        self._num_sent = len(text)
        self.num_chars += len(new)
        return new


class StopStrings:
    """Finds the first stop string in a growing output, in linear time.

    Each stop string has a Knuth-Morris-Pratt automaton that tracks how much of it the
    output ends with. A stream holds back only characters that may become part of a stop
    string.
    """

    __slots__ = ("_answer", "_fallbacks", "_include", "_matched", "_stops", "text")

    def __init__(
        self, stops: Sequence[str], include: bool, answer: AnswerFinder | None = None
    ) -> None:
        """`answer`: finds the text in which stop strings count; default: all text."""
        self._answer = answer
        self._stops = tuple(stops)
        self._fallbacks = [_fallbacks(stop) for stop in self._stops]
        self._matched = [0] * len(self._stops)
        self._include = include
        self.text = ""

    @property
    def num_held_chars(self) -> int:
        """Number of characters at the end that may become part of a stop string."""
        return 0 if self._include else max(self._matched, default=0)

    def append(self, text: str, may_stop: bool = True) -> str | None:
        """Add text; return the stop string that ended the output and was cut off, if any."""
        if self._answer is None:
            return self._append_answer(text, may_stop)
        for piece, is_answer in self._answer.split(text):
            if is_answer:
                stop = self._append_answer(piece, may_stop)
                if stop is not None:
                    return stop
            else:
                self.text += piece
                self._matched = [0] * len(self._stops)
        return None

    def flush(self, may_stop: bool = True) -> str | None:
        """Add the undecided text at the end of the output; return as `append`."""
        return None if self._answer is None else self._append_answer(self._answer.flush(), may_stop)

    def _append_answer(self, text: str, may_stop: bool) -> str | None:
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
        """Advance one automaton; return the number of characters that complete its string."""
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
    """Return the KMP failure function: per prefix length, its longest proper
    border.
    """
    fallbacks = [0, 0]
    for char in stop[1:]:
        length = fallbacks[-1]
        while length and stop[length] != char:
            length = fallbacks[length]
        fallbacks.append(length + (stop[length] == char))
    return fallbacks
