"""Call times per plugin: exact for long calls, sampled for short ones."""

from __future__ import annotations

import asyncio
import time

import pytest

from core import LLM, SamplingParams
from core.plugin.call_timer import LONG_S, SAMPLE_INTERVAL, CallTimer, call_timer

SLOW = """
import time
from core.api import Entry, hookimpl


class Sleepy:
    argmax_invariant = False
    params = ()

    def __init__(self, context):
        pass

    def wants(self, params):
        return True

    def added(self, row, params, token_ids, prompt_len):
        pass

    def removed(self, row):
        pass

    def apply(self, logits, rows):
        time.sleep(0.004)
        return logits


@hookimpl
def engine_logits_processors():
    return [Entry("sleepy", Sleepy, "sleeps")]
"""


class Hands:
    """A clock that stands still but where it is set forward."""

    def __init__(self):
        self.now_s = 0.0

    def __call__(self):
        return self.now_s


class Acme:
    limit = 3

    def __init__(self, clock):
        self._clock = clock
        self.calls = 0

    def work(self, takes_s):
        self.calls += 1
        self._clock.now_s += takes_s
        return self.calls

    def fail(self):
        self._clock.now_s += 1.0
        raise ValueError("no")


def test_long_calls_are_timed():
    clock = Hands()
    times = CallTimer(clock)
    acme = times.wrap("acme", Acme(clock))
    for takes_s in (0.5, 0.001, 2.0, LONG_S):
        acme.work(takes_s)
    assert times.totals()["acme"] == pytest.approx(2.501 + LONG_S)


@pytest.mark.parametrize("rare", [1, 16, 100])
def test_short_calls_are_sampled(rare):
    clock = Hands()
    times = CallTimer(clock)
    work = times.wrap("acme", Acme(clock)).work
    true_s = 0.0
    for number in range(200_000):
        takes_s = LONG_S / 2 if number % rare == 0 else LONG_S / 50
        work(takes_s)
        true_s += takes_s
    assert times.totals()["acme"] == pytest.approx(true_s, rel=0.15)


def test_short_calls_are_rarely_timed():
    looks = []
    times = CallTimer(lambda: float(bool(looks.append(0))))
    work = times.wrap("acme", Acme(Hands())).work
    for _ in range(10_000):
        work(0.0)
    assert len(looks) == pytest.approx(2 * 10_000 / SAMPLE_INTERVAL, rel=0.2)


def test_raising_call_is_timed():
    clock = Hands()
    times = CallTimer(clock)
    with pytest.raises(ValueError, match="no"):
        times.wrap("acme", Acme(clock)).fail()
    assert times.totals() == {"acme": 1.0}


def test_timed_proxy_is_an_instance_of_the_class():
    made = Acme(Hands())
    acme = CallTimer().wrap("acme", made)
    assert isinstance(acme, Acme)
    assert acme.limit == 3
    assert not hasattr(acme, "rest")
    assert acme.work(0.0) == made.calls == acme.calls == 1


def test_coroutine_is_timed_to_its_end():
    clock = Hands()
    times = CallTimer(clock)

    class Waits:
        async def prepare(self, draft):
            await asyncio.sleep(0)
            clock.now_s += 0.25
            return draft

    assert asyncio.run(times.wrap("acme", Waits()).prepare("draft")) == "draft"
    assert times.totals() == {"acme": 0.25}


def test_logits_processor_and_model_are_timed(tmp_path):
    (tmp_path / "sleepy.py").write_text(SLOW)
    with LLM(
        plugins=[f"+{tmp_path / 'sleepy.py'}"], max_model_len=64, num_threads=1, log_level="error"
    ) as llm:
        before = dict(llm_times(llm))
        begun_s = time.perf_counter()
        llm.generate("a", SamplingParams(max_tokens=20, ignore_eos=True), use_tqdm=False)
        taken_s = time.perf_counter() - begun_s
        after = llm_times(llm)
    assert 20 * 0.004 <= after["sleepy"] - before.get("sleepy", 0.0) <= taken_s
    model = next(name for name in after if name.startswith("model_"))
    assert 0 < after[model] - before.get(model, 0.0) <= taken_s


def llm_times(llm):
    return call_timer(llm._frontend.registry).totals()
