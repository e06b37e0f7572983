"""The edge: a prompt and its parameters become engine requests, or are refused with field and
limit.

Every bound that depends on the model is checked here, before anything is queued, so that nothing a
client sends can reach the engine loop unchecked.
"""

from __future__ import annotations

import hashlib
import struct
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from core.contracts import Draft, LogitsProcessor, Tokenizer
from core.engine.completion import Completion, Extensions
from core.errors import InvalidRequest, prompt_too_long
from core.step import EngineRequest
from core.text.prompts import Prompt
from core.types import SamplingParams
from core.types.asked import check_extra_args, unserved_params
from core.types.keywords import Names
from core.types.pooling import PoolingParams
from core.types.sampling import require_sampling_params

MASK: Final = 2**64 - 1
Read = Callable[[Any], tuple[PoolingParams | None, SamplingParams]]


@dataclass(frozen=True, slots=True)
class ModelLimits:
    """What the model bounds."""

    vocab_size: int
    max_model_len: int
    max_logprobs: int
    eos_token_ids: tuple[int, ...]
    generates: bool = True
    """A token follows each prompt at least."""
    shortened_by: str = ""
    """Why the context is shorter than the model was made for, as a bracket to be read behind its
    length.
    """

    @property
    def max_prompt_len(self) -> int:
        """Longest prompt."""
        return self.max_model_len - self.generates


def mix_seed(seed: int, salt: int) -> int:
    """Return a 64-bit seed that depends on both numbers; equal inputs give equal seeds on every
    machine.
    """
    digest = hashlib.blake2b(struct.pack("<QQ", seed & MASK, salt & MASK), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1  # fits a signed 64-bit tensor


def _generating(params: Any) -> tuple[None, SamplingParams]:
    return None, require_sampling_params(params)


class Admission:
    """Checks requests against the model's limits and gives each sequence its seed."""

    def __init__(
        self,
        limits: ModelLimits,
        tokenizer: Tokenizer | None,
        processors: Iterable[type[LogitsProcessor]],
        seed: int,
        extensions: Extensions = (),
        read: Read = _generating,
    ) -> None:
        """`read` makes the parameters of requests complete; `extensions` are attached, each with
        what blames its plugin.
        """
        self.limits = limits
        self._tokenizer = tokenizer
        self._processors = tuple(processors)
        self._validators = tuple(p.validate for p in self._processors if hasattr(p, "validate"))
        self._preparations = tuple(p.prepare for p in self._processors if hasattr(p, "prepare"))
        listed = [each for _, each in extensions]
        self._extensions = tuple(each for each in listed if hasattr(each, "wants"))
        self._serving = (*self._processors, *(each for each in listed if hasattr(each, "params")))
        self.completion = Completion(extensions)
        """What drafts go through before `admit`."""
        self._keywords = Names.of(listed, "keywords", "fields")
        self.fields = Names.of(listed, "fields")
        """What requests over HTTP may have besides their routes' own fields."""
        self._read = read
        self._seed = seed
        self._num_admitted = 0

    def takes_time(self, sampling: SamplingParams) -> bool:
        """Say whether `admit` may need more than a moment for such parameters."""
        return any(extension.wants(sampling) for extension in self._extensions)

    def sieve(
        self, keywords: Mapping[str, Any], own: Collection[str] = (), hints: Collection[str] = ()
    ) -> dict[str, Any]:
        """Return those keywords of a call that extensions read; as `Names.sieve`."""
        what = "is no keyword of this call, and no plugin reads it"
        return self._keywords.sieve(keywords, own, what, hints)

    def draft(
        self,
        request_id: str,
        prompt: Prompt,
        params: Any,
        priority: int,
        given: Mapping[str, Any],
        salt: str = "",
    ) -> Draft:
        """Return a request that arrives now, to be completed and admitted; `given` are keywords, as
        sieved.
        """
        if not isinstance(request_id, str):
            raise InvalidRequest("request_id", f"must be a text, not {request_id!r}.")
        pooling, sampling = self._read(params)
        if type(priority) is not int:
            raise InvalidRequest("priority", f"must be an integer, not {priority!r}.")
        return Draft(
            request_id=request_id,
            prompt_token_ids=prompt.token_ids,
            sampling=sampling,
            pooling=pooling,
            given={**given, **prompt.given},
            text=prompt.text,
            arrival_s=time.monotonic(),
            priority=priority,
            cache_salt=salt or prompt.cache_salt,
        )

    def admit(self, draft: Draft) -> list[EngineRequest]:
        """Return one engine request per sequence.

        Raises `InvalidRequest` naming the field and the limit.
        """
        sampling = draft.sampling
        if sampling.bad_words_token_ids:
            raise InvalidRequest(
                "bad_words_token_ids", "is filled by the engine; give the texts as bad_words."
            )
        prompt = self._fit_prompt(draft)
        self._check_tokens(sampling)
        self._check_logprobs(sampling)
        for name in unserved_params(sampling, self._serving):
            raise InvalidRequest(
                name,
                "no loaded logits processor serves it; `engine plugins explain logits_processors` "
                "lists them.",
            )
        check_extra_args(sampling, self._processors)
        for validate in self._validators:
            validate(sampling, self.limits.vocab_size)
        if sampling.stop and self._tokenizer is None:
            raise InvalidRequest(
                "stop", "there is no tokenizer, so texts cannot be found; use stop_token_ids."
            )
        for prepare in self._preparations:
            sampling = prepare(sampling, self._tokenizer)
        for extension in self._extensions:
            if extension.wants(sampling):
                sampling = extension.admit(sampling, self.limits.eos_token_ids)
        room = max(1, self.limits.max_model_len - len(prompt))
        max_tokens = room if sampling.max_tokens is None else min(sampling.max_tokens, room)
        seed = self._next_seed() if sampling.seed is None else sampling.seed & (MASK >> 1)
        return [
            EngineRequest(
                request_id=draft.request_id if sampling.n == 1 else f"{draft.request_id}#{index}",
                prompt_token_ids=prompt,
                sampling=sampling,
                seed=seed if index == 0 else mix_seed(seed, index),
                max_tokens=max_tokens,
                eos_token_ids=self.limits.eos_token_ids,
                priority=draft.priority,
                arrival_s=draft.arrival_s,
                cache_salt=draft.cache_salt,
                cache_domains=draft.cache_domains,
                spans=draft.spans,
                pooling=draft.pooling,
                features=dict(draft.features),
                beside=draft.beside,
            )
            for index in range(sampling.n)
        ]

    def _next_seed(self) -> int:
        self._num_admitted += 1
        return mix_seed(self._seed, self._num_admitted)

    def _fit_prompt(self, draft: Draft) -> list[int]:
        """Return the prompt as a list, truncated where the request asks for it, every id in the
        vocabulary.
        """
        prompt = list(draft.prompt_token_ids)
        keep = draft.sampling.truncate_prompt_tokens
        most = self.limits.max_prompt_len
        if keep is not None:
            keep = most if keep == -1 else keep
            if keep > most:
                raise InvalidRequest(
                    "truncate_prompt_tokens", f"must be at most {most} (the context), not {keep}."
                )
            if draft.spans and len(prompt) > keep:
                raise InvalidRequest(
                    "truncate_prompt_tokens", "cannot cut a prompt with contents besides text."
                )
            prompt = prompt[len(prompt) - keep :] if len(prompt) > keep else prompt
        if not prompt:
            raise InvalidRequest("prompt", "is empty; at least one token is needed.")
        if len(prompt) > most:
            raise prompt_too_long(
                f"has {len(prompt)} tokens, but the context holds "
                f"{self.limits.max_model_len}{self.limits.shortened_by}"
                f"{' with at least one to generate' if self.limits.generates else ''}."
            )
        vocab = self.limits.vocab_size
        for token in prompt:
            if type(token) is not int or not 0 <= token < vocab:
                raise InvalidRequest(
                    "prompt", f"token id {token!r} is outside the vocabulary of {vocab}."
                )
        return prompt

    def _check_tokens(self, sampling: SamplingParams) -> None:
        vocab = self.limits.vocab_size
        for field in ("stop_token_ids", "allowed_token_ids", "logit_bias"):
            for token in getattr(sampling, field) or ():
                if token >= vocab:
                    raise InvalidRequest(
                        field, f"token id {token} is outside the vocabulary of {vocab}."
                    )

    def _check_logprobs(self, sampling: SamplingParams) -> None:
        most = self.limits.max_logprobs
        if most == -1:
            return
        for field in ("logprobs", "prompt_logprobs"):
            wanted = getattr(sampling, field)
            if wanted is not None and (wanted > most or wanted == -1):
                shown = "the whole vocabulary" if wanted == -1 else wanted
                raise InvalidRequest(
                    field, f"asks for {shown}, at most {most} are allowed (--max-logprobs)."
                )
