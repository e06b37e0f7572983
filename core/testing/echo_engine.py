"""An engine without a model, for tests of HTTP routes: it repeats the prompt byte by byte."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

from core.config import EngineConfig
from core.contracts.clients import State
from core.errors import EngineDead, InvalidRequest
from core.frontend.metrics import MetricSinks
from core.plugin import load_plan
from core.plugin.plan import PluginPlan
from core.testing.byte_tokenizer import ByteTokenizer
from core.types import CompletionOutput, Logprob, RequestOutput, RequestOutputKind, SamplingParams
from core.types.plugin_params import KnownNames


class EchoEngine:
    """A `ServedEngine` in one asyncio loop, without threads."""

    def __init__(self, config: EngineConfig | None = None, max_model_len: int = 256) -> None:
        self.config = config or EngineConfig()
        self.source = SimpleNamespace(name="echo", path=None)
        self.registry = load_plan(PluginPlan(plugins=()))
        self.tokenizer = ByteTokenizer()
        self.renderer = None
        self.max_model_len = max_model_len
        self.pooling = None
        self.vocab_size = ByteTokenizer.vocab_size
        self.served_names = ["echo"]
        self.sampling_defaults: dict[str, Any] = {}
        self.fields = KnownNames()
        self.sinks = MetricSinks()
        self.gate = asyncio.Event()
        """Requests wait while this is cleared."""
        self.gate.set()
        self.sampling: list[SamplingParams] = []
        """Parameters of every request, in order of arrival."""
        self.options: list[dict[str, Any]] = []
        """Keywords of every request."""
        self.rendered: list[dict[str, Any]] = []
        """Options of every `render_chat`."""
        self.aborted: list[str] = []
        """Ids of aborted requests."""
        self.open: list[str] = []
        """Ids of unfinished requests."""
        self.status: State = "ready"
        self.fail_at: int | None = None
        """Token index at which requests fail inside the engine."""

    async def tokenize(
        self, text: str, add_special_tokens: bool = True, **reading: Any
    ) -> list[int]:
        """Return the bytes of the text."""
        return self.tokenizer.encode(text)

    async def render_chat(
        self, messages: Sequence[Mapping[str, Any]], **options: Any
    ) -> tuple[str, list[int]]:
        """Return the last message's content as the prompt."""
        self.rendered.append(options)
        content = messages[-1].get("content")
        if not isinstance(content, str):
            raise InvalidRequest(f"messages[{len(messages) - 1}].content", "must be a text.")
        return content, self.tokenizer.encode(content)

    async def generate(
        self, prompt: Any, sampling_params: SamplingParams, request_id: str, **options: Any
    ) -> AsyncIterator[RequestOutput]:
        """Answer with the prompt itself, one token at a time."""
        ids = prompt["prompt_token_ids"] if isinstance(prompt, Mapping) else list(prompt)
        if len(ids) >= self.max_model_len:
            raise InvalidRequest(
                "prompt", f"has {len(ids)} tokens, the context holds {self.max_model_len}."
            )
        self.sampling.append(sampling_params)
        self.options.append(options)
        last = len(ids)
        if sampling_params.max_tokens is not None:
            last = min(last, sampling_params.max_tokens)
        delta = sampling_params.output_kind is RequestOutputKind.DELTA
        finished = False
        self.open.append(request_id)
        try:
            for at in range(last) if delta else (last - 1,):
                await self.gate.wait()
                await asyncio.sleep(0)
                finished = at == last - 1
                error = "made to fail" if self.fail_at is not None and at >= self.fail_at else None
                tokens = ids[at : at + 1] if delta else ids[:last]
                tokens = tokens if error is None else []
                reason = ("length" if last < len(ids) else "stop") if finished else None
                outputs = [
                    self._completion(i, tokens, reason, sampling_params, at + 1)
                    for i in range(sampling_params.n)
                ]
                prompt_logprobs = None
                if sampling_params.prompt_logprobs is not None:
                    prompt_logprobs = [None, *(self._position(token) for token in ids[1:])]
                yield RequestOutput(
                    request_id,
                    None,
                    ids,
                    prompt_logprobs,
                    outputs,
                    finished,
                    num_cached_tokens=1,
                    error=error,
                )
        finally:
            self.open.remove(request_id)
            if not finished:
                self.aborted.append(request_id)

    def _completion(
        self,
        index: int,
        tokens: list[int],
        reason: str | None,
        params: SamplingParams,
        num_tokens: int,
    ) -> CompletionOutput:
        logprobs = None if params.logprobs is None else [self._position(token) for token in tokens]
        return CompletionOutput(
            index,
            self.tokenizer.decode(tokens),
            tokens,
            None,
            logprobs,
            reason,
            num_tokens=num_tokens,
        )

    def _position(self, token: int) -> dict[int, Logprob]:
        return {
            token: Logprob(-0.5, 1, self.tokenizer.decode([token])),
            32: Logprob(float("-inf"), 2, " "),
        }

    def set_delivery_callback(
        self, request_id: str, callback: Callable[[CompletionOutput], bool]
    ) -> None:
        """Ignore the callback; the reader gets all deltas."""

    def open_ids(self) -> list[str]:
        """Return the ids of unfinished requests."""
        return list(self.open)

    async def reset_prefix_cache(self, **options: Any) -> bool:
        """Return whether no request is unfinished."""
        return not self.open

    async def abort(self, request_id: str) -> None:
        """Record the request as aborted."""
        self.aborted.append(request_id)

    def state(self) -> State:
        """Return the status set by the test."""
        return self.status

    def check_health(self) -> None:
        """Raise `EngineDead` if the status is "dead"."""
        if self.status == "dead":
            raise EngineDead("the engine has stopped: made to")

    def health(self) -> dict[str, Any]:
        """Return the body of `/health`."""
        reason = "" if self.status == "ready" else "made to"
        return {"status": self.status, "reason": reason, "sinks": list(self.sinks.faults())}

    def shutdown(self) -> None:
        """Do nothing."""
