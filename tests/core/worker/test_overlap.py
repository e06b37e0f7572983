"""At depth 2 the host prepares a step while the device computes the previous one."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import pytest

from core.engine.in_process_executor import UniExecutor
from core.kv import plan_layout
from core.step import NewRow, StepPlan
from core.types import SamplingParams
from tests.core.worker.slow_device import SlowDevice
from tests.core.worker.step_driver import BLOCK, GREEDY, MAX_LEN, Driver, settings
from tests.timeouts import TIMEOUT_S

SLOW = str(Path(__file__).with_name("slow_device_plugin.py"))
PROMPT = [5, 9, 30]
DEVICE_S = 0.005
HOST_S = 0.002
STEPS = 50


@pytest.fixture(autouse=True)
def _as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("padded", "wait", "device_s"):
        monkeypatch.setattr(SlowDevice, name, SlowDevice.__dict__[name])


def executor(*, ahead: bool, rows: int = 4) -> UniExecutor:
    made = UniExecutor(*settings(SLOW, device="slow", max_num_seqs=rows, async_scheduling=ahead))
    info = made.start()
    sizes = {"block_size": BLOCK, "max_model_len": MAX_LEN, "max_num_seqs": rows}
    made.allocate(
        plan_layout(info.layers, memory_bytes=0, num_blocks=1 + rows * MAX_LEN // BLOCK, **sizes)
    )
    return made


def first(rows: int = 4) -> StepPlan:
    each = MAX_LEN // BLOCK
    new = [
        NewRow(r, str(r), PROMPT, 3, GREEDY, r, (), [list(range(1 + r * each, 1 + (r + 1) * each))])
        for r in range(rows)
    ]
    names = list(range(rows))
    return StepPlan(0, [], new, [], names, [0] * rows, [3] * rows, names)


def decode(step: int, rows: list[int]) -> StepPlan:
    return StepPlan(step, [], [], [], [], [], [], [], {}, rows)


def test_step_is_launched_before_the_previous_one_is_done() -> None:
    gate = threading.Event()
    entered = threading.Semaphore(0)

    def wait(batch: Any) -> None:
        entered.release()
        assert gate.wait(TIMEOUT_S), "the gate stays closed"

    SlowDevice.wait = staticmethod(wait)
    uni = executor(ahead=True)
    uni.submit(first())
    assert entered.acquire(timeout=TIMEOUT_S)  # the device is in step 0
    uni.submit(decode(1, [0, 1, 2, 3]))  # the host part of step 1 is done
    inputs = uni.worker._batch._next_positions  # type: ignore[union-attr]
    assert inputs[:4].tolist() == [4, 4, 4, 4]
    gate.set()
    results = [uni.collect(), uni.collect()]
    assert [result.step for result in results] == [0, 1]
    inline = executor(ahead=False)
    for plan, want in zip((first(), decode(1, [0, 1, 2, 3])), results, strict=True):
        inline.submit(plan)
        assert inline.collect().tokens == want.tokens
    uni.shutdown()


def test_failed_steps_in_flight_are_reported_in_order() -> None:
    def wait(batch: Any) -> None:
        if batch.counts == [1, 1, 1, 1]:
            raise ValueError("no luck")

    SlowDevice.wait = staticmethod(wait)
    uni = executor(ahead=True)
    uni.submit(first())
    uni.submit(decode(1, [0, 1, 2, 3]))
    assert uni.collect().step == 0
    with pytest.raises(ValueError, match="no luck"):
        uni.collect()
    uni.shutdown()


def seconds_per_step(*, ahead: bool, host_s: float) -> float:
    """Return the seconds per step with a host that computes between two steps."""
    uni = executor(ahead=ahead)
    rows = [0, 1, 2, 3]
    uni.submit(first())
    uni.collect()
    if ahead:
        uni.submit(decode(1, rows))
    started = time.perf_counter()
    for step in range(2, 2 + STEPS):
        uni.submit(decode(step, rows))
        uni.collect()
        until = time.perf_counter() + host_s
        while time.perf_counter() < until:
            pass
    took = (time.perf_counter() - started) / STEPS
    uni.shutdown()
    return took


@pytest.mark.bench
def test_host_work_overlaps_device_work() -> None:
    SlowDevice.device_s = DEVICE_S
    found = [
        (seconds_per_step(ahead=True, host_s=HOST_S), seconds_per_step(ahead=False, host_s=HOST_S))
        for _ in range(3)
    ]
    print(
        "milliseconds a step, depth 2 and 1:", *(f"{a * 1e3:.2f} {b * 1e3:.2f}" for a, b in found)
    )
    assert min(ahead for ahead, _ in found) <= 5.3e-3
    assert min(without for _, without in found) > 7e-3


def test_padded_steps_match_and_reuse_addresses() -> None:
    sizes: dict[int, set[tuple[int, ...]]] = {}

    def wait(batch: Any) -> None:
        addresses = batch.positions.data_ptr(), batch.attention[0].slots.data_ptr()
        sizes.setdefault(len(batch.input_ids), set()).add(addresses)
        assert len(batch.rows) == len(batch.starts) == len(batch.counts) == len(batch.prompt_lens)
        assert sum(batch.counts) == len(batch.input_ids) == len(batch.positions)

    SlowDevice.padded = (4, 16)
    SlowDevice.wait = staticmethod(wait)
    plain = Driver()
    padded = Driver(SLOW, device="slow")
    for driver in (plain, padded):
        driver.add("a", PROMPT)
        driver.add(
            "b",
            [7] * 20,
            SamplingParams(temperature=0.9, top_k=9, logprobs=2, prompt_logprobs=1),
            seed=3,
        )
    for _ in range(6):
        want = plain.step()
        got = padded.step()
        assert got.tokens == want.tokens
        assert [len(entries) for entries in got.prompt_logprobs.values()] == [
            len(entries) for entries in want.prompt_logprobs.values()
        ]
    assert set(sizes) == {23, 4}
    assert len(sizes[4]) == 1
    assert padded.generate("a", 3) == plain.generate("a", 3)
