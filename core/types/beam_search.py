"""Beam search: parameters, results, and the search itself, without an engine.

Matches transformers' `generate(num_beams=...)` with `early_stopping=False`: a finished
beam is ranked by its log-probability divided by a power of the number of generated
tokens. The search ends when no running beam can become better. The caller supplies the
log-probabilities.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from core.errors import InvalidRequest
from core.types.outputs import Logprob, PositionLogprobs
from core.types.sampling import SamplingParams

MAX_WIDTH: Final = 64


@dataclass(frozen=True, slots=True)
class BeamSearchParams:
    """Parameters of a beam search.

    Raises `InvalidRequest` naming a field outside its limits.
    """

    beam_width: int
    max_tokens: int
    ignore_eos: bool = False
    temperature: float = 0.0
    """Not used: beams are ranked by the model's log-probabilities."""
    length_penalty: float = 1.0
    """Exponent of the length that a log-probability is divided by; above 0
    favours long beams.
    """
    include_stop_str_in_output: bool = False
    """Keep the end-of-sequence token in text and tokens."""

    def __post_init__(self) -> None:
        if not 1 <= self.beam_width <= MAX_WIDTH:
            raise InvalidRequest("beam_width", f"must be 1 to {MAX_WIDTH}, not {self.beam_width}.")
        if self.max_tokens < 1:
            raise InvalidRequest("max_tokens", f"must be at least 1, not {self.max_tokens}.")

    @property
    def sampling(self) -> SamplingParams:
        """Parameters of one search step: one token, log-probabilities of 2 *
        width tokens.

        That many suffice even if some of them end their beams.
        """
        return SamplingParams(
            max_tokens=1, temperature=0, logprobs=2 * self.beam_width, ignore_eos=True
        )


@dataclass(slots=True)
class BeamSearchSequence:
    """One beam."""

    tokens: list[int]
    """Prompt tokens, then generated ones."""
    logprobs: list[PositionLogprobs] = field(default_factory=list)
    cum_logprob: float = 0.0
    text: str | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None


@dataclass(slots=True)
class BeamSearchOutput:
    """The beams of one prompt, best first; texts include the prompt."""

    sequences: list[BeamSearchSequence]


class BeamSearch:
    """The beam search of one prompt."""

    def __init__(
        self,
        prompt: Sequence[int],
        params: BeamSearchParams,
        ends: Collection[int],
        max_len: int,
    ) -> None:
        self._params: Final = params
        self._ends: Final = frozenset() if params.ignore_eos else frozenset(ends)
        self._prompt_len: Final = len(prompt)
        self._max_len: Final = min(len(prompt) + params.max_tokens, max_len)
        self.running = [BeamSearchSequence(list(prompt))]
        """Unfinished beams; empty when the search has ended."""
        self._finished: list[BeamSearchSequence] = []

    def advance(self, next_logprobs: Sequence[Mapping[int, Logprob]]) -> None:
        """Extend each running beam by its next-token log-probabilities, given
        in order.
        """
        width = self._params.beam_width
        candidates = [
            (beam, token, logprobs, beam.cum_logprob + logprobs[token].logprob)
            for beam, logprobs in zip(self.running, next_logprobs, strict=True)
            for token in logprobs
        ]
        candidates.sort(key=lambda candidate: candidate[3], reverse=True)
        running: list[BeamSearchSequence] = []
        for rank, (beam, token, logprobs, total) in enumerate(candidates[: 2 * width]):
            extended = BeamSearchSequence(
                [*beam.tokens, token],
                [*beam.logprobs, dict(logprobs)],
                total,
            )
            if token in self._ends:
                if rank < width:
                    extended.finish_reason = "stop"
                    extended.stop_reason = token
                    self._finished.append(extended)
            elif len(running) < width:
                running.append(extended)
        self._finished = self._best(self._finished)
        self.running = running
        if self._is_over():
            for beam in self.running:
                beam.finish_reason = "length"
            if len(self._finished) < width or self._at_max_len():
                self._finished = self._best([*self._finished, *self.running])
            self.running = []

    def best_sequences(self) -> list[BeamSearchSequence]:
        """Return the finished beams, best first."""
        if not self._params.include_stop_str_in_output:
            for beam in self._finished:
                if beam.stop_reason is not None and beam.tokens[-1] == beam.stop_reason:
                    beam.tokens.pop()
        return self._finished

    def _at_max_len(self) -> bool:
        return bool(self.running) and len(self.running[0].tokens) >= self._max_len

    def _is_over(self) -> bool:
        if not self.running or self._at_max_len():
            return True
        if len(self._finished) < self._params.beam_width:
            return False
        return self._score(self.running[0]) <= self._score(self._finished[-1])

    def _best(self, beams: list[BeamSearchSequence]) -> list[BeamSearchSequence]:
        return sorted(beams, key=self._score, reverse=True)[: self._params.beam_width]

    def _score(self, beam: BeamSearchSequence) -> float:
        length: float = (len(beam.tokens) - self._prompt_len) ** self._params.length_penalty
        return beam.cum_logprob / length
