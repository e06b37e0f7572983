"""Beam search: parameters and results; the runner searches."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from core.errors import InvalidRequest
from core.types.outputs import PositionLogprobs
from core.types.sampling import SamplingParams

MAX_WIDTH: Final = 64


@dataclass(frozen=True, slots=True)
class BeamSearchParams:
    """Parameters of a beam search. Raises `InvalidRequest` naming a field outside its limits."""

    beam_width: int
    max_tokens: int
    ignore_eos: bool = False
    temperature: float = 0.0
    """Not used: beams are ranked by the model's log-probabilities."""
    length_penalty: float = 1.0
    """Exponent of the length that a log-probability is divided by; above 0 favours long beams."""
    include_stop_str_in_output: bool = False
    """Keep the end-of-sequence token in text and tokens."""

    def __post_init__(self) -> None:
        if not 1 <= self.beam_width <= MAX_WIDTH:
            raise InvalidRequest("beam_width", f"must be 1 to {MAX_WIDTH}, not {self.beam_width}.")
        if self.max_tokens < 1:
            raise InvalidRequest("max_tokens", f"must be at least 1, not {self.max_tokens}.")

    @property
    def sampling(self) -> SamplingParams:
        """Parameters of one search step: one token, log-probabilities of 2 * width tokens.

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
