"""What every client must hold to: outputs of the engine for requests, errors in futures, and a
clean end.

Serves the fake model on the CPU.
"""

from __future__ import annotations

import queue
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from core.config.build import config_from_kwargs
from core.contracts.clients import Listener
from core.errors import EngineDead, InvalidRequest
from core.plugin import load_plan, make_plan
from core.step import EngineRequest, RequestDelta, StepOutputs
from core.types import SamplingParams

if TYPE_CHECKING:
    from core.contracts.clients import Client
    from core.testing.conformance import Subject

_PLUGINS: Final = (
    "core.testing.fake_model",
    "platform_cpu",
    "attention_reference",
    "runner_generate",
    "launcher_local",
)
_LENGTH: Final = 64
_WAIT_S: Final = 120.0
"""For what an engine says, on however busy a machine."""


class _Heard:
    """Keeps what a listener hears."""

    def __init__(self) -> None:
        self.deltas: queue.Queue[RequestDelta] = queue.Queue()
        self.started: list[str] = []
        self.listener = Listener(
            self._deliver, None, died=lambda error: None, started=self._started
        )

    def _started(self, request_ids: list[str], engine: int) -> None:
        self.started += request_ids

    def _deliver(self, news: StepOutputs) -> None:
        for delta in news:
            self.deltas.put(delta)

    def output(self, request_id: str) -> tuple[list[int], str]:
        """Wait for a request's end; return its tokens and why it has ended."""
        tokens: list[int] = []
        while True:
            delta = self.deltas.get(timeout=_WAIT_S)
            assert delta.request_id == request_id, (
                f"{delta.request_id!r} was delivered without a request."
            )
            tokens += delta.token_ids
            if delta.finish_reason is not None:
                return tokens, delta.finish_reason


def check_outputs_of_a_request_are_delivered(subject: Subject) -> None:
    """Every token once, the last of them with the reason of the end; and what `wait` returns is
    decided.
    """
    with _running(subject) as (client, heard):
        assert client.status().state == "ready", f"after wait() the status is {client.status()}."
        client.add([_request("one")]).result(_WAIT_S)
        tokens, reason = heard.output("one")
        client.add([_request("two")]).result(_WAIT_S)
        again, _ = heard.output("two")
    assert (len(tokens), reason) == (5, "length"), (
        f"5 tokens were requested, {len(tokens)} came, finish reason {reason!r}."
    )
    assert again == tokens, f"the same request gave {tokens} and then {again}."
    assert heard.started == ["one", "two"], (
        f"the listener heard of the first steps of {heard.started}."
    )


def check_a_refused_request_is_the_error_of_its_future(subject: Subject) -> None:
    """All of its sequences or none; the engine goes on."""
    with _running(subject) as (client, heard):
        bad = EngineRequest(
            request_id="bad",
            prompt_token_ids=[5] * (2 * _LENGTH),
            sampling=SamplingParams(),
            seed=0,
            max_tokens=1,
        )
        try:
            client.add([_request("good"), bad]).result(_WAIT_S)
        except InvalidRequest:
            pass
        else:
            raise AssertionError(
                "a prompt longer than the context was accepted; add() must hold `InvalidRequest`."
            )
        client.add([_request("good")]).result(_WAIT_S)
        assert heard.output("good")[1] == "length", (
            "after a refused request the next one did not end."
        )


def check_abort_ends_what_is_open_and_passes_over_the_rest(subject: Subject) -> None:
    """What it returns is the end of the request; nothing of it is delivered afterwards."""
    aborted = 0
    with _running(subject) as (client, heard):
        for name in (
            "open",
            "open too",
            "open still",
        ):  # on a busy machine one may end before it is aborted
            client.add([_request(name, 50)]).result(_WAIT_S)
            ended = client.abort([name, "unknown"]).result(_WAIT_S)
            client.add([_request(f"next to {name}")]).result(_WAIT_S)
            while (delta := heard.deltas.get(timeout=_WAIT_S)).request_id == name:
                assert not ended or delta.finish_reason is None, (
                    "an aborted request was delivered as ended once more."
                )
            assert delta.request_id == f"next to {name}", (
                f"{delta.request_id!r} came without a request."
            )
            if delta.finish_reason is None:
                heard.output(delta.request_id)
            assert [(d.request_id, d.finish_reason) for d in ended] in ([(name, "abort")], []), (
                f"abort() returned {ended}."
            )
            aborted += len(ended)
    assert aborted, "abort() has ended none of three requests that were open."


def check_calls_are_answered(subject: Subject) -> None:
    """By name, with bytes; the engine's own is to forget cached prompts."""
    with _running(subject) as (client, _):
        assert client.call("reset_prefix_cache").result(_WAIT_S)[0].scheduler == b"1", (
            "an idle cache could not be reset."
        )


def check_stop_is_safe_in_any_state(subject: Subject) -> None:
    """Start-up may fail anywhere, and the end is announced more than once; futures requested later
    say so.
    """
    client = _make(subject, _Heard())
    client.stop()
    client.stop()
    with _running(subject) as (client, _):
        client.stop()
        client.stop()
        assert client.status().state == "dead", f"after stop() the status is {client.status()}."
        for future in (client.add([_request("late")]), client.call("reset_prefix_cache")):
            error = future.exception(_WAIT_S)
            assert isinstance(error, EngineDead), (
                f"after stop() a future holds {error!r} instead of `EngineDead`."
            )


def _make(subject: Subject, heard: _Heard) -> Client:
    registry = load_plan(make_plan(["none", *_PLUGINS]))
    settings: dict[str, Any] = {
        "dtype": "float32",
        "max_model_len": _LENGTH,
        "max_num_seqs": 2,
        "num_threads": 1,
    }
    settings |= {"num_gpu_blocks_override": 32, "skip_tokenizer_init": True, "log_level": "error"}
    config = config_from_kwargs({"model": "fake:", **settings}, registry.options())
    made: Client = subject.target(config, registry, heard.listener)
    return made


@contextmanager
def _running(subject: Subject) -> Iterator[tuple[Client, _Heard]]:
    heard = _Heard()
    client = _make(subject, heard)
    try:
        running = client.wait()
        assert running.config.scheduler.max_num_batched_tokens, (
            "wait() returned a configuration with gaps."
        )
        assert running.info.vocab_size > 0, "wait() returned no vocabulary."
        yield client, heard
    finally:
        client.stop()


def _request(request_id: str, max_tokens: int = 5) -> EngineRequest:
    sampling = SamplingParams(temperature=0, ignore_eos=True)
    return EngineRequest(
        request_id=request_id,
        prompt_token_ids=[5, 9, 30, 7],
        sampling=sampling,
        seed=0,
        max_tokens=max_tokens,
    )
