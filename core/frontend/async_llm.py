"""`AsyncLLM`: many concurrent requests on one engine, for servers."""

from __future__ import annotations

import asyncio
import gc
import os
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from functools import cache, partial
from typing import TYPE_CHECKING, Any, Self

from core.contracts.admission import PendingRequest
from core.contracts.clients import Listener
from core.contracts.runners import PoolingCalls
from core.contracts.serving import ServedEngine
from core.contracts.telemetry import StepStats
from core.errors import EngineDead, EngineError, RequestTimeout
from core.frontend.admission import Admission
from core.frontend.mailbox import Mailbox
from core.frontend.metrics import RequestMeter
from core.frontend.outputs import OutputProcessor
from core.frontend.startup import Frontend, connect, load_from_kwargs, load_sinks, served_names
from core.frontend.streams import OutputStreams
from core.frontend.text.tokenize_queue import PromptReader
from core.step import CallAnswer, EngineRequest
from core.types import CompletionOutput, PromptType, RequestOutput, SamplingParams
from core.types.pooling import PoolingOutput, PoolingParams, PoolingRequestOutput
from core.types.prompts import Prompt

if TYPE_CHECKING:
    from core.config import EngineConfig
    from core.contracts.clients import State
    from core.plugin import Registry


class AsyncAdmission:
    """Admits requests without blocking the event loop; enforces
    `request_timeout`.
    """

    def __init__(self, admission: Admission, timeout_s: float | None) -> None:
        self._admission = admission
        self._timeout_s = timeout_s

    async def admit(self, pending: PendingRequest) -> tuple[PendingRequest, list[EngineRequest]]:
        """Return the prepared request and its engine requests. Raises like `AsyncLLM.generate`."""
        admission = self._admission
        try:
            async with asyncio.timeout(self._timeout_s):
                pending = await admission.preparer.prepare(pending)
        except TimeoutError:
            raise self._timeout_error() from None
        if admission.is_slow(pending.sampling):
            return pending, await asyncio.to_thread(admission.admit, pending)
        return pending, admission.admit(pending)

    def start_timer(self, mailbox: Mailbox) -> asyncio.TimerHandle | None:
        """Start the timer that fails a request after `request_timeout`; None without a limit."""
        if self._timeout_s is None:
            return None
        loop = asyncio.get_running_loop()
        return loop.call_later(self._timeout_s, mailbox.fail, self._timeout_error())

    def _timeout_error(self) -> RequestTimeout:
        return RequestTimeout(
            f"the request took more than {self._timeout_s:g} s (--request-timeout)."
        )


class AsyncLLM(ServedEngine):
    """An engine for asyncio; by default in its own process, restarted if it dies.

    All coroutines must run in one event loop, that of the first request.
    """

    def __init__(self, model: str | None = None, **kwargs: Any) -> None:
        """Load a model; keywords as in `LLM`."""
        if model is not None:
            kwargs["model"] = model
        self._open(*load_from_kwargs(kwargs), meanwhile=lambda: None)

    @classmethod
    def from_config(
        cls,
        config: EngineConfig,
        registry: Registry,
        *,
        meanwhile: Callable[[], None] | None = None,
    ) -> Self:
        """Return an engine for a configuration and loaded plugins.

        `meanwhile` is called while the engine starts.
        """
        engine = cls.__new__(cls)
        engine._open(config, registry, meanwhile or (lambda: None))
        return engine

    def _open(
        self, config: EngineConfig, registry: Registry, meanwhile: Callable[[], None]
    ) -> None:
        self._streams = OutputStreams()
        self._last_stats: dict[int, StepStats] = {}
        """The last statistics of each engine."""
        self.sinks = load_sinks(config, registry)
        """The metric sinks."""
        listener = Listener(
            deliver=self._streams.deliver_soon,
            observe=self._observe,
            died=self._streams.died_soon,
            started=self._started,
        )
        self._frontend, self._client = connect(config, registry, listener, meanwhile)
        self._set_attributes(self._frontend)
        cores = registry.shared("usable_cores", os.cpu_count) or 1
        renderer = self._frontend.renderer
        self._reader = PromptReader(renderer, self.max_model_len, cores)
        self._admission = AsyncAdmission(
            self._frontend.admission, self.config.service.request_timeout
        )
        calls = partial(self._frontend.runner.pooling_calls, self._frontend, None)
        self._pooling_calls: Callable[[], PoolingCalls] = cache(calls)
        meter = RequestMeter(self.sinks) if self.sinks.entries else None
        output_fields = self._frontend.admission.preparer.output_fields
        interval = self.config.scheduler.stream_interval
        outputs = OutputProcessor(self.tokenizer, output_fields, meter, interval)
        self._streams.attach(outputs, meter, self._client.abort)
        self.sinks.ready(self.config)
        gc.freeze()  # objects of the start live as long as the engine

    def _set_attributes(self, frontend: Frontend) -> None:
        """Set the attributes of `ServedEngine`."""
        self.config = frontend.config
        self.registry = frontend.registry
        self.source = frontend.source
        self.tokenizer = frontend.renderer.tokenizer
        self.renderer = frontend.renderer.chat
        self.max_model_len = frontend.admission.limits.max_model_len
        self.pooling = frontend.info.pooling
        self.vocab_size = frontend.info.vocab_size
        self.fields = frontend.admission.fields
        self.served_names = served_names(frontend.config)
        self.sampling_defaults = frontend.sampling_defaults

    # --- text

    async def tokenize(
        self, text: str, add_special_tokens: bool = True, **reading: Any
    ) -> list[int]:
        """Return the token ids of a text; keywords as in `PromptReader.prompt`."""
        return (await self._reader.prompt(text, add_special_tokens, **reading)).token_ids

    async def render_chat(
        self, messages: Sequence[Mapping[str, Any]], **options: Any
    ) -> tuple[str, list[int]]:
        """Return a chat's text and ids; options as in `PromptReader.chat`."""
        prompt = await self._reader.chat(messages, **options)
        return prompt.text or "", prompt.token_ids

    # --- requests

    async def generate(
        self,
        prompt: PromptType | Mapping[str, Any] | Prompt,
        sampling_params: SamplingParams | PoolingParams,
        request_id: str,
        *,
        priority: int = 0,
        cache_salt: str = "",
        client: str = "",
        **keywords: Any,
    ) -> AsyncIterator[RequestOutput]:
        """Complete one prompt; yield outputs by `output_kind`, the last one finished.

        `client` is for fair sharing; features read further keywords. Raises
        `InvalidRequest` or `QueueFull` before the first output, later `RequestTimeout`
        or `EngineDead`. Closing the iterator or cancelling its task aborts the request.
        """
        keep = getattr(sampling_params, "truncate_prompt_tokens", None)
        ready = await self._reader.prompt(prompt, keep=keep, client=client)
        admission = self._frontend.admission
        given = admission.select_known(keywords, hints=("priority", "cache_salt"))
        if client:
            given["client"] = client
        pending = admission.pending_request(
            request_id, ready, sampling_params, priority, given, cache_salt
        )
        pending, requests = await self._admission.admit(pending)
        mailbox = self._streams.open(pending, requests)
        timer = self._admission.start_timer(mailbox)
        # The answer may wait until the engine has been restarted.
        accepted = asyncio.wrap_future(self._client.add(requests))
        accepted.add_done_callback(mailbox.accepted)
        finished = False
        try:
            while not finished:
                output = await mailbox.get()
                finished = output.finished
                yield output
        except RequestTimeout:
            raise
        except EngineError:  # the engine has refused the request or has ended
            finished = True
            self._streams.drop(request_id)
            raise
        finally:
            if timer is not None:
                timer.cancel()
            accepted.cancel()
            if not finished:
                self._streams.abandon(request_id)

    async def encode(
        self,
        prompt: Any,
        pooling_params: PoolingParams,
        request_id: str,
        *,
        prompt_name: str | None = None,
        **keywords: Any,
    ) -> AsyncIterator[PoolingRequestOutput[PoolingOutput]]:
        """Pool one prompt, or a pair of texts; yield one output.

        Keywords and errors as in `generate`, and `RequestFailed`.
        """
        calls = self._pooling_calls()
        prepare = partial(calls.prepare, prompt, pooling_params, prompt_name)
        runs = await self._reader.run(prepare, keywords.get("client", ""))
        found = []
        for index, (each, params) in enumerate(runs):
            run_id = f"{request_id}#{index}" if index else request_id
            async for output in self.generate(each, params, run_id, **keywords):
                found.append(PoolingRequestOutput.of(output))
        yield calls.combine(found)

    def set_delivery_callback(
        self, request_id: str, callback: Callable[[CompletionOutput], bool]
    ) -> None:
        """Deliver deltas of a streamed request to `callback`, in the event loop's iteration.

        The callback gets deltas of unfinished sequences while the reader of `generate` waits. It
        returns True for a delta that it consumed; the reader gets all others. It must not raise.
        """
        self._streams.set_delivery_callback(request_id, callback)

    def open_ids(self) -> list[str]:
        """Return the ids of unfinished requests."""
        return self._streams.open_ids()

    async def abort(self, request_id: str) -> None:
        """Abort a request; its last output has the finish reason "abort"."""
        engine_ids = self._streams.outputs.engine_ids(request_id)
        if engine_ids:
            deltas = await asyncio.wrap_future(self._client.abort(engine_ids))
            self._streams.deliver(deltas)

    # --- from the client's thread

    def _started(self, engine_ids: Sequence[str], engine: int) -> None:
        self._streams.outputs.started(engine_ids, engine, time.monotonic())

    def _observe(self, stats: StepStats) -> None:
        self._last_stats[stats.engine] = stats
        self.sinks.record(stats)

    # --- state

    def state(self) -> State:
        """Return the engine's state: "ready" while it computes requests."""
        return self._client.status().state

    def check_health(self) -> None:
        """Raise `EngineDead` when the engine can serve no more requests."""
        if (status := self._client.status()).state == "dead":
            raise EngineDead(f"the engine has stopped: {status.reason}")

    def health(self) -> dict[str, Any]:
        """Return the body of `/health`."""
        status = self._client.status()
        last = list(self._last_stats.values())
        return {
            "status": status.state,
            "reason": status.reason,
            "heartbeat_age_s": round(status.heartbeat_age_s, 1),
            "restarts": status.restarts,
            "server_restarts": status.server_restarts,
            "running": sum(stats.num_running for stats in last),
            "waiting": sum(stats.num_waiting for stats in last),
            "open_requests": len(self._streams.outputs),
            "sinks": list(self.sinks.faults()),
            **({"engines": [each.to_json() for each in status.engines]} if status.engines else {}),
        }

    async def call(self, name: str, data: bytes = b"") -> list[CallAnswer]:
        """Call a feature (`feature.verb`) between two steps; one answer per engine."""
        return await asyncio.wrap_future(self._client.call(name, data))

    async def reset_prefix_cache(self, **options: Any) -> bool:
        """Clear the prefix cache; False if an engine uses blocks."""
        self._frontend.admission.select_known(options)
        try:
            answers = await self.call("reset_prefix_cache")
            return all(each.died or each.scheduler == b"1" for each in answers)
        except EngineDead:
            if self.state() == "dead":
                raise
            return True  # the restarted engine has an empty cache

    def shutdown(self) -> None:
        """Stop the engine; open requests end with `EngineDead`. Safe to call twice."""
        self._client.stop()
        self._streams.fail_all(EngineDead("shut down"))
        self._frontend.admission.close()
