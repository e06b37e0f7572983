"""Token ids to text as they come, and the texts that end it. Knows one sequence; knows no request."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from core.contracts import Tokenizer

CONTEXT_TOKENS: Final = 6
"""Prompt tokens decoded along with the first output, because leading spaces depend on what stands before."""
MAX_PENDING: Final = 8
"""Tokens that may wait for the rest of a character; UTF-8 needs 4 bytes, so more than this never completes."""
UNFINISHED: Final = "\N{REPLACEMENT CHARACTER}"


class Detokenizer:
    """Turns one sequence's tokens into text, without ever showing half a character.

    The texts of all `append` calls plus that of `flush` joined equal the text of all tokens decoded at once.
    """

    __slots__ = ("_read", "_shown", "_skip_special", "_tokenizer", "_window")

    def __init__(self, tokenizer: Tokenizer, prompt_token_ids: Sequence[int], skip_special_tokens: bool) -> None:
        self._tokenizer = tokenizer
        self._skip_special = skip_special_tokens
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
            out.append(text[self._shown :])
            self._show(text)
        return "".join(out)

    def flush(self) -> str:
        """Return what was held back; the sequence has ended."""
        if self._read == len(self._window):
            return ""
        text = self._tokenizer.decode(self._window, self._skip_special)
        rest = text[self._shown :]
        self._show(text)
        return rest

    def _show(self, text: str) -> None:
        """Everything in the window is shown; trim it now and then, so that a token costs constant time."""
        if len(self._window) > 4 * CONTEXT_TOKENS:
            del self._window[:-CONTEXT_TOKENS]
            text = self._tokenizer.decode(self._window, self._skip_special)
        self._read = len(self._window)
        self._shown = len(text)


class StopTexts:
    """Finds the first of several texts in a growing output, linear in its length."""

    __slots__ = ("_include", "_longest", "_stops", "text")

    def __init__(self, stops: Sequence[str], include: bool) -> None:
        self._stops = tuple(stops)
        self._longest = max((len(stop) for stop in stops), default=0)
        self._include = include
        self.text = ""

    @property
    def held_back(self) -> int:
        """Characters at the end that may yet turn out to belong to a stop text."""
        return 0 if self._include or not self._longest else self._longest - 1

    def append(self, text: str, may_stop: bool = True) -> str | None:
        """Add text; return the stop text that ended the output, having cut the output at it."""
        start = max(0, len(self.text) - self._longest + 1)
        self.text += text
        if not text or not may_stop:
            return None
        best: tuple[int, int, str] | None = None
        for stop in self._stops:
            at = self.text.find(stop, start)
            if at >= 0 and (best is None or (at, -len(stop)) < best[:2]):
                best = (at, -len(stop), stop)
        if best is None:
            return None
        at, _, stop = best
        self.text = self.text[: at + len(stop)] if self._include else self.text[:at]
        return stop
