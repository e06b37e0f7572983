"""Streamed requests to an OpenAI-compatible server with arrival times of the chunks."""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from random import Random
from typing import Any, Final

import msgspec

from builtin_plugins.commands.bench.http_stream import HttpClient, HttpError
from builtin_plugins.commands.bench.workload import Sample

ENDPOINTS: Final[Mapping[str, str]] = {
    "openai": "/v1/completions",
    "vllm": "/v1/completions",
    "openai-chat": "/v1/chat/completions",
}
END: Final = b"[DONE]"


class _Delta(msgspec.Struct):
    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None


class _Choice(msgspec.Struct):
    text: str | None = None
    delta: _Delta | None = None
    finish_reason: str | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int = 0
    completion_tokens: int | None = None


class _Event(msgspec.Struct):
    choices: list[_Choice] = []
    usage: _Usage | None = None
    error: Any = None


_decode: Final = msgspec.json.Decoder(_Event).decode


@dataclass(slots=True)
class Outcome:
    """Result of one request. Times in seconds; `start_s` is relative to the start of the run."""

    start_s: float
    arrivals_s: list[float] = field(default_factory=list)
    """Arrival times of the chunks with text (`time.perf_counter`)."""
    prompt_tokens: int = 0
    output_tokens: int = 0
    text: str = ""
    error: str = ""
    sent_s: float = 0.0

    @property
    def ttft_s(self) -> float:
        """Time to the first chunk."""
        return self.arrivals_s[0] - self.sent_s if self.arrivals_s else 0.0

    @property
    def e2e_s(self) -> float:
        """Time to the last chunk."""
        return self.arrivals_s[-1] - self.sent_s if self.arrivals_s else 0.0

    @property
    def gaps_s(self) -> list[float]:
        """Times between chunks."""
        times = self.arrivals_s
        return [after - before for before, after in pairwise(times)]

    @property
    def tpot_s(self) -> float | None:
        """Time per output token after the first; None for a single token."""
        return (
            (self.e2e_s - self.ttft_s) / (self.output_tokens - 1)
            if self.output_tokens > 1
            else None
        )


@dataclass(frozen=True, slots=True)
class Api:
    """Request format and destination."""

    client: HttpClient
    backend: str
    endpoint: str
    model: str
    extra: Mapping[str, Any]
    """Fields added to every request."""

    def body(self, sample: Sample, model: str = "") -> bytes:
        """Return the request body; `model` is another one than the server's, such as an adapter."""
        fields: dict[str, Any] = {
            "model": model or self.model,
            "max_tokens": sample.output_tokens,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if self.backend == "openai-chat":
            fields["messages"] = [{"role": "user", "content": _content(sample)}]
        else:
            fields["prompt"] = sample.prompt
        return msgspec.json.encode(fields | dict(self.extra))

    async def send(
        self,
        sample: Sample,
        began_s: float,
        *,
        model: str = "",
        request_id: str = "",
        keep_text: bool = False,
    ) -> Outcome:
        """Send a request and read its answer; errors are stored in the outcome."""
        body = self.body(sample, model)
        outcome = Outcome(0.0, prompt_tokens=sample.prompt_tokens or 0)
        arrivals = outcome.arrivals_s
        clock = time.perf_counter
        pieces = []
        ended = False
        usage: _Usage | None = None

        def take(data: bytes) -> None:
            nonlocal ended, usage
            if data == END:
                ended = True
                return
            event = _decode(data)
            if event.error is not None:
                raise HttpError(f"in the stream: {event.error}"[:500])
            usage = event.usage or usage
            for choice in event.choices:
                delta = choice.delta
                text = (
                    choice.text
                    if delta is None
                    else delta.content or delta.reasoning_content or delta.reasoning
                )
                if text:
                    arrivals.append(clock())
                    if keep_text:
                        pieces.append(text)

        outcome.sent_s = clock()
        outcome.start_s = outcome.sent_s - began_s
        try:
            await self.client.stream(self.endpoint, body, take, request_id)
        except TimeoutError:
            outcome.error = "no end within --request-timeout-sec"
        except (HttpError, OSError, msgspec.MsgspecError) as error:
            outcome.error = str(error) or type(error).__name__
        else:
            if not ended and usage is None:
                outcome.error = "the stream ended without [DONE]"
            elif not arrivals:
                outcome.error = "no text received"
        outcome.text = "".join(pieces)
        if usage is not None:
            outcome.prompt_tokens = usage.prompt_tokens or outcome.prompt_tokens
        known = None if usage is None else usage.completion_tokens
        outcome.output_tokens = len(arrivals) if known is None else known
        return outcome


def _content(sample: Sample) -> Any:
    """Return the prompt as a text, or with its images as parts."""
    if not sample.images:
        return sample.prompt
    images = [{"type": "image_url", "image_url": {"url": url}} for url in sample.images]
    return [{"type": "text", "text": sample.prompt}, *images]


@dataclass(frozen=True, slots=True)
class Run:
    """Results of a run."""

    outcomes: list[Outcome]
    duration_s: float
    client_cpu_s: float
    """CPU time of this process during the run."""


def arrival_times(rates: Sequence[float], burstiness: float, rng: Random) -> list[float]:
    """Return the arrival times in seconds from the start, by the rate at each request.

    Gaps follow a gamma distribution with mean 1/rate; burstiness 1 is a Poisson process, less is
    burstier. An infinite rate sends all at once.
    """
    times = []
    at = 0.0
    for rate in rates:
        if math.isinf(rate):
            times.append(at)
            continue
        times.append(at)
        at += rng.gammavariate(burstiness, 1 / (rate * burstiness))
    return times


async def run_load(
    api: Api,
    samples: Sequence[Sample],
    due_s: Sequence[float],
    models: Sequence[str],
    *,
    max_concurrency: int | None,
    keep_text: bool,
    done: Callable[[], None],
    id_prefix: str = "",
) -> Run:
    """Send every request at its time, limited by `max_concurrency`; wait for all answers.

    With `id_prefix` their ids are the prefix and their number.
    """
    seats = (
        contextlib.nullcontext() if max_concurrency is None else asyncio.Semaphore(max_concurrency)
    )
    cpu_s = time.process_time()
    began_s = time.perf_counter()

    async def one(index: int, sample: Sample, due: float, model: str) -> Outcome:
        request_id = f"{id_prefix}{index}" if id_prefix else ""
        await asyncio.sleep(began_s + due - time.perf_counter())
        async with seats:
            outcome = await api.send(
                sample, began_s, model=model, request_id=request_id, keep_text=keep_text
            )
        done()
        return outcome

    outcomes = await asyncio.gather(
        *(one(*each) for each in zip(range(len(samples)), samples, due_s, models, strict=True))
    )
    return Run(list(outcomes), time.perf_counter() - began_s, time.process_time() - cpu_s)
