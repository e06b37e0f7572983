"""What a mask or a compilation costs is its own request's trouble: neighbours go on, and beyond its
budget it fails alone.
"""

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

STRANGE = Path(__file__).with_name("strange_backend.py")
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


@pytest.fixture(scope="module", params=[False, True], ids=["one step at a time", "two"])
def strange(request: pytest.FixtureRequest, open_llm: Callable[..., LLM]) -> LLM:
    return open_llm(
        plugins=[f"+{STRANGE}"], structured_outputs_config=BUDGETS, async_scheduling=request.param
    )


@pytest.fixture
def lates(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """What the ranks say of masks, by the names of its kinds."""
    said: list[str] = []
    hear = scheduling.Gate._hear

    def listen(self: scheduling.Gate, told: Any, life: Any) -> None:
        said.append(type(told).__name__)
        hear(self, told, life)

    monkeypatch.setattr(scheduling.Gate, "_hear", listen)
    return said


def run(llm: LLM, *params: SamplingParams) -> list[RequestOutput]:
    return llm.generate(["abc"] * len(params), list(params), use_tqdm=False)


def tokens(output: RequestOutput) -> list[int]:
    assert output.error is None, output.error
    return list(output.outputs[0].token_ids)


def test_rows_whose_masks_are_slow_get_the_same_tokens_and_so_do_their_neighbours(
    strange: LLM, lates: list[str]
) -> None:
    quick = [tokens(output) for output in run(strange, FREE, under("quick", 1), under("quick", 2))]
    lates.clear()  # on a busy machine these may have been late, too
    slow = [
        tokens(output) for output in run(strange, FREE, under("slow 40", 1), under("slow 40", 2))
    ]
    assert slow == quick
    assert "Pace" in lates


def test_a_row_sits_out_while_its_mask_is_made(strange: LLM) -> None:
    strange.add_request("slow", "abc", under("slow 60"))
    while not any(output.outputs[0].token_ids for output in strange.step()):
        pass
    strange.add_request("free", "abc", FREE)
    done: dict[str, RequestOutput] = {}
    while "free" not in done:
        done |= {output.request_id: output for output in strange.step() if output.finished}
    assert "slow" not in done
    while strange.has_unfinished_requests():
        done |= {output.request_id: output for output in strange.step() if output.finished}
    assert len(tokens(done["slow"])) == 12


def test_a_mask_beyond_its_budget_ends_its_request_alone_and_by_name(strange: LLM) -> None:
    alone = tokens(run(strange, FREE)[0])
    failed, free, other = run(strange, under("stuck"), FREE, under("quick"))
    assert failed.error is not None
    assert "structured_outputs.regex: takes more than 0.3 s of work for one token" in failed.error
    assert "--structured-outputs-config.mask_budget_s" in failed.error
    assert isinstance(failed.refusal, InvalidRequest)
    assert failed.refusal.field == "structured_outputs.regex"
    assert tokens(free) == alone
    assert len(tokens(other)) == 12


def test_masks_beyond_their_budget_together_end_their_output_and_none_beside_it(
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


def test_a_row_that_sits_out_for_a_mask_ends_with_it(strange: LLM) -> None:
    (failed,) = run(strange, under("sticky 40"))
    assert failed.error is not None
    assert "--structured-outputs-config.mask_budget_s" in failed.error


@pytest.mark.parametrize(
    ("regex", "option", "said"),
    [
        ("work", "compile_timeout_s", "takes more than 0.6 s of work to compile"),
        ("take", "compile_memory_bytes", "takes more .*memory"),
    ],
)
def test_a_compilation_beyond_its_limits_is_stopped_by_name(
    strange: LLM, regex: str, option: str, said: str
) -> None:
    failed, free = run(strange, under(regex), FREE)
    assert isinstance(failed.refusal, InvalidRequest), failed.error
    with pytest.raises(InvalidRequest, match=f"structured_outputs.regex: {said}"):
        raise failed.refusal
    assert len(tokens(free)) == 30


def test_nobody_waits_for_compilations_that_take_long(strange: LLM) -> None:
    for number in range(6):
        strange.add_request(f"hostile {number}", "abc", under("work " + " " * number + "3600000"))
    strange.add_request("honest", "abc", under("quick"))
    done: list[str] = []
    while "honest" not in done:
        done += [output.request_id for output in strange.step() if output.finished]
    assert len(done) < 6
    strange.abort([f"hostile {number}" for number in range(6)])


def test_what_a_backend_fails_of_costs_one_request(strange: LLM) -> None:
    broken, stateless, fine = run(strange, under("broken"), under("stateless"), under("quick"))
    assert (
        broken.error
        == "structured_outputs.regex: strange has failed at this constraint: no grammar today"
    )
    assert (
        stateless.error
        == "structured_outputs.regex: strange has failed at this request: no state today"
    )
    assert broken.refusal is None or not isinstance(broken.refusal, InvalidRequest)
    assert len(tokens(fine)) == 12


def test_a_keeper_that_dies_costs_its_requests_and_the_next_one_is_served(strange: LLM) -> None:
    died, fine = run(strange, under("crash"), under("quick"))
    assert died.error is not None
    assert "the process that kept its grammar has ended" in died.error
    assert len(tokens(fine)) == 12
    assert len(tokens(run(strange, under("quick", 5))[0])) == 12


def test_an_aborted_request_stops_its_compilation(strange: LLM) -> None:
    keepers = strange._front.registry.shared("structured_outputs", lambda: None)
    strange.add_request("gone", "abc", under("wait"))
    strange.step()
    strange.abort("gone")
    while strange.has_unfinished_requests() or any(
        key[1].text == "wait" for key in [*keepers._handles]
    ):
        strange.step()


def test_nothing_is_left_of_it(open_llm: Callable[..., LLM]) -> None:
    llm = open_llm(plugins=[f"+{STRANGE}"], structured_outputs_config=BUDGETS)
    run(llm, under("quick"))
    keepers = llm._front.registry.shared("structured_outputs", lambda: None)
    pids = [keepers._nursery._child.pid, *(handle._pid for handle in keepers._handles.values())]
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
