"""Tokens of one sequence become what its user sees: text up to a stop text, log-probabilities with
their texts.

Knows sampling parameters and a tokenizer; knows no engine.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from core.step import Logprobs
from core.text.detokenizer import ByteDetokenizer, Detokenizer, StopTexts, detokenizer_of
from core.types import CompletionOutput, Logprob, PositionLogprobs, SamplingParams

if TYPE_CHECKING:
    from core.contracts import Tokenizer


class SpelledLogprobs:
    """Log-probabilities as users get them; remembers how tokens are spelled."""

    def __init__(self, tokenizer: Tokenizer | None) -> None:
        self._tokenizer = tokenizer
        self._texts: dict[int, str] = {}

    def at(self, position: Logprobs, wanted: int | None) -> PositionLogprobs:
        """Return the token itself and the `wanted` best ones, with their texts."""
        count = len(position.token_ids) if wanted == -1 else 1 + (wanted or 0)
        out: PositionLogprobs = {}
        for i, token in enumerate(position.token_ids[:count]):
            if token not in out:
                out[token] = Logprob(
                    position.values[i], position.rank if i == 0 else i, self._text(token)
                )
        return out

    def _text(self, token: int) -> str | None:
        if self._tokenizer is not None and token not in self._texts:
            self._texts[token] = self._tokenizer.decode([token])
        return self._texts.get(token)


@dataclass(slots=True)
class GrowingSequence:
    """One of the n sequences of a request, as it grows."""

    index: int
    sampling: SamplingParams
    detokenizer: Detokenizer | ByteDetokenizer | None
    stops: StopTexts | None
    """Holds the text, where it may end with one of several."""
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[PositionLogprobs] | None = None
    cumulative_logprob: float | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    last_token_s: float | None = None
    num_sent_tokens: int = 0
    num_sent_chars: int = 0
    _text: str = ""
    """Without stop texts: all of it, or what is new since the last of its pieces was shown."""

    @classmethod
    def behind(
        cls,
        prompt_token_ids: Sequence[int],
        index: int,
        sampling: SamplingParams,
        tokenizer: Tokenizer | None,
    ) -> GrowingSequence:
        """Return an empty sequence; its text begins where that of the prompt ends."""
        detokenizer = None
        if sampling.detokenize and tokenizer is not None:
            detokenizer = detokenizer_of(tokenizer, prompt_token_ids, sampling.skip_special_tokens)
        stops = (
            StopTexts(sampling.stop, sampling.include_stop_str_in_output) if sampling.stop else None
        )
        sequence = cls(index, sampling, detokenizer, stops)
        if sampling.logprobs is not None:
            sequence.logprobs = []
            sequence.cumulative_logprob = 0.0
        return sequence

    @property
    def ended(self) -> bool:
        """Say whether nothing more comes."""
        return self.finish_reason is not None

    def grow(
        self, token_ids: Sequence[int], finish_reason: str | None, stop_reason: int | str | None
    ) -> None:
        """Add tokens; a stop text among theirs ends the sequence, whatever the engine said of it."""
        self.token_ids += token_ids
        if finish_reason is None and self.stops is None:  # nearly always, so with few calls
            if self.detokenizer is not None:
                self._text += self.detokenizer.append(token_ids)
            return
        stop = self._grow_text(token_ids, finish_reason)
        self.finish_reason, self.stop_reason = (
            (finish_reason, stop_reason) if stop is None else ("stop", stop)
        )

    def _grow_text(self, token_ids: Sequence[int], finish_reason: str | None) -> str | None:
        if self.detokenizer is None:
            return None
        if finish_reason == "stop" and token_ids and not self.sampling.include_stop_str_in_output:
            token_ids = token_ids[:-1]  # the token that ended the output is no text, special or not
        text = self.detokenizer.append(token_ids)
        if finish_reason is not None:
            text += self.detokenizer.flush()
        if self.stops is None:
            self._text += text
            return None
        return self.stops.append(text, may_stop=len(self.token_ids) > self.sampling.min_tokens)

    def grow_logprobs(self, positions: Iterable[Logprobs], spelled: SpelledLogprobs) -> None:
        """Add what the engine says of tokens, where it was asked for."""
        if self.logprobs is None or self.cumulative_logprob is None:
            return
        for position in positions:
            self.cumulative_logprob += position.values[0]
            self.logprobs.append(spelled.at(position, self.sampling.logprobs))

    def show(self, *, delta: bool) -> CompletionOutput:
        """Return the sequence so far, or what came since the last call: always the one, or always
        the other.
        """
        tokens = self.token_ids
        logprobs = self.logprobs
        detokenizer = self.detokenizer
        start_char, start_token = (self.num_sent_chars, self.num_sent_tokens) if delta else (0, 0)
        if self.stops is None:
            text = self._text
            if delta:
                self._text = ""
        else:
            text = self._certain(self.stops)[start_char:]
        self.num_sent_chars = start_char + len(text)
        self.num_sent_tokens = len(tokens)
        spans = detokenizer.spans if detokenizer is not None and detokenizer.spans else ()
        # by place: for each token of each stream, names would take twice as long
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
            self._shifted(spans, start_char) if spans else (),
        )

    def _certain(self, stops: StopTexts) -> str:
        """Return the text without what may yet become a stop text, or a part of one."""
        text = stops.text
        if self.finish_reason is not None or not stops.held_back:
            return text
        end = len(text) - stops.held_back
        spans = [] if self.detokenizer is None else self.detokenizer.spans
        around = bisect_left(spans, (end,)) - 1
        if around >= 0 and end < spans[around][1]:  # half a special token would pass for text
            end = spans[around][0]
        return text[: max(end, self.num_sent_chars)]

    def _shifted(self, spans: Sequence[tuple[int, int]], start: int) -> list[tuple[int, int]]:
        """Return the spans from `start` on that were shown whole, counted from there."""
        first = bisect_left(spans, (start,))
        return [(a - start, b - start) for a, b in spans[first:] if b <= self.num_sent_chars]
