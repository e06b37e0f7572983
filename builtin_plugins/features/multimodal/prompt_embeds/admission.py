"""Admission half: reads a prompt's embeddings, which take the place of its tokens."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import Final

import msgspec

from builtin_plugins.features.multimodal.client_tensors import FLOATS, ClientTensor, read_tensors
from core.api import InvalidRequest
from core.api.execution import Span
from core.api.features import AdmissionContext, PendingRequest, Unsupported
from core.model_spec.tower import PROMPT_EMBEDS

MAX_BYTES: Final = 1 << 33
"""Largest size of a prompt's embeddings; --max-request-bytes bounds those over HTTP."""
PLACEHOLDER: Final = 0
"""Token id of each position, in outputs."""


class PromptEmbedsAdmission:
    """Reads `prompt_embeds` of prompt dicts."""

    prompt_keys: tuple[str, ...] = ()

    def __init__(self, *, enabled: bool) -> None:
        self._enabled = enabled

    def attach(self, context: AdmissionContext) -> None:
        """Read the width of the model's embeddings."""
        fact = context.facts.get(PROMPT_EMBEDS)
        reason = "needs an engine with enable_prompt_embeds=True (--enable-prompt-embeds)"
        if fact is None:
            reason = "is for models of the engine's own layers that generate, and this is none"
        self.unsupported = {PROMPT_EMBEDS: Unsupported(reason)}
        if self._enabled and fact is not None:
            self._width = msgspec.msgpack.decode(fact, type=int)
            self.prompt_keys = (PROMPT_EMBEDS,)

    def prepare(self, request: PendingRequest) -> PendingRequest:
        """Return the request with a placeholder token for each embedding."""
        if request.prompt_token_ids or request.text is not None:
            raise InvalidRequest(
                PROMPT_EMBEDS, "got embeddings and a prompt; expected one of them. Send two."
            )
        if request.sampling.prompt_logprobs is not None:
            raise InvalidRequest(
                "prompt_logprobs",
                "got a number for a prompt of embeddings; expected none. Remove it.",
            )
        tensor = self._tensor(request.plugin_fields[PROMPT_EMBEDS])
        data = msgspec.msgpack.encode(tensor)
        count = tensor.shape[0]
        span = Span(0, count, PROMPT_EMBEDS, hashlib.sha256(data).digest())
        return replace(
            request,
            prompt_token_ids=[PLACEHOLDER] * count,
            spans=(*request.spans, span),
            features={**request.features, PROMPT_EMBEDS: data},
        )

    def _tensor(self, value: object) -> ClientTensor:
        """Return the embeddings [tokens, hidden]. Raises `InvalidRequest`."""
        tensors = list(read_tensors(value, PROMPT_EMBEDS, PROMPT_EMBEDS, MAX_BYTES).values())
        tensor = tensors[0]
        shape = list(tensor.shape)
        is_one = len(shape) == 2 or (len(shape) == 3 and shape[0] == 1)
        if len(tensors) > 1 or tensor.dtype not in FLOATS or not is_one or shape[-1] != self._width:
            raise InvalidRequest(
                PROMPT_EMBEDS,
                f"got {len(tensors)} tensors, the first of {tensor.dtype} and shape {shape}; "
                f"expected one of floats and shape [tokens, {self._width}]. Correct it.",
            )
        if not tensor.is_finite():
            raise InvalidRequest(PROMPT_EMBEDS, "got numbers that are not finite.")
        return tensor.flat()
