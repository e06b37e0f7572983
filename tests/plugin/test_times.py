"""How long calls into plugins' code take: counted by plugin, exactly where they are long, and right
on average where not.
"""

from __future__ import annotations

import asyncio
import time

import pytest

from core import LLM, SamplingParams
from core.contracts.times import EVERY, LONG_S, Times, times_of

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


def test_every_long_call_is_timed():
    clock = Hands()
    times = Times(clock)
    acme = times.around("acme", Acme(clock))
    for takes_s in (0.5, 0.001, 2.0, LONG_S):
        acme.work(takes_s)
    assert times.so_far()["acme"] == pytest.approx(2.501 + LONG_S)


@pytest.mark.parametrize("rare", [1, 16, 100])
def test_of_short_calls_some_stand_for_the_others_whatever_their_rhythm(rare):
    clock = Hands()
    times = Times(clock)
    work = times.around("acme", Acme(clock)).work
    true_s = 0.0
    for number in range(200_000):
        takes_s = LONG_S / 2 if number % rare == 0 else LONG_S / 50
        work(takes_s)
        true_s += takes_s
    assert times.so_far()["acme"] == pytest.approx(true_s, rel=0.15)


def test_short_calls_are_seldom_timed():
    looks = []
    times = Times(lambda: float(bool(looks.append(0))))
    work = times.around("acme", Acme(Hands())).work
    for _ in range(10_000):
        work(0.0)
    assert len(looks) == pytest.approx(2 * 10_000 / EVERY, rel=0.2)


def test_a_call_that_raises_counts_and_raises():
    clock = Hands()
    times = Times(clock)
    with pytest.raises(ValueError, match="no"):
        times.around("acme", Acme(clock)).fail()
    assert times.so_far() == {"acme": 1.0}


def test_what_stands_for_an_object_is_one_of_its_class_with_all_it_has():
    made = Acme(Hands())
    acme = Times().around("acme", made)
    assert isinstance(acme, Acme)
    assert acme.limit == 3
    assert not hasattr(acme, "rest")
    assert acme.work(0.0) == made.calls == acme.calls == 1


def test_a_coroutine_is_timed_until_it_has_ended():
    clock = Hands()
    times = Times(clock)

    class Waits:
        async def prepare(self, draft):
            await asyncio.sleep(0)
            clock.now_s += 0.25
            return draft

    assert asyncio.run(times.around("acme", Waits()).prepare("draft")) == "draft"
    assert times.so_far() == {"acme": 0.25}


def test_a_processor_and_the_model_of_an_engine_are_timed(tmp_path):
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
    return times_of(llm._front.registry).so_far()
