"""Beam search: several continuations of a prompt at once, of which the likeliest are kept after
each token.

As in transformers' `generate(num_beams=...)` with `early_stopping=False`: a finished beam counts by
its log-probability divided by a power of the number of generated tokens, and the search ends when
no running one can become better. Knows no engine: whoever searches asks for log-probabilities and
brings them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from core.errors import InvalidRequest
from core.types import SamplingParams
from core.types.outputs import PositionLogprobs

MAX_WIDTH: Final = 64


@dataclass(frozen=True, slots=True)
class BeamSearchParams:
    """How to search. Raises `InvalidRequest` naming a field outside its limits."""

    beam_width: int
    max_tokens: int
    ignore_eos: bool = False
    temperature: float = 0.0
    """Not used: beams are ranked by what the model says."""
    length_penalty: float = 1.0
    """Power of the length that the log-probability of a beam is divided by; above 0 longer ones are
    favoured.
    """
    include_stop_str_in_output: bool = False
    """The text and the tokens end with the end-of-sequence token."""

    def __post_init__(self) -> None:
        if not 1 <= self.beam_width <= MAX_WIDTH:
            raise InvalidRequest("beam_width", f"must be 1 to {MAX_WIDTH}, not {self.beam_width}.")
        if self.max_tokens < 1:
            raise InvalidRequest("max_tokens", f"must be at least 1, not {self.max_tokens}.")

    @property
    def sampling(self) -> SamplingParams:
        """What each beam is asked for: one token, and log-probabilities of enough others, should
        some of them be ends.
        """
        return SamplingParams(
            max_tokens=1, temperature=0, logprobs=2 * self.beam_width, ignore_eos=True
        )


@dataclass(slots=True)
class BeamSearchSequence:
    """One continuation."""

    tokens: list[int]
    """The prompt's, then the generated ones."""
    logprobs: list[PositionLogprobs] = field(default_factory=list)
    cum_logprob: float = 0.0
    text: str | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None


@dataclass(slots=True)
class BeamSearchOutput:
    """What was found of one prompt, best first; texts begin with the prompt."""

    sequences: list[BeamSearchSequence]


class Beams:
    """The search of one prompt."""

    def __init__(
        self, prompt: Sequence[int], params: BeamSearchParams, ends: Collection[int], max_len: int
    ) -> None:
        self._params: Final = params
        self._ends: Final = frozenset() if params.ignore_eos else frozenset(ends)
        self._prompt_len: Final = len(prompt)
        self._longest: Final = min(len(prompt) + params.max_tokens, max_len)
        self.running = [BeamSearchSequence(list(prompt))]
        """Those that a next token is wanted of; empty at the end."""
        self._finished: list[BeamSearchSequence] = []

    def take(self, found: Sequence[Mapping[int, object]]) -> None:
        """Go on with the log-probabilities of the next token of each running beam, in order."""
        width = self._params.beam_width
        made = [
            (beam, token, each, beam.cum_logprob + each[token].logprob)  # type: ignore[attr-defined]  # a Logprob
            for beam, each in zip(self.running, found, strict=True)
            for token in each
        ]
        made.sort(key=lambda one: one[3], reverse=True)
        running: list[BeamSearchSequence] = []
        for rank, (beam, token, logprobs, total) in enumerate(made[: 2 * width]):
            longer = BeamSearchSequence(
                [*beam.tokens, token], [*beam.logprobs, dict(logprobs)], total
            )  # type: ignore[arg-type]
            if token in self._ends:
                if rank < width:
                    longer.finish_reason = "stop"
                    longer.stop_reason = token
                    self._finished.append(longer)
            elif len(running) < width:
                running.append(longer)
        self._finished = self._best(self._finished)
        self.running = running
        if self._is_over():
            for beam in self.running:
                beam.finish_reason = "length"
            if len(self._finished) < width or self._at_end():
                self._finished = self._best([*self._finished, *self.running])
            self.running = []

    def result(self) -> list[BeamSearchSequence]:
        """Return the best ones, best first."""
        if not self._params.include_stop_str_in_output:
            for beam in self._finished:
                if beam.stop_reason is not None and beam.tokens[-1] == beam.stop_reason:
                    beam.tokens.pop()
        return self._finished

    def _at_end(self) -> bool:
        return bool(self.running) and len(self.running[0].tokens) >= self._longest

    def _is_over(self) -> bool:
        if not self.running or self._at_end():
            return True
        if len(self._finished) < self._params.beam_width:
            return False
        return self._score(self.running[0]) <= self._score(self._finished[-1])

    def _best(self, beams: list[BeamSearchSequence]) -> list[BeamSearchSequence]:
        return sorted(beams, key=self._score, reverse=True)[: self._params.beam_width]

    def _score(self, beam: BeamSearchSequence) -> float:
        length: float = (len(beam.tokens) - self._prompt_len) ** self._params.length_penalty
        return beam.cum_logprob / length
