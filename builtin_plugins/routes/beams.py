"""Beam search for one prompt of a request: what comes looks like any other request's output, and
comes at once.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from builtin_plugins.routes.conversation.running import last
from builtin_plugins.routes.many import gathered
from core.api import CompletionOutput, InvalidRequest, RequestOutput, SamplingParams
from core.familiar.beams import Beams, BeamSearchParams, BeamSearchSequence

CONTEXT_TOKENS: Final = 8
"""Of the prompt, before which no token can change how the first ones of an answer are written."""


def _params(
    engine: Any, sampling: SamplingParams, length_penalty: float, num_prompt: int
) -> BeamSearchParams:
    """Return how to search for what a request asks: `n` beams, all of which are answers.

    Raises `InvalidRequest` where the engine does not give as many log-probabilities.
    """
    most = engine.config.model.max_logprobs
    if most != -1 and 2 * sampling.n > most:
        raise InvalidRequest(
            "n",
            f"{sampling.n} beams need the log-probabilities of {2 * sampling.n} tokens, and this "
            f"server gives {most}; "
            f"ask for at most {most // 2}.",
        )
    return BeamSearchParams(
        sampling.n,
        sampling.max_tokens or max(1, engine.max_model_len - num_prompt),
        ignore_eos=sampling.ignore_eos,
        length_penalty=length_penalty,
        include_stop_str_in_output=sampling.include_stop_str_in_output,
    )


def answering(engine: Any, length_penalty: float | None) -> Any:
    """Return the engine's `generate`, or with a length penalty a beam search that is called like
    it.
    """
    return engine.generate if length_penalty is None else partial(_search, engine, length_penalty)


async def _search(
    engine: Any,
    length_penalty: float,
    prompt: Any,
    sampling: SamplingParams,
    request_id: str,
    **keywords: Any,
) -> AsyncGenerator[RequestOutput]:
    """Yield the finished output of a search. Raises as `generate` does."""
    ids: list[int] = prompt["prompt_token_ids"]
    params = _params(engine, sampling, length_penalty, len(ids))
    ends = engine.source.eos_token_ids or (engine.tokenizer.eos_token_id,)
    search = Beams(ids, params, ends, engine.max_model_len)
    step = 0
    cached = 0
    while search.running:
        step += 1
        outputs = await gathered(
            last(
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
        search.take([(output.outputs[0].logprobs or [{}])[0] for output in outputs])
    shown = _Shown(engine.tokenizer, ids, sampling)
    found = [shown.completion(i, beam) for i, beam in enumerate(search.result())]
    yield RequestOutput(request_id, None, ids, None, found, finished=True, num_cached_tokens=cached)


@dataclass(frozen=True, slots=True)
class _Shown:
    """Turns beams into what a request without them would have brought."""

    tokenizer: Any
    prompt: list[int]
    sampling: SamplingParams

    def completion(self, index: int, beam: BeamSearchSequence) -> CompletionOutput:
        """Return one answer."""
        tokens = beam.tokens[len(self.prompt) :]
        logprobs = None if self.sampling.logprobs is None else beam.logprobs[: len(tokens)]
        total = beam.cum_logprob
        reason = beam.finish_reason
        return CompletionOutput(
            index, self._text(tokens), tokens, total, logprobs, reason, None, num_tokens=len(tokens)
        )

    def _text(self, tokens: list[int]) -> str:
        """Return the text of tokens behind others: some tokenizers write the first of a text
        otherwise.
        """
        if self.tokenizer is None:
            return ""
        before = self.prompt[-CONTEXT_TOKENS:]
        skipping = self.sampling.skip_special_tokens
        begun = self.tokenizer.decode(before, skipping)
        whole: str = self.tokenizer.decode([*before, *tokens], skipping)
        return whole.removeprefix(begun)
