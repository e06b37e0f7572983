"""`best_of`: more sequences are generated than the client gets, which gets the likeliest of them."""

from __future__ import annotations

from dataclasses import replace

from builtin_plugins.routes.openai.fields import CompletionFields
from core.api import CompletionOutput, InvalidRequest, RequestOutput, SamplingParams


def candidates(fields: CompletionFields, sampling: SamplingParams) -> SamplingParams:
    """Return the parameters with which as many sequences are generated as are chosen from; scored,
    where that is more.

    Raises `InvalidRequest` for a number that nothing can be chosen by.
    """
    wanted = fields.best_of
    if wanted is None or wanted == sampling.n:
        return sampling
    if wanted < sampling.n:
        raise InvalidRequest(
            "best_of",
            f"is {wanted}, and `n` asks for {sampling.n} of them; raise it, or leave it out.",
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
    return sampling.clone(n=wanted, logprobs=0 if sampling.logprobs is None else sampling.logprobs)


def best(output: RequestOutput, sampling: SamplingParams) -> list[CompletionOutput]:
    """Return the sequences a client gets, as it asked for them: those whose tokens are the
    likeliest on average.
    """
    if len(output.outputs) <= sampling.n:
        return output.outputs
    ranked = sorted(output.outputs, key=_mean_logprob, reverse=True)[: sampling.n]
    shown = [replace(completion, index=index) for index, completion in enumerate(ranked)]
    return (
        shown
        if sampling.logprobs is not None
        else [replace(completion, logprobs=None) for completion in shown]
    )


def _mean_logprob(completion: CompletionOutput) -> float:
    return (completion.cumulative_logprob or 0.0) / max(1, len(completion.token_ids))
