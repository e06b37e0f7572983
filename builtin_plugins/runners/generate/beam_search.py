"""Beam search, and its run by an offline engine.

Matches transformers' `generate(num_beams=...)` with `early_stopping=False`: a finished beam is
ranked by its log-probability divided by a power of the number of generated tokens. The search ends
when no running beam can become better. The caller supplies the log-probabilities.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Final

from core.api import InvalidRequest, Logprob, RequestOutput
from core.api.sampling import BeamSearchOutput, BeamSearchParams, BeamSearchSequence
from core.api.serving import Tokenizer

Generate = Callable[..., list[RequestOutput]]
"""`LLM.generate`."""


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


def search_beams(
    frontend: Any,
    generate: Generate,
    prompts: Sequence[Sequence[int]],
    params: BeamSearchParams,
    bar: Any,
    concurrency_limit: int | None,
    keywords: Mapping[str, Any],
) -> list[BeamSearchOutput]:
    """Return the best beams of each prompt, given as token ids; see `LLM.beam_search`."""
    limits = frontend.admission.limits
    tokenizer: Tokenizer | None = frontend.renderer.tokenizer
    num_logprobs = 2 * params.beam_width
    max_logprobs = limits.vocab_size if limits.max_logprobs == -1 else limits.max_logprobs
    if num_logprobs > max_logprobs:
        raise InvalidRequest(
            "beam_width",
            f"{params.beam_width} needs the log-probabilities of {num_logprobs} tokens, "
            f"and --max-logprobs allows {max_logprobs}; "
            f"start the engine with max_logprobs={num_logprobs}.",
        )
    searches = [
        BeamSearch(prompt, params, limits.eos_token_ids, limits.max_model_len) for prompt in prompts
    ]
    concurrency = concurrency_limit or len(searches)
    waiting = iter(searches)
    active: list[BeamSearch] = []
    while active := [*active, *islice(waiting, concurrency - len(active))]:
        _advance(generate, active, params, keywords)
        still_active = [search for search in active if search.running]
        bar.update(len(active) - len(still_active))
        active = still_active
    bar.close()
    return [BeamSearchOutput(list(_with_texts(search, tokenizer))) for search in searches]


def _advance(
    generate: Generate,
    searches: Sequence[BeamSearch],
    params: BeamSearchParams,
    keywords: Mapping[str, Any],
) -> None:
    """Compute the next token of every running beam in one call."""
    prompts = [beam.tokens for search in searches for beam in search.running]
    outputs = iter(generate(prompts, params.sampling, use_tqdm=False, **keywords))
    for search in searches:
        next_logprobs = []
        for output in islice(outputs, len(search.running)):
            if output.error is not None:
                raise output.refusal or RuntimeError(output.error)
            next_logprobs.append((output.outputs[0].logprobs or [{}])[0])
        search.advance(next_logprobs)


def _with_texts(search: BeamSearch, tokenizer: Tokenizer | None) -> Iterator[BeamSearchSequence]:
    for beam in search.best_sequences():
        beam.text = None if tokenizer is None else tokenizer.decode(beam.tokens)
        yield beam
