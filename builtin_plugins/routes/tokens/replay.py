"""An engine that repeats tokens of another one, and their forms in requests and answers."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from typing import Annotated, Any, Final

import msgspec

from core.api import CompletionOutput, InvalidRequest, Logprob, RequestOutput, SamplingParams
from core.api.outputs import LogprobsFormatter, OutputSequence
from core.api.serving import ServedEngine

MAX_CHOICES: Final = 1024
"""Largest number of sequences in one request."""
_ID: Final = "token_id:"
_MAX_DIGITS: Final = 20
TokenId = Annotated[int, msgspec.Meta(ge=0)]


class TokenLogprob(msgspec.Struct, kw_only=True):
    """One token's log-probability; it is named by `token_id`, or as `token_id:7` in `token`."""

    token: str = ""
    token_id: TokenId | None = None
    logprob: float = 0.0
    rank: int | None = None
    top_logprobs: list[TokenLogprob] = []

    @property
    def id(self) -> int:
        """Id of the token; -1 if it is not named."""
        if self.token_id is not None:
            return self.token_id
        digits = self.token.removeprefix(_ID)
        is_id = self.token.startswith(_ID) and digits.isdecimal() and len(digits) < _MAX_DIGITS
        return int(digits) if is_id else -1


class TokenLogprobs(msgspec.Struct, kw_only=True):
    """Log-probabilities of one sequence."""

    content: list[TokenLogprob] | None = None


class GeneratedChoice(msgspec.Struct, kw_only=True):
    """One sequence of an answer of `/inference/v1/generate`, or its new tokens."""

    index: Annotated[int, msgspec.Meta(ge=0, lt=MAX_CHOICES)] = 0
    token_ids: list[TokenId] | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    logprobs: TokenLogprobs | None = None


class Generated(msgspec.Struct, kw_only=True):
    """An answer of `/inference/v1/generate`, or one event of its stream."""

    request_id: str = ""
    choices: Annotated[list[GeneratedChoice], msgspec.Meta(max_length=MAX_CHOICES)]
    prompt_token_ids: list[TokenId] | None = None
    prompt_logprobs: Any = None
    usage: dict[str, Any] | None = None

    def check(self, field: str, engine: ServedEngine) -> None:
        """Raise `InvalidRequest` for tokens that the engine cannot have generated."""
        if len({choice.index for choice in self.choices}) < len(self.choices):
            raise InvalidRequest(f"{field}.choices", "have an index twice; expected one of each.")
        for i, choice in enumerate(self.choices):
            path = f"{field}.choices[{i}]"
            tokens = choice.token_ids or []
            check_tokens(f"{path}.token_ids", tokens, engine)
            content = None if choice.logprobs is None else choice.logprobs.content
            if content is not None and len(content) != len(tokens):
                raise InvalidRequest(
                    f"{path}.logprobs.content",
                    f"got {len(content)} entries; expected one for each of {len(tokens)} tokens.",
                )
            for entry in content or ():
                for top in entry.top_logprobs:
                    if not 0 <= top.id < engine.vocab_size:
                        raise InvalidRequest(
                            f"{path}.logprobs",
                            f"got {top.token[:80]!r}; expected a token_id of the vocabulary.",
                        )


def check_tokens(field: str, tokens: Sequence[int], engine: ServedEngine) -> None:
    """Raise `InvalidRequest` for too many tokens, and for one outside of the vocabulary."""
    if len(tokens) > engine.max_model_len:
        raise InvalidRequest(
            field, f"got {len(tokens)} tokens; expected at most {engine.max_model_len}."
        )
    if tokens and max(tokens) >= engine.vocab_size:
        raise InvalidRequest(
            field, f"got token {max(tokens)}; expected ids below {engine.vocab_size}."
        )


class ReplayEngine:
    """Answers each request with given tokens instead of generating."""

    def __init__(
        self,
        engine: ServedEngine,
        requests: Sequence[Sequence[Sequence[GeneratedChoice]]],
        context: Callable[[int], Sequence[int] | None] = lambda index: None,
    ) -> None:
        """`requests` are the outputs of each request, in order: choices, or their new tokens.

        `context` returns the tokens before a request's output, if they are not its prompt.
        """
        self._engine = engine
        self._requests = requests
        self._context = context
        self._num_requests = 0
        self._texts = LogprobsFormatter(engine.tokenizer)
        self.num_sent = 0
        """Number of outputs given so far."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def generate(
        self, prompt: Mapping[str, Any], sampling: SamplingParams, request_id: str, **keywords: Any
    ) -> AsyncGenerator[RequestOutput]:
        """Return the outputs of the next request. Stop strings had their effect elsewhere."""
        index = self._num_requests
        self._num_requests += 1
        known = self._context(index)
        ids = list(prompt["prompt_token_ids"])
        context = ids if known is None else list(known)
        return self._replay(self._requests[index], ids, context, sampling.clone(stop=[]))

    async def _replay(
        self,
        outputs: Sequence[Sequence[GeneratedChoice]],
        ids: list[int],
        context: list[int],
        sampling: SamplingParams,
    ) -> AsyncGenerator[RequestOutput]:
        sequences: dict[int, OutputSequence] = {}
        for number, choices in enumerate(outputs, 1):
            made: list[CompletionOutput] = []
            for index, choice in enumerate(choices):
                if index not in sequences:
                    sequences[index] = OutputSequence.after_prompt(
                        context, index, sampling, self._engine.tokenizer
                    )
                sequence = sequences[index]
                tokens = choice.token_ids or []
                sequence.append(tokens, choice.finish_reason, choice.stop_reason)
                if sequence.logprobs is not None:
                    sequence.logprobs += self._positions(choice)
                made.append(sequence.output(delta=True))
            self.num_sent += 1
            is_last = number == len(outputs)
            yield RequestOutput("", None, ids, None, made, finished=is_last)

    def _positions(self, choice: GeneratedChoice) -> list[dict[int, Logprob]]:
        content = None if choice.logprobs is None else choice.logprobs.content
        found = []
        for token, entry in zip(choice.token_ids or [], content or [], strict=False):
            position = {token: self._logprob(token, entry)}
            for top in entry.top_logprobs:
                position.setdefault(top.id, self._logprob(top.id, top))
            found.append(position)
        return found

    def _logprob(self, token: int, entry: TokenLogprob) -> Logprob:
        return Logprob(entry.logprob, entry.rank, *self._texts.text_and_bytes(token))
