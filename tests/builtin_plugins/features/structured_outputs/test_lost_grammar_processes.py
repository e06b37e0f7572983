"""Constrained outputs go on in another grammar process when theirs is killed or frozen."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from builtin_plugins.executors.process.messages import RemoteError
from builtin_plugins.features.structured_outputs import compiler_pool, frozen_processes
from builtin_plugins.features.structured_outputs.grammar_handle import ProcessState
from builtin_plugins.features.structured_outputs.messages import MaskLost
from builtin_plugins.features.structured_outputs.scheduling import MAX_LOST, MaskScheduler
from core import LLM, SamplingParams, StructuredOutputsParams
from core.api import RequestFailed

pytest.importorskip("xgrammar")
FORM = StructuredOutputsParams(regex=r"([a-z]{3}[0-9]{2} ){12}")
OTHER = StructuredOutputsParams(regex=r"([0-9]{3}[a-z]{2} ){12}")


def params(form: StructuredOutputsParams, seed: int) -> SamplingParams:
    return SamplingParams(max_tokens=60, temperature=1.0, seed=seed, structured_outputs=form)


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(False, marks=pytest.mark.slow, id="one step at a time"),
        pytest.param(True, id="two"),
    ],
)
def engine(request: pytest.FixtureRequest, open_llm: Callable[..., LLM]) -> LLM:
    return open_llm(async_scheduling=request.param)


@pytest.fixture
def soon_frozen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frozen_processes, "FROZEN_S", 1.0)


def pool_of(llm: LLM) -> Any:
    return llm._frontend.registry.shared("structured_outputs", lambda: None)


def generate(
    llm: LLM, at_token: int = 0, act: Callable[[Any], None] | None = None
) -> list[list[int]]:
    """Return the tokens of four outputs; call `act` with the pool once one has `at_token`."""
    tokens: dict[str, list[int]] = {}
    for i in range(4):
        llm.add_request(f"r{i}", "x", params(OTHER if i % 2 else FORM, i))
    while llm.has_unfinished_requests():
        for output in llm.step():
            assert output.error is None
            tokens[output.request_id] = [*output.outputs[0].token_ids]
        if act is not None and any(len(found) >= at_token for found in tokens.values()):
            act(pool_of(llm))
            act = None
    assert act is None
    return [tokens[f"r{i}"] for i in range(4)]


def running(pool: Any) -> list[int]:
    return [h.pid for h in pool._handles.values() if h.state is ProcessState.READY]


@pytest.mark.parametrize("at_token", [1, 9])
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_outputs_of_a_dead_or_stopped_grammar_process_are_unchanged(
    engine: LLM, number: int, at_token: int, soon_frozen: None
) -> None:
    expected = generate(engine)

    def act(pool: Any) -> None:
        os.kill(running(pool)[0], number)

    assert generate(engine, at_token, act) == expected


def test_outputs_are_unchanged_when_the_fork_server_is_killed(engine: LLM) -> None:
    expected = generate(engine)

    def act(pool: Any) -> None:
        os.kill(pool._compilers._child.pid, signal.SIGKILL)

    assert generate(engine, 5, act) == expected
    assert generate(engine) == expected


def test_stopped_fork_server_is_replaced(engine: LLM, soon_frozen: None) -> None:
    expected = generate(engine)
    pool = pool_of(engine)
    stopped = pool._compilers._child
    os.kill(stopped.pid, signal.SIGSTOP)
    for pid in running(pool):
        os.kill(pid, signal.SIGKILL)
    assert generate(engine) == expected
    assert pool._compilers._child is not stopped
    assert not stopped.is_alive


def test_fork_server_that_cannot_start_fails_requests_only(
    open_llm: Callable[..., LLM], monkeypatch: pytest.MonkeyPatch
) -> None:
    llm = open_llm(structured_outputs_config={"warm_up": False})

    def refuse(*arguments: Any) -> None:
        raise OSError(24, "Too many open files")

    with monkeypatch.context() as patched:
        patched.setattr(compiler_pool, "make_compiler_pool", refuse)
        with pytest.raises(RequestFailed, match="the fork server has exited"):
            llm.generate("x", params(FORM, 0), use_tqdm=False)
    free, held = llm.generate(
        ["x"] * 2, [SamplingParams(max_tokens=3), params(FORM, 0)], use_tqdm=False
    )
    assert (free.error, held.error) == (None, None)


def test_request_fails_after_process_after_process_died_at_one_token() -> None:
    known = SimpleNamespace(request_id="a", row=0, num_tokens=5, prompt_len=3, tokens=[1] * 5)
    known.features = {}
    known.sampling = SamplingParams(structured_outputs=FORM)
    known.source = SimpleNamespace(eos_token_ids=())
    recomputed: list[tuple[str, int]] = []
    scheduler = MaskScheduler(num_ranks=1)
    scheduler.attach(
        SimpleNamespace(recompute=lambda *what: recomputed.append(what), wake=lambda name: None)
    )
    fault = RemoteError("RequestFailed", "it has exited")

    def lose(pid: int) -> None:
        scheduler.may_start(known)
        scheduler.result(msgspec.msgpack.encode([MaskLost("a", 0, fault, pid)]))

    for pid in range(MAX_LOST):
        lose(100 + pid)
        lose(100 + pid)  # both steps in flight report it
    assert recomputed == [("a", 4)] * 2 * MAX_LOST
    known.num_tokens = 6
    for pid in range(4, 4 + MAX_LOST):
        lose(pid)
    assert not scheduler.may_start(known)
    lose(99)
    with pytest.raises(RequestFailed, match="it has exited"):
        scheduler.may_start(known)
