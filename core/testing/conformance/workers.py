"""What every worker must hold to: tokens for plans, in their order, and rows that another request
may take.

Runs the fake model on the CPU; a worker for other devices states so with `when` and is checked
where they are.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from core.config.build import config_from_kwargs
from core.kv import plan_layout
from core.plugin import load_plan, make_plan
from core.step import NewRow, StepPlan, StepResult
from core.testing.fake_model import fake_source
from core.types import SamplingParams

if TYPE_CHECKING:
    from core.contracts.workers import Worker
    from core.testing.conformance import Subject

_PLUGINS: Final = (
    "core.testing.fake_model",
    "platform_cpu",
    "attention_reference",
    "runner_generate",
)
_PROMPTS: Final = ([5, 9, 30, 7], [22, 3, 4, 5, 6, 8])
_LENGTH: Final = 32
_BLOCK: Final = 4
_PAGES: Final = _LENGTH // _BLOCK


def check_start_returns_the_model_info(subject: Subject) -> None:
    """Memory is divided by what `start` returns."""
    info = _make(subject).start()
    assert info.layers, "start() returned no caching layers."
    assert info.vocab_size > 0, "start() returned no vocabulary."
    assert info.kv_memory_bytes > 0, "start() left no memory for the cache."


def check_tokens_do_not_depend_on_chunks_or_neighbours(subject: Subject) -> None:
    """Chunks and batch composition do not change results."""
    alone = [[_tokens(subject, [(index, len(prompt))])[0]] for index, prompt in enumerate(_PROMPTS)]
    together = _tokens(subject, [(0, len(_PROMPTS[0])), (1, len(_PROMPTS[1]))])
    cut = _tokens(subject, [(0, 3), (1, 2)])
    assert [[t] for t in together] == alone, (
        f"side by side the prompts give {together}, each alone {alone}."
    )
    assert [[t] for t in cut] == alone, f"in two steps the prompts give {cut}, in one {alone}."


def check_a_row_is_taken_anew_after_its_end(subject: Subject) -> None:
    """A row belongs to one request from its `NewRow` until a plan says that it has ended."""
    with _running(subject) as worker:
        first = worker.execute(_plan(0, 0, 0, len(_PROMPTS[0]))).get().tokens
        worker.execute(_plan(1, 0, 1, len(_PROMPTS[1]), ended=[0])).get()
        again = worker.execute(_plan(2, 0, 0, len(_PROMPTS[0]), ended=[0])).get().tokens
    assert again == first, (
        f"the same prompt gave {first}, and {again} in a row that another request had had."
    )


def check_a_failed_step_does_not_end_the_worker(subject: Subject) -> None:
    """What a step raises costs its requests; the next one runs."""
    with _running(subject) as worker:
        try:
            worker.execute(StepPlan(0, [], [], [], [10_000], [0], [1], [0])).get()
        except Exception:  # noqa: BLE001 - which error it is, is the worker's affair
            pass
        else:
            raise AssertionError("a row no batch has was computed; execute() or get() must raise.")
        found = worker.execute(_plan(0, 0, 0, len(_PROMPTS[0]))).get()
    assert found.tokens, "after a failed step the next one gave no token."


def check_a_call_of_an_absent_feature_returns_none(subject: Subject) -> None:
    """Features may have no half in the worker."""
    with _running(subject) as worker:
        assert not worker.reports, "`reports` is true although no feature has a half here."
        assert worker.call("no.feature", b"data") is None, (
            "call() answers for a feature that is not there."
        )


def _make(subject: Subject) -> Worker:
    registry = load_plan(make_plan(["none", *_PLUGINS]))
    settings: dict[str, Any] = {
        "dtype": "float32",
        "max_model_len": _LENGTH,
        "max_num_seqs": 2,
        "num_threads": 1,
    }
    config = config_from_kwargs({"model": "fake:", **settings}, registry.options())
    made: Worker = subject.target(config, registry, fake_source(max_model_len=_LENGTH))
    return made


@contextmanager
def _running(subject: Subject) -> Iterator[Worker]:
    worker = _make(subject)
    try:
        layers = worker.start().layers
        layout = plan_layout(
            layers,
            block_size=_BLOCK,
            memory_bytes=0,
            num_blocks=32,
            max_model_len=_LENGTH,
            max_num_seqs=2,
        )
        worker.allocate(layout)
        yield worker
    finally:
        worker.close()
        worker.close()


def _tokens(subject: Subject, firsts: list[tuple[int, int]]) -> list[int]:
    """Return the token after each of some prompts, of which the first so many tokens are computed
    in a step before.
    """
    with _running(subject) as worker:
        new = [_row(row, prompt) for row, (prompt, _) in enumerate(firsts)]
        sizes = [len(_PROMPTS[prompt]) for prompt, _ in firsts]
        rows = list(range(len(firsts)))
        counts = [count for _, count in firsts]
        whole = [row for row in rows if counts[row] == sizes[row]]
        result: StepResult = worker.execute(
            StepPlan(0, [], new, [], rows, [0] * len(rows), counts, whole)
        ).get()
        if not whole:
            rest = [size - count for size, count in zip(sizes, counts, strict=True)]
            result = worker.execute(StepPlan(1, [], [], [], rows, counts, rest, rows)).get()
    return result.tokens


def _plan(step: int, row: int, prompt: int, count: int, ended: list[int] | None = None) -> StepPlan:
    """Return the plan of a step that computes one whole prompt."""
    return StepPlan(step, ended or [], [_row(row, prompt)], [], [row], [0], [count], [0])


def _row(row: int, prompt: int) -> NewRow:
    tokens = _PROMPTS[prompt]
    blocks = [list(range(1 + row * _PAGES, 1 + (row + 1) * _PAGES))]
    return NewRow(
        row,
        f"request {prompt}",
        list(tokens),
        len(tokens),
        SamplingParams(temperature=0),
        0,
        (),
        blocks,
    )
