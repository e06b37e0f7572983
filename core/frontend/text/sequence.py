"""The output of one sequence: text up to a stop string, and log-probabilities
with their texts.

Knows sampling parameters and a tokenizer; knows no engine.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from core.frontend.text.detokenizer import (
    ByteDetokenizer,
    Detokenizer,
    StopStrings,
    make_detokenizer,
)
from core.step import Logprobs
from core.types import CompletionOutput, Logprob, PositionLogprobs, SamplingParams

if TYPE_CHECKING:
    from core.contracts.text import AnswerFinder, Tokenizer


class LogprobsFormatter:
    """Adds the texts of tokens to log-probabilities; caches the texts."""

    def __init__(self, tokenizer: Tokenizer | None) -> None:
        self._tokenizer = tokenizer
        self._known: dict[int, tuple[str | None, bytes | None]] = {}

    def format(self, position: Logprobs, num_top: int | None) -> PositionLogprobs:
        """Return the token and the `num_top` most likely ones (-1: all), with their texts."""
        count = len(position.token_ids) if num_top == -1 else 1 + (num_top or 0)
        out: PositionLogprobs = {}
        for i, token in enumerate(position.token_ids[:count]):
            if token not in out:
                rank = position.rank if i == 0 else i
                text, data = self.text_and_bytes(token)
                out[token] = Logprob(position.values[i], rank, text, data)
        return out

    def text_and_bytes(self, token: int) -> tuple[str | None, bytes | None]:
        """Return what a token adds to a text; None without a tokenizer."""
        found = self._known.get(token)
        if found is None:
            found = self._known[token] = self._read(token)
        return found

    def _read(self, token: int) -> tuple[str | None, bytes | None]:
        tokenizer = self._tokenizer
        if tokenizer is None:
            return None, None
        spell: Any = getattr(tokenizer, "token_bytes", None)
        data: bytes = b"" if spell is None else spell(token)
        if data:
            return data.decode(errors="replace"), data
        # a special token may add nothing
        text = tokenizer.decode([token])
        return text, text.encode(errors="replace")


@dataclass(slots=True)
class OutputSequence:
    """One of the n sequences of a request, as it grows."""

    index: int
    sampling: SamplingParams
    detokenizer: Detokenizer | ByteDetokenizer | None
    """None for an output without text."""
    stops: StopStrings | None
    """Stop strings with the text; None for a request without stop strings."""
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[PositionLogprobs] | None = None
    cumulative_logprob: float | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    last_token_s: float | None = None
    """Time of the newest token."""
    num_sent_tokens: int = 0
    """Number of tokens in outputs so far."""
    num_sent_chars: int = 0
    """Number of characters in outputs so far."""
    _text: str = ""
    """Text without stop strings: all of it, or with deltas only its unsent
    end.
    """

    @classmethod
    def after_prompt(
        cls,
        prompt_token_ids: Sequence[int],
        index: int,
        sampling: SamplingParams,
        tokenizer: Tokenizer | None,
        answer_finder: Callable[[], AnswerFinder] | None = None,
    ) -> OutputSequence:
        """Return an empty sequence. Its text continues that of the prompt."""
        detokenizer = None
        if sampling.detokenize and tokenizer is not None:
            detokenizer = make_detokenizer(
                tokenizer, prompt_token_ids, sampling.skip_special_tokens
            )
        stops = None
        if sampling.stop:
            answer = None if answer_finder is None else answer_finder()
            stops = StopStrings(sampling.stop, sampling.include_stop_str_in_output, answer)
        sequence = cls(index, sampling, detokenizer, stops)
        if sampling.logprobs is not None:
            sequence.logprobs = []
            sequence.cumulative_logprob = 0.0
        return sequence

    def append(
        self,
        token_ids: Sequence[int],
        finish_reason: str | None,
        stop_reason: int | str | None,
    ) -> None:
        """Add tokens; a stop string in their text ends the sequence before `finish_reason`."""
        self.token_ids += token_ids
        # the hot path: few calls
        if finish_reason is None and self.stops is None:
            if self.detokenizer is not None:
                self._text += self.detokenizer.append(token_ids)
            return
        stop = self._append_text(token_ids, finish_reason)
        if stop is None:
            self.finish_reason = finish_reason
            self.stop_reason = stop_reason
        else:
            self.finish_reason = "stop"
            self.stop_reason = stop

    def _append_text(self, token_ids: Sequence[int], finish_reason: str | None) -> str | None:
        if self.detokenizer is None:
            return None
        keeps_stop = self.sampling.include_stop_str_in_output
        if finish_reason == "stop" and token_ids and not keeps_stop:
            # the stop token is not part of the text
            token_ids = token_ids[:-1]
        text = self.detokenizer.append(token_ids)
        if finish_reason is not None:
            text += self.detokenizer.flush()
        if self.stops is None:
            self._text += text
            return None
        may_stop = len(self.token_ids) > self.sampling.min_tokens
        stop = self.stops.append(text, may_stop)
        if stop is None and finish_reason is not None:
            stop = self.stops.flush(may_stop)
        return stop

    def append_logprobs(self, positions: Iterable[Logprobs], formatter: LogprobsFormatter) -> None:
        """Add log-probabilities, if the request has them."""
        if self.logprobs is None or self.cumulative_logprob is None:
            return
        for position in positions:
            self.cumulative_logprob += position.values[0]
            self.logprobs.append(formatter.format(position, self.sampling.logprobs))

    def output(self, *, delta: bool) -> CompletionOutput:
        """Return the sequence so far, or the delta since the last call; use only one."""
        tokens = self.token_ids
        logprobs = self.logprobs
        detokenizer = self.detokenizer
        start_char = self.num_sent_chars if delta else 0
        start_token = self.num_sent_tokens if delta else 0
        if self.stops is None:
            text = self._text
            if delta:
                self._text = ""
        else:
            text = self._certain_text(self.stops)[start_char:]
        self.num_sent_chars = start_char + len(text)
        self.num_sent_tokens = len(tokens)
        spans = detokenizer.spans if detokenizer is not None and detokenizer.spans else ()
        # positional: keywords would double the cost per streamed token
        return CompletionOutput(
            self.index,
            text,
            tokens[start_token:],
            self.cumulative_logprob,
            None if logprobs is None else logprobs[start_token:],
            self.finish_reason,
            self.stop_reason,
            None,  # lora_request
            len(tokens),
            self._spans_from(spans, start_char) if spans else (),
        )

    def _certain_text(self, stops: StopStrings) -> str:
        """Return the text without an end that may become a stop string or a part of one."""
        text = stops.text
        if self.finish_reason is not None or not stops.num_held_chars:
            return text
        end = len(text) - stops.num_held_chars
        spans = [] if self.detokenizer is None else self.detokenizer.spans
        previous = bisect_left(spans, (end,)) - 1
        # never send half a special token
        if previous >= 0 and end < spans[previous][1]:
            end = spans[previous][0]
        return text[: max(end, self.num_sent_chars)]

    def _spans_from(self, spans: Sequence[tuple[int, int]], start: int) -> list[tuple[int, int]]:
        """Return the completely sent spans from `start` on, relative to it."""
        first = bisect_left(spans, (start,))
        return [(a - start, b - start) for a, b in spans[first:] if b <= self.num_sent_chars]
