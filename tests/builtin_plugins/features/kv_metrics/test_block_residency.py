"""KV metrics: lifetime, idle time and reuse gaps of blocks in the prefix cache."""

from itertools import count

import pytest

from builtin_plugins.features.kv_metrics.plugin import engine_scheduler_extensions
from builtin_plugins.features.kv_metrics.residency import GAP, IDLE, LIFETIME, BlockResidency
from core.api import ConfigError, EngineConfig
from tests.core.scheduler.fake_worker import VOCAB, Engine


class Clock:
    """A clock that the test sets."""

    now_s = 0.0

    def __call__(self):
        return self.now_s


def prompt(number, length=13):
    return [1 + (number * 31 + i * 7) % (VOCAB - 1) for i in range(length)]


def counted(residency):
    return {
        name: (sum(histogram.counts), histogram.sum)
        for name, histogram in residency.histograms().items()
    }


def test_block_lifetime_runs_from_first_full_step_to_eviction():
    clock = Clock()
    residency = BlockResidency(1.0, clock)
    engine = Engine("full", block_size=4, num_blocks=64, extensions=[residency])
    for number, clock.now_s in enumerate((1.0, 4.0, 9.0)):  # three blocks are hit twice
        engine.add(f"r{number}", prompt(0), 1, eos_token_ids=())
        engine.run()
    assert counted(residency) == {LIFETIME: (0, 0.0), IDLE: (0, 0.0), GAP: (6, 3 * (3.0 + 5.0))}
    clock.now_s = 20.0
    assert engine.scheduler.reset_prefix_cache()
    assert counted(residency)[LIFETIME] == (3, 3 * 19.0)
    assert counted(residency)[IDLE] == (3, 3 * 11.0)
    assert not residency._sampled
    assert not residency._requests


@pytest.mark.parametrize("layers", ["hybrid", "three", "stateful"])
def test_every_removed_block_was_added(layers):
    ticks = count()
    residency = BlockResidency(1.0, lambda: float(next(ticks)))
    engine = Engine(layers, block_size=4, num_blocks=40, depth=2, extensions=[residency])
    for number in range(40):
        engine.add(f"r{number}", prompt(number // 2 % 3, 9 + number % 20), 6)
        engine.step()
        if number % 9 == 0:
            engine.abort(f"r{number}")
    engine.run()
    found = sum(
        len(engine.kv.pools[g.pool].cached_blocks(i)) for i, g in enumerate(engine.layout.groups)
    )
    assert len(residency._sampled) == found
    assert engine.scheduler.reset_prefix_cache()
    assert not residency._sampled
    assert all(number for number, _ in counted(residency).values())


def test_sampled_share_of_blocks_is_tracked():
    residency = BlockResidency(0.25)
    engine = Engine(
        "full", block_size=1, num_blocks=2000, max_model_len=100, extensions=[residency]
    )
    for number in range(20):
        engine.add(f"r{number}", prompt(0, 60)[: number + 1] + prompt(number, 60), 1)
        engine.run()
    found = len(engine.kv.pools[0].cached_blocks(0))
    assert 0.15 * found < len(residency._sampled) < 0.35 * found


def test_sample_share_of_zero_is_rejected():
    options = {"kv_cache_metrics": True, "kv_cache_metrics_sample": 0.0}
    with pytest.raises(ConfigError, match="--kv-cache-metrics-sample: got 0"):
        engine_scheduler_extensions(EngineConfig(options=options), None)
    assert (
        engine_scheduler_extensions(
            EngineConfig(options=options | {"kv_cache_metrics": False}), None
        )
        == []
    )
