"""Admission: turns a prompt and its parameters into engine requests, or
refuses them.

Every bound that depends on the model is checked here, before anything is queued.
Nothing that a client sends reaches the engine loop unchecked.
"""

from __future__ import annotations

import hashlib
import struct
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from core.contracts.admission import Messages, PendingRequest
from core.contracts.sampling import LogitsProcessor
from core.contracts.text import Tokenizer
from core.errors import InvalidRequest, prompt_too_long, run_all
from core.frontend.preparation import Extensions, RequestPreparer
from core.step import EngineRequest
from core.types import SamplingParams
from core.types.plugin_params import KnownNames, check_extra_args, unsupported_params
from core.types.pooling import PoolingParams
from core.types.prompts import Prompt
from core.types.sampling import require_sampling_params

MASK: Final = 2**64 - 1
ReadParams = Callable[[Any], tuple[PoolingParams | None, SamplingParams]]
"""Returns a request's complete parameters. Raises `InvalidRequest`."""


@dataclass(frozen=True, slots=True)
class ModelLimits:
    """Limits of requests that depend on the model."""

    vocab_size: int
    max_model_len: int
    max_logprobs: int
    eos_token_ids: tuple[int, ...]
    generates: bool = True
    """True: at least one token follows each prompt."""
    shortened_by: str = ""
    """Reason in brackets why the context is shorter than the model's; follows
    its length.
    """

    @property
    def max_prompt_len(self) -> int:
        """Maximum prompt length, in tokens."""
        return self.max_model_len - self.generates


def read_sampling_params(params: Any) -> tuple[PoolingParams | None, SamplingParams]:
    """Return the parameters. Raises `InvalidRequest` for anything else."""
    return None, require_sampling_params(params)


def mix_seed(seed: int, salt: int) -> int:
    """Return a 64-bit seed that depends on both numbers, equally on every
    machine.
    """
    digest = hashlib.blake2b(struct.pack("<QQ", seed & MASK, salt & MASK), digest_size=8).digest()
    # fits a signed 64-bit tensor
    return int.from_bytes(digest, "little") >> 1


class Admission:
    """Validates requests against the model's limits and gives each sequence
    its seed.
    """

    def __init__(
        self,
        limits: ModelLimits,
        tokenizer: Tokenizer | None,
        processors: Iterable[type[LogitsProcessor]],
        seed: int,
        extensions: Extensions = (),
        read_params: ReadParams = read_sampling_params,
    ) -> None:
        """`extensions` are attached already; each comes with the blame for its plugin."""
        self.limits = limits
        self._tokenizer = tokenizer
        self._processors = tuple(processors)
        self._validators = tuple(p.validate for p in self._processors if hasattr(p, "validate"))
        self._preparations = tuple(p.prepare for p in self._processors if hasattr(p, "prepare"))
        listed = [each for _, each in extensions]
        self._extensions = tuple(each for each in listed if hasattr(each, "affects"))
        self._readers = [each.read_messages for each in listed if hasattr(each, "read_messages")]
        self._closing = [each.close for each in listed if hasattr(each, "close")]
        self._serving = (*self._processors, *(e for e in listed if hasattr(e, "params")))
        self.preparer = RequestPreparer(extensions)
        """Runs the admission extensions; requests pass it before `admit`."""
        self._keywords = KnownNames.collect(listed, "keywords", "fields")
        self.fields = KnownNames.collect(listed, "fields")
        """HTTP request fields that extensions read, in addition to the route's own."""
        self._read_params = read_params
        self._seed = seed
        self._num_admitted = 0

    def close(self) -> None:
        """Close the extensions, once."""
        closing, self._closing = self._closing, []
        run_all(closing)

    def is_slow(self, sampling: SamplingParams) -> bool:
        """Return whether `admit` may be slow for these parameters."""
        return any(extension.affects(sampling) for extension in self._extensions)

    def select_known(
        self,
        keywords: Mapping[str, Any],
        own: Collection[str] = (),
        hints: Collection[str] = (),
    ) -> dict[str, Any]:
        """Return the keywords that extensions read; see `KnownNames.select_known`."""
        what = "is no keyword of this call, and no plugin reads it"
        return self._keywords.select_known(keywords, own, what, hints)

    def read_messages(self, messages: Messages) -> tuple[Messages, dict[str, Any]]:
        """Return messages to render, and extensions' prompt keys of them."""
        fields: dict[str, Any] = {}
        for read in self._readers:
            messages, own = read(messages)
            fields |= own
        return messages, fields

    def pending_request(
        self,
        request_id: str,
        prompt: Prompt,
        params: Any,
        priority: int,
        plugin_fields: Mapping[str, Any],
        salt: str = "",
    ) -> PendingRequest:
        """Return a request that arrives now, to be prepared and admitted.

        `plugin_fields` are keywords from `select_known`.
        """
        if not isinstance(request_id, str):
            raise InvalidRequest("request_id", f"must be a text, not {request_id!r}.")
        pooling, sampling = self._read_params(params)
        if type(priority) is not int:
            raise InvalidRequest("priority", f"must be an integer, not {priority!r}.")
        return PendingRequest(
            request_id=request_id,
            prompt_token_ids=prompt.token_ids,
            sampling=sampling,
            pooling=pooling,
            plugin_fields={**plugin_fields, **prompt.plugin_fields},
            text=prompt.text,
            arrival_s=time.monotonic(),
            priority=priority,
            cache_salt=salt or prompt.cache_salt,
        )

    def admit(self, request: PendingRequest) -> list[EngineRequest]:
        """Return one engine request per sequence. Raises `InvalidRequest` naming the field."""
        sampling = request.sampling
        if sampling.bad_words_token_ids:
            raise InvalidRequest(
                "bad_words_token_ids", "is filled by the engine; give the texts as bad_words."
            )
        prompt = self._fit_prompt(request)
        self._check_tokens(sampling)
        self._check_logprobs(sampling)
        sampling = self._prepare_sampling(sampling)
        room = max(1, self.limits.max_model_len - len(prompt))
        max_tokens = room if sampling.max_tokens is None else min(sampling.max_tokens, room)
        seed = self._next_seed() if sampling.seed is None else sampling.seed & (MASK >> 1)
        return [
            EngineRequest(
                request_id=_engine_id(request.request_id, sampling.n, index),
                prompt_token_ids=prompt,
                sampling=sampling,
                seed=seed if index == 0 else mix_seed(seed, index),
                max_tokens=max_tokens,
                eos_token_ids=self.limits.eos_token_ids,
                priority=request.priority,
                arrival_s=request.arrival_s,
                cache_salt=request.cache_salt,
                cache_domains=request.cache_domains,
                spans=request.spans,
                pooling=request.pooling,
                features=dict(request.features),
                num_encoder_positions=request.num_encoder_positions,
            )
            for index in range(sampling.n)
        ]

    def _prepare_sampling(self, sampling: SamplingParams) -> SamplingParams:
        """Return the parameters after all checks and changes."""
        for name in unsupported_params(sampling, self._serving):
            raise InvalidRequest(
                name,
                "no loaded logits processor supports it; "
                "`engine plugins explain logits_processors` lists them.",
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
            if extension.affects(sampling):
                sampling = extension.admit(sampling, self.limits.eos_token_ids)
        return sampling

    def _next_seed(self) -> int:
        self._num_admitted += 1
        return mix_seed(self._seed, self._num_admitted)

    def _fit_prompt(self, request: PendingRequest) -> list[int]:
        """Return the prompt tokens, validated and truncated as requested."""
        prompt = list(request.prompt_token_ids)
        keep = request.sampling.truncate_prompt_tokens
        limit = self.limits.max_prompt_len
        if keep is not None:
            keep = limit if keep == -1 else keep
            if keep > limit:
                raise InvalidRequest(
                    "truncate_prompt_tokens", f"must be at most {limit} (the context), not {keep}."
                )
            if request.spans and len(prompt) > keep:
                raise InvalidRequest(
                    "truncate_prompt_tokens", "cannot cut a prompt with contents besides text."
                )
            prompt = prompt[len(prompt) - keep :] if len(prompt) > keep else prompt
        if not prompt:
            raise InvalidRequest("prompt", "is empty; at least one token is needed.")
        if len(prompt) > limit:
            raise prompt_too_long(
                f"has {len(prompt)} tokens, but the context holds {self.limits.max_model_len}"
                f"{self.limits.shortened_by}"
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
        limit = self.limits.max_logprobs
        if limit == -1:
            return
        for field in ("logprobs", "prompt_logprobs"):
            requested = getattr(sampling, field)
            if requested is not None and (requested > limit or requested == -1):
                count = "the whole vocabulary" if requested == -1 else requested
                raise InvalidRequest(
                    field, f"requests {count}, at most {limit} are allowed (--max-logprobs)."
                )


def _engine_id(request_id: str, num_sequences: int, index: int) -> str:
    return request_id if num_sequences == 1 else f"{request_id}#{index}"
