"""`best_of`: generates more sequences than requested, and returns the likeliest of them."""

from __future__ import annotations

from dataclasses import replace

from builtin_plugins.routes.openai.fields import CompletionFields
from core.api import CompletionOutput, InvalidRequest, RequestOutput, SamplingParams


def candidate_params(fields: CompletionFields, sampling: SamplingParams) -> SamplingParams:
    """Return the sampling parameters that generate all candidates.

    Candidates have log-probabilities if there are more of them than `n`. Raises `InvalidRequest` if
    `best_of` conflicts with another field.
    """
    best_of = fields.best_of
    if best_of is None or best_of == sampling.n:
        return sampling
    if best_of < sampling.n:
        raise InvalidRequest(
            "best_of",
            f"is {best_of}, and `n` is {sampling.n}; raise it, or leave it out.",
        )
    if fields.stream:
        raise InvalidRequest(
            "best_of",
            "is known when all sequences have ended; set `stream` to false, or leave it out.",
        )
    if fields.use_beam_search:
        raise InvalidRequest(
            "best_of", "belongs to sampling, and `use_beam_search` finds the likeliest by itself."
        )
    logprobs = 0 if sampling.logprobs is None else sampling.logprobs
    return sampling.clone(n=best_of, logprobs=logprobs)


def select_best(output: RequestOutput, sampling: SamplingParams) -> list[CompletionOutput]:
    """Return the `n` sequences with the highest mean log-probability, in the requested form."""
    if len(output.outputs) <= sampling.n:
        return output.outputs
    ranked = sorted(output.outputs, key=_mean_logprob, reverse=True)[: sampling.n]
    best = [replace(completion, index=index) for index, completion in enumerate(ranked)]
    if sampling.logprobs is not None:
        return best
    return [replace(completion, logprobs=None) for completion in best]


def _mean_logprob(completion: CompletionOutput) -> float:
    return (completion.cumulative_logprob or 0.0) / max(1, len(completion.token_ids))
