"""The edge: a prompt and its parameters become engine requests, or are refused with field and limit.

Every bound that depends on the model is checked here, before anything is queued, so that nothing a client
sends can reach the engine loop unchecked.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from core.contracts import AdmissionExtension, LogitsProcessor, Tokenizer
from core.errors import InvalidRequest
from core.generate import generating
from core.plugin_args import check_extra_args
from core.pooling_types import PoolingParams
from core.sampling import unserved_params
from core.step import EncoderInput, EngineRequest
from core.types import SamplingParams

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

    @property
    def max_prompt_len(self) -> int:
        """Longest prompt."""
        return self.max_model_len - self.generates


def mix_seed(seed: int, salt: int) -> int:
    """Return a 64-bit seed that depends on both numbers; equal inputs give equal seeds on every machine."""
    digest = hashlib.blake2b(struct.pack("<QQ", seed & MASK, salt & MASK), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1  # fits a signed 64-bit tensor


class Admission:
    """Checks requests against the model's limits and gives each sequence its seed."""

    def __init__(
        self,
        limits: ModelLimits,
        tokenizer: Tokenizer | None,
        processors: Iterable[type[LogitsProcessor]],
        seed: int,
        extensions: Sequence[AdmissionExtension] = (),
        read: Read = generating,
    ) -> None:
        """`read` makes the parameters of requests complete."""
        self.limits = limits
        self._tokenizer = tokenizer
        self._processors = tuple(processors)
        self._validators = tuple(p.validate for p in self._processors if hasattr(p, "validate"))
        self._preparations = tuple(p.prepare for p in self._processors if hasattr(p, "prepare"))
        self._extensions = tuple(extensions)
        self._read = read
        self._seed = seed
        self._num_admitted = 0

    def takes_time(self, sampling: SamplingParams) -> bool:
        """Say whether `admit` may need more than a moment for such parameters."""
        return any(extension.wants(sampling) for extension in self._extensions)

    def admit(
        self,
        request_id: str,
        prompt_token_ids: Sequence[int],
        params: SamplingParams | PoolingParams,
        *,
        arrival_s: float,
        priority: int = 0,
        cache_salt: str = "",
        encoder: EncoderInput | None = None,
    ) -> list[EngineRequest]:
        """Return one engine request per sequence. Raises `InvalidRequest` naming the field and the limit."""
        if not isinstance(request_id, str):
            raise InvalidRequest("request_id", f"must be a text, not {request_id!r}.")
        pooling, sampling = self._read(params)
        if type(priority) is not int:
            raise InvalidRequest("priority", f"must be an integer, not {priority!r}.")
        if sampling.bad_words_token_ids:
            raise InvalidRequest("bad_words_token_ids", "is filled by the engine; give the texts as bad_words.")
        prompt = self._fit_prompt(prompt_token_ids, sampling)
        self._check_tokens(sampling)
        self._check_logprobs(sampling)
        for name in unserved_params(sampling, (*self._processors, *self._extensions)):
            raise InvalidRequest(
                name, "no loaded logits processor serves it; `engine plugins explain logits_processors` lists them."
            )
        check_extra_args(sampling, self._processors)
        for validate in self._validators:
            validate(sampling, self.limits.vocab_size)
        if sampling.stop and self._tokenizer is None:
            raise InvalidRequest("stop", "there is no tokenizer, so texts cannot be found; use stop_token_ids.")
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
                request_id=request_id if sampling.n == 1 else f"{request_id}#{index}",
                prompt_token_ids=prompt,
                sampling=sampling,
                seed=seed if index == 0 else mix_seed(seed, index),
                max_tokens=max_tokens,
                eos_token_ids=self.limits.eos_token_ids,
                priority=priority,
                arrival_s=arrival_s,
                cache_salt=cache_salt,
                pooling=pooling,
                encoder=encoder,
            )
            for index in range(sampling.n)
        ]

    def _next_seed(self) -> int:
        self._num_admitted += 1
        return mix_seed(self._seed, self._num_admitted)

    def _fit_prompt(self, prompt_token_ids: Sequence[int], sampling: SamplingParams) -> list[int]:
        """Return the prompt as a list, truncated where the request asks for it, every id in the vocabulary."""
        prompt = list(prompt_token_ids)
        keep = sampling.truncate_prompt_tokens
        most = self.limits.max_prompt_len
        if keep is not None:
            keep = most if keep == -1 else keep
            if keep > most:
                raise InvalidRequest("truncate_prompt_tokens", f"must be at most {most} (the context), not {keep}.")
            prompt = prompt[len(prompt) - keep :] if len(prompt) > keep else prompt
        if not prompt:
            raise InvalidRequest("prompt", "is empty; at least one token is needed.")
        if len(prompt) > most:
            raise InvalidRequest(
                "prompt",
                f"has {len(prompt)} tokens, but the context holds {self.limits.max_model_len}"
                f"{' with at least one to generate' if self.limits.generates else ''}. "
                "Shorten it, or set truncate_prompt_tokens.",
            )
        vocab = self.limits.vocab_size
        for token in prompt:
            if type(token) is not int or not 0 <= token < vocab:
                raise InvalidRequest("prompt", f"token id {token!r} is outside the vocabulary of {vocab}.")
        return prompt

    def _check_tokens(self, sampling: SamplingParams) -> None:
        vocab = self.limits.vocab_size
        for field in ("stop_token_ids", "allowed_token_ids", "logit_bias"):
            for token in getattr(sampling, field) or ():
                if token >= vocab:
                    raise InvalidRequest(field, f"token id {token} is outside the vocabulary of {vocab}.")

    def _check_logprobs(self, sampling: SamplingParams) -> None:
        most = self.limits.max_logprobs
        if most == -1:
            return
        for field in ("logprobs", "prompt_logprobs"):
            wanted = getattr(sampling, field)
            if wanted is not None and (wanted > most or wanted == -1):
                shown = "the whole vocabulary" if wanted == -1 else wanted
                raise InvalidRequest(field, f"asks for {shown}, at most {most} are allowed (--max-logprobs).")
