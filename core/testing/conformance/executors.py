"""What every executor must hold to: results in the order of plans, whatever its depth, and a clean
end.

Runs the fake model on the CPU; an executor for other devices states so with `when` and is checked
where they are.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from core.config.build import config_from_kwargs
from core.kv import plan_layout
from core.plugin import load_plan, make_plan
from core.step import NewRow, StepPlan, StepResult
from core.testing.fake_model import fake_source
from core.types import SamplingParams

if TYPE_CHECKING:
    from core.contracts.workers import Executor
    from core.testing.conformance import Subject

_PLUGINS: Final = (
    "core.testing.fake_model",
    "platform_cpu",
    "attention_reference",
    "runner_generate",
    "launcher_local",
)
_PROMPT: Final = [5, 9, 30, 7]
_LENGTH: Final = 32
_BLOCK: Final = 4


def check_start_returns_the_model_info(subject: Subject) -> None:
    """Memory is divided by what `start` returns."""
    executor = _make(subject)
    try:
        info = executor.start()
    finally:
        executor.shutdown()
    assert info.layers, "start() returned no caching layers."
    assert info.vocab_size > 0, "start() returned no vocabulary."
    assert info.kv_memory_bytes > 0, "start() left no memory for the cache."


def check_results_come_in_the_order_of_plans(subject: Subject) -> None:
    """The engine matches results with plans by order; the next plan is made before the last result
    is in.
    """
    for asynchronous in (False, True):
        with _running(subject, asynchronous) as executor:
            assert executor.depth >= 1, (
                f"depth is {executor.depth}; at least one plan must be in flight."
            )
            in_flight = 0
            results = []
            for step in range(6):
                executor.submit(_plan(step))
                in_flight += 1
                if in_flight == executor.depth:
                    results.append(executor.collect())
                    in_flight -= 1
            results += [executor.collect() for _ in range(in_flight)]
        steps = [result.step for result in results]
        assert steps == list(range(6)), (
            f"results came for steps {steps}; keep the order of the plans."
        )


def check_tokens_do_not_depend_on_the_depth(subject: Subject) -> None:
    """Planning ahead is an optimisation; one plan at a time gives the same tokens."""
    with _running(subject, asynchronous=True) as executor:
        depth = executor.depth
        ahead: list[StepResult] = []
        for step in range(6):
            executor.submit(_plan(step))
            if step + 1 >= depth:
                ahead.append(executor.collect())
        ahead += [executor.collect() for _ in range(depth - 1)]
    with _running(subject, asynchronous=False) as executor:
        single = []
        for step in range(6):
            executor.submit(_plan(step))
            single.append(executor.collect())
    found = [r.tokens for r in ahead]
    expected = [r.tokens for r in single]
    assert found == expected, (
        f"with {depth} plans in flight the tokens are {found}, one by one {expected}."
    )


def check_a_failing_step_is_raised_by_collect(subject: Subject) -> None:
    """`submit` only queues; a fault of the step belongs to its result, and the next step runs."""
    for asynchronous in (False, True):
        with _running(subject, asynchronous) as executor:
            executor.submit(_plan(0, row=10_000))  # a row no batch has
            try:
                executor.collect()
            except Exception:  # noqa: BLE001 - which error it is, is the worker's affair
                pass
            else:
                raise AssertionError(
                    "a step that cannot be computed gave a result; collect() must raise."
                )
            executor.submit(_plan(0))
            assert executor.collect().tokens, "after a failed step the next one gave no token."


def check_an_unknown_call_returns_nothing(subject: Subject) -> None:
    """A feature may have no half in the workers; calls come between steps, also while one is in
    flight.
    """
    with _running(subject, asynchronous=True) as executor:
        assert executor.call("no.feature", b"data") == [], (
            "call() answers for a feature that is not there."
        )
        executor.submit(_plan(0))
        assert executor.call("no.feature", b"") == [], (
            "call() answers for a feature that is not there."
        )
        assert executor.collect().tokens, "after a call the step in flight gave no token."


def check_shutdown_is_safe_in_any_state(subject: Subject) -> None:
    """Start-up may fail anywhere, and the end is announced more than once."""
    executor = _make(subject)
    executor.shutdown()
    executor.shutdown()
    with _running(subject, asynchronous=True) as executor:
        executor.submit(_plan(0))
        executor.shutdown()


def _make(subject: Subject, asynchronous: bool = False) -> Executor:
    registry = load_plan(make_plan(["none", *_PLUGINS]))
    settings: dict[str, Any] = {
        "dtype": "float32",
        "max_model_len": _LENGTH,
        "max_num_seqs": 2,
        "num_threads": 1,
    }
    config = config_from_kwargs(
        {"model": "fake:", "async_scheduling": asynchronous, **settings}, registry.options()
    )
    config = replace(config, options={**subject.config.options, **config.options})
    made: Executor = subject.target(config, registry, fake_source(max_model_len=_LENGTH))
    return made


@contextmanager
def _running(subject: Subject, asynchronous: bool) -> Iterator[Executor]:
    """Yield an executor that takes plans."""
    executor = _make(subject, asynchronous)
    try:
        layers = executor.start().layers
        executor.allocate(
            plan_layout(
                layers,
                block_size=_BLOCK,
                memory_bytes=0,
                num_blocks=16,
                max_model_len=_LENGTH,
                max_num_seqs=2,
            )
        )
        yield executor
    finally:
        executor.shutdown()


def _plan(step: int, row: int = 0) -> StepPlan:
    """Return the plan of one greedy request's step: the prompt first, then a token each."""
    blocks = [list(range(1, _LENGTH // _BLOCK + 1))]
    new = [
        NewRow(
            row,
            "request",
            list(_PROMPT),
            len(_PROMPT),
            SamplingParams(temperature=0),
            0,
            (),
            blocks,
        )
    ]
    start, count = (len(_PROMPT) + step - 1, 1) if step else (0, len(_PROMPT))
    return StepPlan(step, [], [] if step else new, [], [row], [start], [count], [0])
