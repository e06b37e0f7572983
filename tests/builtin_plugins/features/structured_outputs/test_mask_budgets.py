"""Slow masks and compilations do not delay other requests, and fail alone beyond their budget."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from builtin_plugins.features.structured_outputs import scheduling
from core import LLM, RequestOutput, SamplingParams, StructuredOutputsParams
from core.api import InvalidRequest

FAULTY_BACKEND = Path(__file__).with_name("faulty_backend.py")
BUDGETS: dict[str, Any] = {
    "backend": "strange",
    "compile_timeout_s": 0.6,
    "compile_memory_bytes": 64 << 20,
    "mask_budget_s": 0.3,
    "output_budget_s": 1.0,
}
FREE = SamplingParams(max_tokens=30, temperature=0.0, ignore_eos=True)


def under(regex: str, seed: int = 0, max_tokens: int = 12) -> SamplingParams:
    form = StructuredOutputsParams(regex=regex)
    return SamplingParams(
        max_tokens=max_tokens, temperature=1.0, seed=seed, ignore_eos=True, structured_outputs=form
    )


@pytest.fixture(
    scope="module",
    params=[pytest.param(False, marks=pytest.mark.slow), True],
    ids=["one step at a time", "two"],
)
def strange(request: pytest.FixtureRequest, open_llm: Callable[..., LLM]) -> LLM:
    return open_llm(
        plugins=[f"+{FAULTY_BACKEND}"],
        structured_outputs_config=BUDGETS,
        async_scheduling=request.param,
    )


@pytest.fixture
def mask_messages(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Type names of the mask messages that the ranks send."""
    names: list[str] = []
    hear = scheduling.MaskScheduler._on_message

    def listen(self: scheduling.MaskScheduler, message: Any, known: Any) -> None:
        names.append(type(message).__name__)
        hear(self, message, known)

    monkeypatch.setattr(scheduling.MaskScheduler, "_on_message", listen)
    return names


def run(llm: LLM, *params: SamplingParams) -> list[RequestOutput]:
    return llm.generate(["abc"] * len(params), list(params), use_tqdm=False)


def tokens(output: RequestOutput) -> list[int]:
    assert output.error is None, output.error
    return list(output.outputs[0].token_ids)


def test_slow_masks_change_no_tokens(strange: LLM, mask_messages: list[str]) -> None:
    quick = [tokens(output) for output in run(strange, FREE, under("quick", 1), under("quick", 2))]
    mask_messages.clear()  # on a busy machine these may have been late too
    slow = [
        tokens(output) for output in run(strange, FREE, under("slow 40", 1), under("slow 40", 2))
    ]
    assert slow == quick
    assert "MaskTiming" in mask_messages


def test_row_pauses_until_its_mask_is_ready(strange: LLM, tmp_path: Path) -> None:
    file = tmp_path / "held"
    strange.add_request("slow", "abc", under(f"held {file}"))
    while not any(output.outputs[0].token_ids for output in strange.step()):
        pass
    file.touch()
    strange.add_request("free", "abc", FREE)
    done: dict[str, RequestOutput] = {}
    while "free" not in done:
        done |= {output.request_id: output for output in strange.step() if output.finished}
    assert "slow" not in done
    file.unlink()
    while strange.has_unfinished_requests():
        done |= {output.request_id: output for output in strange.step() if output.finished}
    assert len(tokens(done["slow"])) == 12


def test_mask_over_budget_fails_its_request_only(strange: LLM) -> None:
    alone = tokens(run(strange, FREE)[0])
    failed, free, other = run(strange, under("stuck"), FREE, under("quick"))
    assert failed.error is not None
    assert "structured_outputs.regex: takes more than 0.3 s of work for one token" in failed.error
    assert "--structured-outputs-config.mask_budget_s" in failed.error
    assert isinstance(failed.refusal, InvalidRequest)
    assert failed.refusal.field == "structured_outputs.regex"
    assert tokens(free) == alone
    assert len(tokens(other)) == 12


def test_masks_over_output_budget_fail_their_output_only(
    strange: LLM,
) -> None:
    failed, short, free = run(
        strange, under("slow 270", max_tokens=90), under("slow 270", max_tokens=2), FREE
    )
    assert isinstance(failed.refusal, InvalidRequest), failed.error
    assert failed.refusal.field == "structured_outputs.regex"
    assert "takes more than 1 s of work for the tokens of one output" in str(failed.refusal)
    assert "--structured-outputs-config.output_budget_s" in str(failed.refusal)
    assert len(tokens(short)) == 2
    assert len(tokens(free)) == 30


def test_paused_row_fails_with_its_mask(strange: LLM) -> None:
    (failed,) = run(strange, under("sticky 40"))
    assert failed.error is not None
    assert "--structured-outputs-config.mask_budget_s" in failed.error


@pytest.mark.parametrize(
    ("regex", "option", "message"),
    [
        ("work", "compile_timeout_s", "takes more than 0.6 s of work to compile"),
        ("take", "compile_memory_bytes", "takes more .*memory"),
    ],
)
def test_compilation_over_budget_is_stopped(
    strange: LLM, regex: str, option: str, message: str
) -> None:
    failed, free = run(strange, under(regex), FREE)
    assert isinstance(failed.refusal, InvalidRequest), failed.error
    with pytest.raises(InvalidRequest, match=f"structured_outputs.regex: {message}"):
        raise failed.refusal
    assert len(tokens(free)) == 30


def test_slow_compilations_do_not_delay_other_requests(strange: LLM) -> None:
    for number in range(6):
        strange.add_request(f"hostile {number}", "abc", under("work " + " " * number + "3600000"))
    strange.add_request("honest", "abc", under("quick"))
    done: list[str] = []
    while "honest" not in done:
        done += [output.request_id for output in strange.step() if output.finished]
    assert len(done) < 6
    strange.abort([f"hostile {number}" for number in range(6)])


def test_backend_failure_fails_one_request(strange: LLM) -> None:
    broken, stateless, fine = run(strange, under("broken"), under("stateless"), under("quick"))
    assert (
        broken.error
        == "structured_outputs.regex: strange failed for this constraint: no grammar today"
    )
    assert (
        stateless.error
        == "structured_outputs.regex: strange failed for this request: no state today"
    )
    assert broken.refusal is None or not isinstance(broken.refusal, InvalidRequest)
    assert len(tokens(fine)) == 12


def test_crashed_grammar_process_fails_its_requests_only(strange: LLM) -> None:
    died, fine = run(strange, under("crash"), under("quick"))
    assert died.error is not None
    assert "its grammar process has exited" in died.error
    assert len(tokens(fine)) == 12
    assert len(tokens(run(strange, under("quick", 5))[0])) == 12


def test_aborted_request_stops_its_compilation(strange: LLM) -> None:
    pool = strange._frontend.registry.shared("structured_outputs", lambda: None)
    strange.add_request("gone", "abc", under("wait"))
    strange.step()
    strange.abort("gone")
    while strange.has_unfinished_requests() or any(
        key[1].text == "wait" for key in [*pool._handles]
    ):
        strange.step()


def test_shutdown_ends_all_grammar_processes(open_llm: Callable[..., LLM]) -> None:
    llm = open_llm(plugins=[f"+{FAULTY_BACKEND}"], structured_outputs_config=BUDGETS)
    run(llm, under("quick"))
    pool = llm._frontend.registry.shared("structured_outputs", lambda: None)
    pids = [pool._compilers._child.pid, *(handle.pid for handle in pool._handles.values())]
    assert all(os.path.exists(f"/proc/{pid}") for pid in pids)
    llm.shutdown()
    ended = threading.Event()
    while any(_runs(pid) for pid in pids):
        ended.wait(0.01)


def _runs(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
