"""`AsyncLLM`: many concurrent requests over one engine loop; the door for servers."""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self

from core.contracts import RequestStats
from core.engine.build import EngineParts, build, load_from_kwargs, served_names
from core.engine.loop_thread import LoopThread
from core.engine.mailbox import Mailbox
from core.engine.output import OutputProcessor
from core.engine.rendering import Prompt
from core.errors import EngineDead, InvalidRequest
from core.step import EngineRequest, RequestDelta
from core.types import PromptType, RequestOutput, RequestOutputKind, SamplingParams

if TYPE_CHECKING:
    from core.config import EngineConfig
    from core.contracts import ChatRenderer, ModelSource, Tokenizer
    from core.engine.sinks import Sinks
    from core.plugin import Registry

LONG_TEXT_CHARS = 8192
"""Texts longer than this are tokenized off the event loop."""


class AsyncLLM:
    """The engine in a thread of this process, driven from asyncio.

    All coroutines must run in one event loop, the one that is running at the first request.
    """

    def __init__(self, model: str | None = None, **kwargs: Any) -> None:
        """Load a model; keywords as in `LLM`."""
        if model is not None:
            kwargs["model"] = model
        self._open(*load_from_kwargs(kwargs))

    @classmethod
    def from_config(cls, config: EngineConfig, registry: Registry) -> Self:
        """Return an engine for a complete configuration and loaded plugins."""
        engine = cls.__new__(cls)
        engine._open(config, registry)
        return engine

    def _open(self, config: EngineConfig, registry: Registry) -> None:
        self._parts: EngineParts = build(config, registry, serving=True)
        self._outputs = OutputProcessor(self._parts.tokenizer)
        self._mailboxes: dict[str, Mailbox] = {}
        self._event_loop: asyncio.AbstractEventLoop | None = None
        self._thread = LoopThread(self._parts.core, self._deliver_soon, self._died_soon)
        self._thread.start()
        gc.freeze()  # what is here now lives as long as the engine; the collector need not look at it again

    # --- what routes read

    @property
    def config(self) -> EngineConfig:
        """The configuration in force, every automatic value decided."""
        return self._parts.config

    @property
    def registry(self) -> Registry:
        """The loaded plugins."""
        return self._parts.registry

    @property
    def source(self) -> ModelSource:
        """The model that is served."""
        return self._parts.source

    @property
    def tokenizer(self) -> Tokenizer | None:
        """The model's tokenizer."""
        return self._parts.tokenizer

    @property
    def renderer(self) -> ChatRenderer | None:
        """The chat renderer, where there is one."""
        return self._parts.renderer.chat

    @property
    def max_model_len(self) -> int:
        """Longest prompt plus output, in tokens."""
        return self._parts.admission.limits.max_model_len

    @property
    def vocab_size(self) -> int:
        """Token ids are below this."""
        return self._parts.info.vocab_size

    @property
    def served_names(self) -> Sequence[str]:
        """Names the model answers to; the first is the one shown."""
        return served_names(self.config)

    @property
    def sampling_defaults(self) -> dict[str, Any]:
        """Sampling parameters of requests that do not set them."""
        return self._parts.sampling_defaults

    @property
    def sinks(self) -> Sinks:
        """The metric sinks."""
        return self._parts.core.sinks

    # --- text

    async def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Return token ids of a text."""
        return (await self._prompt(text, add_special_tokens)).token_ids

    async def render_chat(self, messages: Sequence[Mapping[str, Any]], **options: Any) -> tuple[str, list[int]]:
        """Return the prompt of a conversation as text and ids; options as in `ChatRenderer.render`."""
        prompt = await asyncio.to_thread(lambda: self._parts.renderer.messages(messages, **options))
        return prompt.text or "", prompt.token_ids

    async def _prompt(self, prompt: PromptType | Mapping[str, Any], add_special_tokens: bool = True) -> Prompt:
        text = prompt if isinstance(prompt, str) else prompt.get("prompt") if isinstance(prompt, Mapping) else None
        if isinstance(text, str) and len(text) > LONG_TEXT_CHARS:
            return await asyncio.to_thread(self._parts.renderer.prompt, prompt, add_special_tokens)
        return self._parts.renderer.prompt(prompt, add_special_tokens)

    # --- requests

    async def generate(
        self,
        prompt: PromptType | Mapping[str, Any],
        sampling_params: SamplingParams,
        request_id: str,
        *,
        priority: int = 0,
        cache_salt: str = "",
    ) -> AsyncIterator[RequestOutput]:
        """Complete one prompt; yields outputs as `output_kind` says, the last one finished.

        Raises `InvalidRequest` before the first output, `EngineDead` when the engine ends. Closing the
        iterator, or cancelling its task, aborts the request.
        """
        if request_id in self._outputs:
            raise InvalidRequest("request_id", f"{request_id!r} is in use by a request that has not ended.")
        ready = await self._prompt(prompt)
        requests = self._parts.admission.admit(
            request_id,
            ready.token_ids,
            sampling_params,
            arrival_s=time.monotonic(),
            priority=priority,
            cache_salt=cache_salt or ready.cache_salt,
        )
        mailbox = self._follow(request_id, ready, requests, sampling_params)
        finished = False
        try:
            await self._add(requests)
            while not finished:
                output = await mailbox.get()
                finished = output.finished
                yield output
        finally:
            if not finished:
                self._forget(request_id)

    def _follow(
        self, request_id: str, prompt: Prompt, requests: Sequence[EngineRequest], sampling: SamplingParams
    ) -> Mailbox:
        self._event_loop = asyncio.get_running_loop()
        interval = self.config.scheduler.stream_interval
        self._outputs.add(request_id, prompt.text, requests, sampling, stream_interval=interval)
        mailbox = self._mailboxes[request_id] = Mailbox(sampling.output_kind is RequestOutputKind.DELTA)
        return mailbox

    async def _add(self, requests: Sequence[EngineRequest]) -> None:
        await asyncio.wrap_future(self._thread.call(lambda: self._parts.core.add(requests)))

    def _forget(self, request_id: str) -> None:
        """Stop following a request and end it in the engine, whatever its state."""
        self._mailboxes.pop(request_id, None)
        engine_ids = self._outputs.engine_ids(request_id)
        self._outputs.drop(request_id)
        if engine_ids:
            self._thread.call(lambda: self._parts.core.abort(engine_ids))

    async def abort(self, request_id: str) -> None:
        """End a request early; its reader gets a last output with finish reason "abort"."""
        engine_ids = self._outputs.engine_ids(request_id)
        if engine_ids:
            deltas = await asyncio.wrap_future(self._thread.call(lambda: self._parts.core.abort(engine_ids)))
            self._deliver(deltas)

    # --- from the engine's thread

    def _deliver_soon(self, deltas: Sequence[RequestDelta]) -> None:
        if self._event_loop is not None and not self._event_loop.is_closed():
            self._event_loop.call_soon_threadsafe(self._deliver, deltas)

    def _died_soon(self, error: BaseException) -> None:
        if self._event_loop is not None and not self._event_loop.is_closed():
            self._event_loop.call_soon_threadsafe(self._fail_all, error)

    def _deliver(self, deltas: Sequence[RequestDelta]) -> None:
        outputs, aborts = self._outputs.process(deltas, time.monotonic())
        if aborts:
            self._thread.call(lambda: self._parts.core.abort(aborts))
        for output in outputs:
            mailbox = self._mailboxes.get(output.request_id)
            if mailbox is None:
                continue
            mailbox.put(output)
            if output.finished:
                del self._mailboxes[output.request_id]
                self._measure(output)

    def _fail_all(self, error: BaseException) -> None:
        for mailbox in self._mailboxes.values():
            mailbox.fail(EngineDead(f"the engine has stopped: {error}"))
        self._mailboxes.clear()

    def _measure(self, output: RequestOutput) -> None:
        times = output.metrics
        if not self.sinks.guarded or times is None or times.last_token_s is None:
            return
        self.sinks.request(
            RequestStats(
                finish_reason=output.outputs[0].finish_reason or "abort",
                prompt_tokens=len(output.prompt_token_ids or ()),
                generated_tokens=sum(completion.num_tokens for completion in output.outputs),
                e2e_s=times.last_token_s - times.arrival_s,
                ttft_s=None if times.first_token_s is None else times.first_token_s - times.arrival_s,
            )
        )

    # --- state

    def check_health(self) -> None:
        """Raise `EngineDead` when the engine can serve no more requests."""
        if not self._thread.is_alive:
            raise EngineDead(f"the engine has stopped: {self._thread.error or 'shut down'}")

    def health(self) -> dict[str, Any]:
        """Return what `/health` shows: whether it lives, what waits and runs, which sinks failed."""
        scheduler = self._parts.core.scheduler
        return {
            "status": "ok" if self._thread.is_alive else "dead",
            "running": scheduler.num_running,
            "waiting": scheduler.num_waiting,
            "open_requests": len(self._outputs),
            "sinks": list(self.sinks.faults()),
        }

    async def reset_prefix_cache(self) -> bool:
        """Forget cached prompt beginnings; False, and nothing is done, while blocks are in use."""
        done: bool = await asyncio.wrap_future(self._thread.call(self._parts.core.reset_prefix_cache))
        return done

    def shutdown(self) -> None:
        """End the engine; requests still open end with `EngineDead`. Safe to call twice."""
        self._thread.stop()
        self._fail_all(EngineDead("shut down"))
