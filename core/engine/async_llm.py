"""`AsyncLLM`: many concurrent requests over one engine; the door for servers."""

from __future__ import annotations

import asyncio
import gc
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from functools import cache, partial
from typing import TYPE_CHECKING, Any, Self

from core.contracts import Draft, Listener, StepStats
from core.engine.front import Front, connect, load_from_kwargs, load_sinks, served_names
from core.engine.mailbox import Mailbox
from core.engine.output import OutputProcessor
from core.engine.sinks import Meter
from core.errors import EngineDead, EngineError, InvalidRequest, RequestTimeout, shown
from core.step import EngineRequest, RequestDelta, StepNews
from core.text.prompts import Prompt
from core.text.reading import Reading
from core.types import (
    CompletionOutput,
    PromptType,
    RequestOutput,
    RequestOutputKind,
    SamplingParams,
)
from core.types.pooled import PoolingOutput, PoolingRequestOutput
from core.types.pooling import PoolingParams

if TYPE_CHECKING:
    from core.config import EngineConfig
    from core.contracts.clients import State
    from core.plugin import Registry


class AsyncLLM:
    """An engine, by default in a process of its own that is restarted when it dies, driven from
    asyncio.

    All coroutines must run in one event loop, the one that is running at the first request.
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
        """Return an engine for a complete configuration and loaded plugins; `meanwhile` is called
        while it starts.
        """
        engine = cls.__new__(cls)
        engine._open(config, registry, meanwhile or (lambda: None))
        return engine

    def _open(
        self, config: EngineConfig, registry: Registry, meanwhile: Callable[[], None]
    ) -> None:
        self._mailboxes: dict[str, Mailbox] = {}
        self._event_loop: asyncio.AbstractEventLoop | None = None
        self._news: deque[StepNews] = deque()
        self._last = StepStats(step_s=0.0, num_running=0, num_waiting=0, kv_usage=0.0)
        self.sinks = load_sinks(config, registry)
        """The metric sinks."""
        self._meter = Meter(self.sinks) if self.sinks.guarded else None
        listener = Listener(self._deliver_soon, self._observe, self._died_soon, self._started)
        self._front, self._client = connect(config, registry, listener, meanwhile)
        self._show(self._front)
        self._reading = Reading(self._front.renderer, self.max_model_len)
        self._calls = cache(partial(self._front.runner.calls, self._front, None))
        self._outputs = OutputProcessor(
            self.tokenizer,
            self._front.admission.completion.finished,
            self._meter,
            self.config.scheduler.stream_interval,
        )
        self.sinks.ready(self.config)
        # what is here now lives as long as the engine; the collector need not look at it again
        gc.freeze()

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
        self.pooling = front.info.pooling
        """What the model can do with a prompt besides going on after it; None: it generates."""
        self.vocab_size = front.info.vocab_size
        """Token ids are below this."""
        self.fields = front.admission.fields
        """Fields of requests that features read, besides the routes' own: given to `generate` as
        keywords.
        """
        self.served_names = served_names(front.config)
        """Names the model answers to; the first is the one shown."""
        self.sampling_defaults = front.sampling_defaults
        """Sampling parameters of requests that do not set them."""

    # --- text

    async def tokenize(
        self, text: str, add_special_tokens: bool = True, **reading: Any
    ) -> list[int]:
        """Return token ids of a text; keywords as in `Reading.prompt`."""
        return (await self._reading.prompt(text, add_special_tokens, **reading)).token_ids

    async def render_chat(
        self, messages: Sequence[Mapping[str, Any]], **options: Any
    ) -> tuple[str, list[int]]:
        """Return the prompt of a conversation as text and ids; options as in `Reading.chat`."""
        prompt = await self._reading.chat(messages, **options)
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
        """Complete one prompt; yields outputs as `output_kind` says, the last one finished.

        `client` names whose request it is, to features that share out what there is. Further
        keywords are those that features read. Raises `InvalidRequest` or `QueueFull` before the
        first output, `RequestTimeout` when it takes longer than `request_timeout`, `EngineDead`
        when the engine ends. Closing the iterator, or cancelling its task, aborts the request.
        """
        keep = getattr(sampling_params, "truncate_prompt_tokens", None)
        ready = await self._reading.prompt(prompt, keep=keep, client=client)
        admission = self._front.admission
        given = admission.sieve(keywords, hints=("priority", "cache_salt")) | (
            {"client": client} if client else {}
        )
        draft = admission.draft(request_id, ready, sampling_params, priority, given, cache_salt)
        draft, requests = await self._admitted(draft)
        mailbox = self._follow(draft, requests)
        timer = self._start_timer(mailbox)
        accepted = asyncio.wrap_future(
            self._client.add(requests)
        )  # which may wait until the engine is back
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
        self,
        prompt: Any,
        pooling_params: PoolingParams,
        request_id: str,
        *,
        prompt_name: str | None = None,
        **keywords: Any,
    ) -> AsyncIterator[PoolingRequestOutput[PoolingOutput]]:
        """Pool one prompt, or a pair of texts; yields one output.

        Keywords and errors as `generate`, and `RequestFailed`.
        """
        calls = self._calls()
        ready = partial(calls.ready, prompt, pooling_params, prompt_name)
        runs, found = await self._reading.aside(ready, keywords.get("client", "")), []
        for index, (each, params) in enumerate(runs):
            run_id = f"{request_id}#{index}" if index else request_id
            async for output in self.generate(each, params, run_id, **keywords):
                found.append(PoolingRequestOutput.of(output))
        yield calls.joined(found)

    async def _admitted(self, draft: Draft) -> tuple[Draft, list[EngineRequest]]:
        admission = self._front.admission
        try:
            async with asyncio.timeout(self.config.service.request_timeout):
                draft = await admission.completion.of(draft)
        except TimeoutError:
            raise self._too_slow() from None
        admit = partial(admission.admit, draft)
        return draft, await asyncio.to_thread(admit) if admission.takes_time(
            draft.sampling
        ) else admit()

    def _follow(self, draft: Draft, requests: Sequence[EngineRequest]) -> Mailbox:
        request_id = draft.request_id
        if request_id in self._outputs:
            raise InvalidRequest(
                "request_id", f"{request_id!r} is in use by a request that has not ended."
            )
        running = asyncio.get_running_loop()
        if self._mailboxes and self._event_loop is not running:
            raise RuntimeError(
                "requests of another event loop are open; use one event loop for one engine."
            )
        self._event_loop = running
        self._outputs.add(draft, requests)
        streams = requests[0].sampling.output_kind is RequestOutputKind.DELTA
        mailbox = self._mailboxes[request_id] = Mailbox(streams)
        return mailbox

    def _start_timer(self, mailbox: Mailbox) -> asyncio.TimerHandle | None:
        most_s = self.config.service.request_timeout
        if most_s is None:
            return None
        return asyncio.get_running_loop().call_later(most_s, mailbox.fail, self._too_slow())

    def _too_slow(self) -> RequestTimeout:
        return RequestTimeout(
            f"the request took more than {self.config.service.request_timeout:g} s "
            "(--request-timeout)."
        )

    def _forget(self, request_id: str) -> None:
        """Stop following a request that nobody waits for and end it in the engine, whatever its
        state.
        """
        self._mailboxes.pop(request_id, None)
        engine_ids = self._outputs.engine_ids(request_id)
        client = self._outputs.drop(request_id)
        if engine_ids:
            self._client.abort(engine_ids)
        if client is not None and self._meter is not None:
            self._meter.ended(client, "abort", time.monotonic())

    def hand_to(self, request_id: str, taker: Callable[[CompletionOutput], bool]) -> None:
        """Show what is new of a streamed request's sequences to `taker`, in the event loop's turn
        that brings it.

        It is shown what comes while the reader of `generate` waits, but no end of a sequence, and
        says whether it has taken it; the reader gets the rest. It must not raise.
        """
        if mailbox := self._mailboxes.get(request_id):  # else it has ended, or the engine has
            self._outputs.offer_to(request_id, mailbox.to(taker))

    def open_ids(self) -> list[str]:
        """Return the ids of requests that have not ended."""
        return list(self._mailboxes)

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
            self._news.append(news)
            self._event_loop.call_soon_threadsafe(self._deliver_waiting)

    def _died_soon(self, error: BaseException) -> None:
        if self._event_loop is not None and not self._event_loop.is_closed():
            self._event_loop.call_soon_threadsafe(self._fail_all, error)

    def _deliver_waiting(self) -> None:
        """Deliver the news of all steps that have come by now; requests are shown once what several
        of them brought.
        """
        if waiting := [self._news.popleft() for _ in range(len(self._news))]:
            self._deliver([delta for news in waiting for delta in news])

    def _deliver(self, deltas: Sequence[RequestDelta]) -> None:
        outputs, aborts = self._outputs.process(deltas, time.monotonic())
        if aborts:
            self._client.abort(aborts)
        for output in outputs:
            if mailbox := self._mailboxes.get(output.request_id):
                mailbox.put(output)
                if output.finished:
                    del self._mailboxes[output.request_id]

    def _fail_all(self, error: BaseException) -> None:
        for mailbox in self._mailboxes.values():
            mailbox.fail(EngineDead(f"the engine has stopped: {shown(error)}"))
        self._mailboxes.clear()

    # --- state

    def state(self) -> State:
        """Return "ready" while requests are computed, else what is the matter."""
        return self._client.status().state

    def check_health(self) -> None:
        """Raise `EngineDead` when the engine can serve no more requests."""
        if (status := self._client.status()).state == "dead":
            raise EngineDead(f"the engine has stopped: {status.reason}")

    def health(self) -> dict[str, Any]:
        """Return what `/health` shows: how the engine is, what waits and runs, which sinks failed."""
        status = self._client.status()
        return {
            "status": status.state,
            "reason": status.reason,
            "beat_age_s": round(status.beat_age_s, 1),
            "restarts": status.restarts,
            "server_restarts": status.server_restarts,
            "running": self._last.num_running,
            "waiting": self._last.num_waiting,
            "open_requests": len(self._outputs),
            "sinks": list(self.sinks.faults()),
        }

    async def call(self, name: str, data: bytes = b"") -> list[bytes]:
        """Ask the halves of a feature something (`feature.verb`), between two steps; return what
        each answers.
        """
        return await asyncio.wrap_future(self._client.call(name, data))

    async def reset_prefix_cache(self, **options: Any) -> bool:
        """Forget cached prompt beginnings; False, and nothing is done, while blocks are in use."""
        self._front.admission.sieve(options)
        try:
            return await self.call("reset_prefix_cache") == [b"1"]
        except EngineDead:
            if self.state() == "dead":
                raise
            return True  # it died of something, and the next one begins with nothing

    def shutdown(self) -> None:
        """End the engine; requests still open end with `EngineDead`. Safe to call twice."""
        self._client.stop()
        self._fail_all(EngineDead("shut down"))
