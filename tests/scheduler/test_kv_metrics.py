"""How long blocks stay in the prefix cache, how long they lie idle before they go, and how soon
they are wanted again.
"""

from itertools import count

import pytest
from fake_worker import VOCAB, Engine

from builtin_plugins.features.kv_metrics.plugin import engine_scheduler_extensions
from builtin_plugins.features.kv_metrics.residency import GAP, IDLE, LIFETIME, Residency
from core.api import ConfigError, EngineConfig


class Clock:
    """Time that goes by when it is told to."""

    now_s = 0.0

    def __call__(self):
        return self.now_s


def prompt(number, length=13):
    return [1 + (number * 31 + i * 7) % (VOCAB - 1) for i in range(length)]


def counted(residency):
    return {name: (sum(spread.counts), spread.sum) for name, spread in residency.spreads().items()}


def test_a_block_is_timed_from_its_first_full_step_to_its_eviction():
    clock = Clock()
    residency = Residency(1.0, clock)
    engine = Engine("full", block_size=4, num_blocks=64, extensions=[residency])
    for number, clock.now_s in enumerate((1.0, 4.0, 9.0)):  # three blocks are found twice
        engine.add(f"r{number}", prompt(0), 1, eos_token_ids=())
        engine.run()
    assert counted(residency) == {LIFETIME: (0, 0.0), IDLE: (0, 0.0), GAP: (6, 3 * (3.0 + 5.0))}
    clock.now_s = 20.0
    assert engine.scheduler.reset_prefix_cache()
    assert counted(residency)[LIFETIME] == (3, 3 * 19.0)
    assert counted(residency)[IDLE] == (3, 3 * 11.0)
    assert not residency._watched
    assert not residency._requests


@pytest.mark.parametrize("layers", ["hybrid", "three", "stateful"])
def test_what_goes_has_come(layers):
    ticks = count()
    residency = Residency(1.0, lambda: float(next(ticks)))
    engine = Engine(layers, block_size=4, num_blocks=40, depth=2, extensions=[residency])
    for number in range(40):
        engine.add(f"r{number}", prompt(number // 2 % 3, 9 + number % 20), 6)
        engine.step()
        if number % 9 == 0:
            engine.abort(f"r{number}")
    engine.run()
    found = sum(len(engine.kv.pools[g.pool].find(i)) for i, g in enumerate(engine.layout.groups))
    assert len(residency._watched) == found
    assert engine.scheduler.reset_prefix_cache()
    assert not residency._watched
    assert all(number for number, _ in counted(residency).values())


def test_a_share_of_blocks_is_looked_at():
    residency = Residency(0.25)
    engine = Engine(
        "full", block_size=1, num_blocks=2000, max_model_len=100, extensions=[residency]
    )
    for number in range(20):
        engine.add(f"r{number}", prompt(0, 60)[: number + 1] + prompt(number, 60), 1)
        engine.run()
    found = len(engine.kv.pools[0].find(0))
    assert 0.15 * found < len(residency._watched) < 0.35 * found


def test_a_share_of_none_is_refused_where_something_is_to_be_measured():
    options = {"kv_cache_metrics": True, "kv_cache_metrics_sample": 0.0}
    with pytest.raises(ConfigError, match="--kv-cache-metrics-sample 0"):
        engine_scheduler_extensions(EngineConfig(options=options), None)
    assert (
        engine_scheduler_extensions(
            EngineConfig(options=options | {"kv_cache_metrics": False}), None
        )
        == []
    )
