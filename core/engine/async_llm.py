"""`AsyncLLM`: many concurrent requests over one engine; the door for servers."""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from functools import cache, partial
from typing import TYPE_CHECKING, Any, Self

from core.contracts import StepStats
from core.engine.front import Front, load_from_kwargs, load_sinks, open_apart, open_here, served_names
from core.engine.loop_thread import Listener, LoopThread, State
from core.engine.mailbox import Mailbox
from core.engine.output import OutputProcessor
from core.engine.sinks import Meter
from core.errors import EngineDead, EngineError, InvalidRequest, RequestTimeout
from core.pooling_outputs import PoolingOutput, PoolingRequestOutput
from core.pooling_types import PoolingParams
from core.step import EngineRequest, RequestDelta, StepNews
from core.types import PromptType, RequestOutput, RequestOutputKind, SamplingParams

if TYPE_CHECKING:
    from core.config import EngineConfig
    from core.engine.core import EngineCore
    from core.engine.supervised import Supervised
    from core.plugin import Registry
from core.prompts import Prompt

LONG_TEXT_CHARS = 8192
"""Texts longer than this are tokenized off the event loop."""


class AsyncLLM:
    """An engine, by default in a process of its own that is restarted when it dies, driven from asyncio.

    All coroutines must run in one event loop, the one that is running at the first request.
    """

    def __init__(self, model: str | None = None, **kwargs: Any) -> None:
        """Load a model; keywords as in `LLM`."""
        if model is not None:
            kwargs["model"] = model
        self._open(*load_from_kwargs(kwargs), meanwhile=lambda: None)

    @classmethod
    def from_config(
        cls, config: EngineConfig, registry: Registry, *, meanwhile: Callable[[], None] | None = None
    ) -> Self:
        """Return an engine for a complete configuration and loaded plugins; `meanwhile` is called while it starts."""
        engine = cls.__new__(cls)
        engine._open(config, registry, meanwhile or (lambda: None))
        return engine

    def _open(self, config: EngineConfig, registry: Registry, meanwhile: Callable[[], None]) -> None:
        self._mailboxes: dict[str, Mailbox] = {}
        self._event_loop: asyncio.AbstractEventLoop | None = None
        self._last = StepStats(step_s=0.0, num_running=0, num_waiting=0, kv_usage=0.0)
        self.sinks = load_sinks(config, registry)
        """The metric sinks."""
        self._meter = Meter(self.sinks) if self.sinks.guarded else None
        listener = Listener(self._deliver_soon, self._observe, self._died_soon, self._started)
        self._client: LoopThread | Supervised
        if config.service.disable_frontend_multiprocessing:
            meanwhile()
            self._client = loop = LoopThread(partial(self._open_here, config, registry), listener)
            loop.start()
        else:
            self._front, self._client = open_apart(config, registry, listener, meanwhile)
        self._show(self._front)
        self._calls = cache(partial(self._front.runner.calls, self._front, None))
        self._outputs = OutputProcessor(self.tokenizer, self._meter, self.config.scheduler.stream_interval)
        self.sinks.ready(self.config)
        gc.freeze()  # what is here now lives as long as the engine; the collector need not look at it again

    def _open_here(self, config: EngineConfig, registry: Registry) -> EngineCore:
        self._front, core = open_here(config, registry, serving=True)
        return core

    def _show(self, front: Front) -> None:
        """Set what routes read."""
        self.config = front.config
        """The configuration in force, every automatic value decided."""
        self.registry = front.registry
        """The loaded plugins."""
        self.source = front.source
        """The model that is served."""
        self.tokenizer = front.renderer.tokenizer
        """The model's tokenizer."""
        self.renderer = front.renderer.chat
        """The chat renderer, where there is one."""
        self.max_model_len = front.admission.limits.max_model_len
        """Longest prompt plus output, in tokens."""
        self.vocab_size = front.info.vocab_size
        """Token ids are below this."""
        self.served_names = served_names(front.config)
        """Names the model answers to; the first is the one shown."""
        self.sampling_defaults = front.sampling_defaults
        """Sampling parameters of requests that do not set them."""

    # --- text

    async def tokenize(self, text: str, add_special_tokens: bool = True, *, whole: bool = False) -> list[int]:
        """Return token ids of a text. Far more than the context holds is refused early, unless `whole`."""
        return (await self._prompt(text, add_special_tokens, whole=whole)).source_ids

    async def render_chat(
        self, messages: Sequence[Mapping[str, Any]], *, whole: bool = False, **options: Any
    ) -> tuple[str, list[int]]:
        """Return the prompt of a conversation as text and ids; options as in `ChatRenderer.render`, and `tokenize`."""
        most = None if whole else self.max_model_len
        render = partial(self._front.renderer.messages, messages, max_tokens=most, **options)
        prompt = await asyncio.to_thread(render)
        return prompt.text or "", prompt.source_ids

    async def _prompt(
        self, prompt: PromptType | Mapping[str, Any] | Prompt, add_special_tokens: bool = True, *, whole: bool
    ) -> Prompt:
        if isinstance(prompt, Prompt):
            return prompt
        most = None if whole else self.max_model_len
        render = partial(self._front.renderer.prompt, prompt, add_special_tokens, max_tokens=most)
        text = prompt if isinstance(prompt, str) else prompt.get("prompt") if isinstance(prompt, Mapping) else None
        if isinstance(text, str) and len(text) > LONG_TEXT_CHARS:
            return await asyncio.to_thread(render)
        return render()

    # --- requests

    async def generate(
        self,
        prompt: PromptType | Mapping[str, Any] | Prompt,
        sampling_params: SamplingParams | PoolingParams,
        request_id: str,
        *,
        priority: int = 0,
        cache_salt: str = "",
    ) -> AsyncIterator[RequestOutput]:
        """Complete one prompt; yields outputs as `output_kind` says, the last one finished.

        Raises `InvalidRequest` or `QueueFull` before the first output, `RequestTimeout` when it takes longer than
        `request_timeout`, `EngineDead` when the engine ends. Closing the iterator, or cancelling its task, aborts
        the request.
        """
        ready = await self._prompt(prompt, whole=getattr(sampling_params, "truncate_prompt_tokens", None) is not None)
        admit = partial(self._front.admit, request_id, ready, sampling_params, priority, cache_salt)
        slow = isinstance(sampling_params, SamplingParams) and self._front.admission.takes_time(sampling_params)
        requests = await asyncio.to_thread(admit) if slow else admit()
        mailbox = self._follow(request_id, ready, requests)
        timer = self._start_timer(mailbox)
        accepted = asyncio.wrap_future(self._client.add(requests))  # which may wait until the engine is back
        accepted.add_done_callback(mailbox.accepted)
        finished = False
        try:
            while not finished:
                output = await mailbox.get()
                finished = output.finished
                yield output
        except RequestTimeout:
            raise
        except EngineError:  # refused, or the engine has ended: nothing to abort
            finished = True
            self._outputs.drop(request_id)
            self._mailboxes.pop(request_id, None)
            raise
        finally:
            if timer is not None:
                timer.cancel()
            accepted.cancel()
            if not finished:
                self._forget(request_id)

    async def encode(
        self, prompt: Any, pooling_params: PoolingParams, request_id: str, *, prompt_name: str | None = None
    ) -> AsyncIterator[PoolingRequestOutput[PoolingOutput]]:
        """Pool one prompt, or a pair of texts; yields one output. Raises as `generate`, and `RequestFailed`."""
        calls = self._calls()
        runs, found = await asyncio.to_thread(calls.ready, prompt, pooling_params, prompt_name), []
        for index, (ready, params) in enumerate(runs):
            async for output in self.generate(ready, params, f"{request_id}#{index}" if index else request_id):
                found.append(PoolingRequestOutput.of(output))
        yield calls.joined(found)

    def _follow(self, request_id: str, prompt: Prompt, requests: Sequence[EngineRequest]) -> Mailbox:
        if request_id in self._outputs:
            raise InvalidRequest("request_id", f"{request_id!r} is in use by a request that has not ended.")
        running = asyncio.get_running_loop()
        if self._mailboxes and self._event_loop is not running:
            raise RuntimeError("requests of another event loop are open; use one event loop for one engine.")
        self._event_loop = running
        self._outputs.add(request_id, prompt, requests)
        streams = requests[0].sampling.output_kind is RequestOutputKind.DELTA
        mailbox = self._mailboxes[request_id] = Mailbox(streams)
        return mailbox

    def _start_timer(self, mailbox: Mailbox) -> asyncio.TimerHandle | None:
        most_s = self.config.service.request_timeout
        if most_s is None:
            return None
        error = RequestTimeout(f"the request took more than {most_s:g} s (--request-timeout).")
        return asyncio.get_running_loop().call_later(most_s, mailbox.fail, error)

    def _forget(self, request_id: str) -> None:
        """Stop following a request that nobody waits for and end it in the engine, whatever its state."""
        self._mailboxes.pop(request_id, None)
        engine_ids = self._outputs.engine_ids(request_id)
        client = self._outputs.drop(request_id)
        if engine_ids:
            self._client.abort(engine_ids)
        if client is not None and self._meter is not None:
            self._meter.ended(client, "abort", time.monotonic())

    async def abort(self, request_id: str) -> None:
        """End a request early; its reader gets a last output with finish reason "abort"."""
        engine_ids = self._outputs.engine_ids(request_id)
        if engine_ids:
            deltas = await asyncio.wrap_future(self._client.abort(engine_ids))
            self._deliver(deltas)

    # --- from the client's thread

    def _started(self, engine_ids: Sequence[str]) -> None:
        self._outputs.started(engine_ids, time.monotonic())

    def _observe(self, stats: StepStats) -> None:
        self._last = stats
        self.sinks.step(stats)

    def _deliver_soon(self, news: StepNews) -> None:
        if news and self._event_loop is not None and not self._event_loop.is_closed():
            self._event_loop.call_soon_threadsafe(self._deliver, news)

    def _died_soon(self, error: BaseException) -> None:
        if self._event_loop is not None and not self._event_loop.is_closed():
            self._event_loop.call_soon_threadsafe(self._fail_all, error)

    def _deliver(self, deltas: Iterable[RequestDelta]) -> None:
        outputs, aborts = self._outputs.process(deltas, time.monotonic())
        if aborts:
            self._client.abort(aborts)
        for output in outputs:
            mailbox = self._mailboxes.get(output.request_id)
            if mailbox is None:
                continue
            mailbox.put(output)
            if output.finished:
                del self._mailboxes[output.request_id]

    def _fail_all(self, error: BaseException) -> None:
        for mailbox in self._mailboxes.values():
            mailbox.fail(EngineDead(f"the engine has stopped: {error}"))
        self._mailboxes.clear()

    # --- state

    def state(self) -> State:
        """Return "ready" while requests are computed, else what is the matter."""
        return self._client.status().state

    def check_health(self) -> None:
        """Raise `EngineDead` when the engine can serve no more requests."""
        status = self._client.status()
        if status.state == "dead":
            raise EngineDead(f"the engine has stopped: {status.reason}")

    def health(self) -> dict[str, Any]:
        """Return what `/health` shows: how the engine is, what waits and runs, which sinks failed."""
        status = self._client.status()
        return {
            "status": status.state,
            "reason": status.reason,
            "beat_age_s": round(status.beat_age_s, 1),
            "restarts": status.restarts,
            "running": self._last.num_running,
            "waiting": self._last.num_waiting,
            "open_requests": len(self._outputs),
            "sinks": list(self.sinks.faults()),
        }

    async def reset_prefix_cache(self) -> bool:
        """Forget cached prompt beginnings; False, and nothing is done, while blocks are in use."""
        return await asyncio.wrap_future(self._client.reset_prefix_cache())

    def shutdown(self) -> None:
        """End the engine; requests still open end with `EngineDead`. Safe to call twice."""
        self._client.stop()
        self._fail_all(EngineDead("shut down"))
