"""`LLM` with wrong arguments, Ctrl-C, and after shutdown."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from core import LLM, SamplingParams
from core.errors import EngineDead, InvalidRequest
from core.frontend.terminal import Interrupts
from core.testing.invariants import check_scheduler

GREEDY = SamplingParams(max_tokens=200, temperature=0)


@pytest.fixture(autouse=True)
def at_a_terminal() -> Iterator[None]:
    """What a shell starts in the background ignores Ctrl-C; these tests are about what a terminal
    does.
    """
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture(scope="module", params=[False, True], ids=["sync", "async"])
def llm(request: pytest.FixtureRequest) -> Iterator[LLM]:
    with LLM(
        "scripted:", max_model_len=256, num_gpu_blocks_override=200, async_scheduling=request.param
    ) as engine:
        yield engine


def text(llm: LLM, prompt: str) -> str:
    return llm.generate(prompt, GREEDY, use_tqdm=False)[0].outputs[0].text


def call_at_step(
    llm: LLM, monkeypatch: pytest.MonkeyPatch, number: int, action: Callable[[], Any]
) -> None:
    executor = llm.core.executor
    collect = executor.collect
    steps = iter(range(1, 10_000))

    def watched() -> Any:
        if next(steps) == number:
            action()
        return collect()

    monkeypatch.setattr(executor, "collect", watched)


def test_ctrl_c_ends_the_call_between_steps(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    call_at_step(llm, monkeypatch, 5, lambda: signal.raise_signal(signal.SIGINT))
    failed_before = llm.core.num_steps
    with pytest.raises(KeyboardInterrupt):
        text(llm, "interrupted " * 10)
    assert llm.core.num_steps == failed_before + 5  # the step under way was finished, none was lost
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert text(llm, "again") == "again"
    check_scheduler(llm.core.scheduler)
    assert llm.core.scheduler.kv.usage == 0


def test_interrupt_inside_a_step_leaves_a_usable_engine(
    llm: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    call_at_step(llm, monkeypatch, 5, interrupt)
    with pytest.raises(KeyboardInterrupt):
        text(llm, "interrupted " * 10)
    monkeypatch.undo()
    llm.core.executor._queue.clear()  # the plan of the interrupted collection
    assert text(llm, "again") == "again"
    check_scheduler(llm.core.scheduler)


def test_second_ctrl_c_is_raised_at_once() -> None:
    with Interrupts() as interrupts:
        signal.raise_signal(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            interrupts.check()


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        ({"prompts": None}, "prompts"),
        ({"prompts": 5}, "prompts"),
        ({"prompts": b"bytes"}, "prompts"),
        ({"prompts": [None]}, "prompt"),
        ({"prompts": ""}, "prompt"),
        ({"prompts": {"prompt": "a", "multi_modal_data": {"image": 1}}}, "multi_modal_data"),
        ({"sampling_params": "x"}, "sampling_params"),
        ({"sampling_params": [None, GREEDY]}, "sampling_params"),
        ({"sampling_params": [GREEDY]}, "sampling_params"),
        ({"priority": 5}, "priority"),
        ({"priority": [1]}, "priority"),
        ({"priority": ["x", "y"]}, "priority"),
        ({"sampling_params": SamplingParams(bad_words_token_ids=[[10**9]])}, "bad_words_token_ids"),
    ],
)
def test_invalid_argument_is_named_and_nothing_runs(
    llm: LLM, arguments: dict[str, Any], field: str
) -> None:
    given = {"prompts": ["a", "b"], "sampling_params": GREEDY, "use_tqdm": False, **arguments}
    with pytest.raises(InvalidRequest) as refused:
        llm.generate(**given)
    assert refused.value.field == field
    assert not llm.has_unfinished_requests() or llm.step() == []
    check_scheduler(llm.core.scheduler)


@pytest.mark.parametrize("messages", [None, "hi", {}, 5])
def test_invalid_conversation_is_refused(llm: LLM, messages: Any) -> None:
    with pytest.raises(InvalidRequest, match="messages"):
        llm.chat(messages, GREEDY, use_tqdm=False)


@pytest.mark.parametrize(
    ("values", "field"),
    [
        ({"extra_args": 5}, "extra_args"),
        ({"output_kind": "DELTA"}, "output_kind"),
        ({"stop": ["x" * 1025]}, "stop"),
        ({"bad_words": ["x" * 1025]}, "bad_words"),
    ],
)
def test_invalid_sampling_param_is_refused(values: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        SamplingParams(**values)
    assert refused.value.field == field


@pytest.mark.parametrize("async_scheduling", [False, True])
def test_use_after_shutdown_raises_engine_dead(async_scheduling: bool) -> None:
    llm = LLM(
        "scripted:", max_model_len=64, num_gpu_blocks_override=16, async_scheduling=async_scheduling
    )
    llm.shutdown()
    llm.shutdown()
    with pytest.raises(EngineDead, match="shut down"):
        text(llm, "a")
