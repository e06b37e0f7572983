"""Beam search over an offline engine: computes the next token of all running
beams at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Any

from core.contracts import Tokenizer
from core.errors import InvalidRequest
from core.frontend.admission import ModelLimits
from core.frontend.terminal import progress_bar
from core.types import PromptType, RequestOutput
from core.types.beam_search import (
    BeamSearch,
    BeamSearchOutput,
    BeamSearchParams,
    BeamSearchSequence,
)

Generate = Callable[..., list[RequestOutput]]
"""`LLM.generate`."""


def search_beams(
    generate: Generate,
    prompts: Sequence[Sequence[int]],
    params: BeamSearchParams,
    limits: ModelLimits,
    tokenizer: Tokenizer | None,
    *,
    use_tqdm: bool,
    concurrency_limit: int | None,
    keywords: dict[str, Any],
) -> list[BeamSearchOutput]:
    """Return the best beams of each prompt, given as token ids; see
    `LLM.beam_search`.
    """
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
    bar = progress_bar(use_tqdm, len(searches))
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
    keywords: dict[str, Any],
) -> None:
    """Compute the next token of every running beam in one call."""
    prompts: list[PromptType] = [beam.tokens for search in searches for beam in search.running]
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
