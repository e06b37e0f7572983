"""Beam search for one prompt of a request, with the signature of the engine's `generate`."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from builtin_plugins.routes.common.concurrency import gather_bounded
from builtin_plugins.routes.common.requests import final_output
from builtin_plugins.runners.api import BeamSearch
from core.api import CompletionOutput, InvalidRequest, RequestOutput, SamplingParams
from core.api.sampling import BeamSearchParams, BeamSearchSequence
from core.api.serving import ServedEngine

CONTEXT_TOKENS: Final = 8
"""Prompt tokens decoded with an answer; earlier ones cannot change how its first tokens decode."""


def generate_or_search(engine: ServedEngine, length_penalty: float | None) -> Any:
    """Return the engine's `generate`, or a beam search with the same signature.

    `length_penalty` selects the beam search.
    """
    return engine.generate if length_penalty is None else partial(_search, engine, length_penalty)


def _params(
    engine: ServedEngine, sampling: SamplingParams, length_penalty: float, num_prompt: int
) -> BeamSearchParams:
    """Return the search parameters of a request: `n` beams, each of which becomes an answer.

    Raises `InvalidRequest` if the search needs more log-probabilities than the engine returns.
    """
    maximum = engine.config.model.max_logprobs
    if maximum != -1 and 2 * sampling.n > maximum:
        raise InvalidRequest(
            "n",
            f"{sampling.n} beams need the log-probabilities of {2 * sampling.n} tokens, "
            f"and this server gives {maximum}; reduce `n` to {maximum // 2}.",
        )
    return BeamSearchParams(
        sampling.n,
        sampling.max_tokens or max(1, engine.max_model_len - num_prompt),
        ignore_eos=sampling.ignore_eos,
        length_penalty=length_penalty,
        include_stop_str_in_output=sampling.include_stop_str_in_output,
    )


async def _search(
    engine: ServedEngine,
    length_penalty: float,
    prompt: Any,
    sampling: SamplingParams,
    request_id: str,
    **keywords: Any,
) -> AsyncGenerator[RequestOutput]:
    """Yield one finished output. Raises as `generate` does."""
    ids: list[int] = prompt["prompt_token_ids"]
    params = _params(engine, sampling, length_penalty, len(ids))
    tokenizer: Any = engine.tokenizer
    ends = engine.source.eos_token_ids or (tokenizer.eos_token_id,)
    search = BeamSearch(ids, params, ends, engine.max_model_len)
    step = 0
    cached = 0
    while search.running:
        step += 1
        outputs = await gather_bounded(
            final_output(
                engine.generate(
                    {"prompt_token_ids": beam.tokens},
                    params.sampling,
                    f"{request_id}-{step}-{i}",
                    **keywords,
                )
            )
            for i, beam in enumerate(search.running)
        )
        if step == 1:
            cached = outputs[0].num_cached_tokens or 0
        search.advance([(output.outputs[0].logprobs or [{}])[0] for output in outputs])
    builder = _CompletionBuilder(tokenizer, ids, sampling)
    found = [builder.completion(i, beam) for i, beam in enumerate(search.best_sequences())]
    yield RequestOutput(request_id, None, ids, None, found, finished=True, num_cached_tokens=cached)


@dataclass(frozen=True, slots=True)
class _CompletionBuilder:
    """Converts beams to completions."""

    tokenizer: Any
    prompt: list[int]
    sampling: SamplingParams

    def completion(self, index: int, beam: BeamSearchSequence) -> CompletionOutput:
        """Return the completion of one beam."""
        tokens = beam.tokens[len(self.prompt) :]
        logprobs = None if self.sampling.logprobs is None else beam.logprobs[: len(tokens)]
        return CompletionOutput(
            index,
            self._text(tokens),
            tokens,
            beam.cum_logprob,
            logprobs,
            beam.finish_reason,
            None,
            num_tokens=len(tokens),
        )

    def _text(self, tokens: list[int]) -> str:
        """Return the text of tokens that follow the prompt.

        Some tokenizers decode the first token of a text differently from one in the middle.
        """
        if self.tokenizer is None:
            return ""
        context = self.prompt[-CONTEXT_TOKENS:]
        skipping = self.sampling.skip_special_tokens
        prefix = self.tokenizer.decode(context, skipping)
        whole: str = self.tokenizer.decode([*context, *tokens], skipping)
        return whole.removeprefix(prefix)
