"""Memory metrics: sizes and maxima by process and owner."""

from __future__ import annotations

import mmap
import os
from types import SimpleNamespace

import msgspec
import numpy as np
import pytest
from prometheus_client.parser import text_string_to_metric_families

from builtin_plugins.metric_sinks.api import memory_owners
from builtin_plugins.metric_sinks.prometheus import memory
from builtin_plugins.metric_sinks.prometheus.extensions import INDEX_ENTRY_BYTES, SchedulerMemory
from builtin_plugins.metric_sinks.prometheus.memory import processes
from builtin_plugins.metric_sinks.prometheus.sink import PrometheusSink
from core import LLM
from core.config import EngineConfig

LINUX = pytest.mark.skipif(not memory.STATM.exists(), reason="needs Linux")


class Plugins:
    """A registry with only its shared objects."""

    def __init__(self):
        self.found = {}

    def shared(self, name, make):
        if name not in self.found:
            self.found[name] = make()
        return self.found[name]


def answer(pid, process="engine", resident=100, free=10, **owners):
    return msgspec.json.encode(
        {
            "process": process,
            "pid": pid,
            "resident": resident,
            "heap_used": 0,
            "heap_free": free,
            "owners": owners,
        }
    )


def test_owner_size_is_read_at_each_scrape():
    registry = Plugins()
    cache = []
    memory_owners(registry).add("acme_cache", lambda: 8 * len(cache), lambda: 800)
    assert memory_owners(registry).usage() == {"acme_cache": (0, 800)}
    cache += range(5)
    assert memory_owners(registry).usage() == {"acme_cache": (40, 800)}


def test_owner_sizes_add_up_to_resident_memory(monkeypatch):
    monkeypatch.setattr(memory, "resident_bytes", lambda: 1000)
    monkeypatch.setattr(memory, "heap_bytes", lambda: (600, 50))
    (found,) = processes({"acme_cache": (200, 300)}, ())
    assert (found.process, found.resident) == ("api", 1000)
    assert found.owners == {"acme_cache": (200, 300), "free_heap": (50, None), "other": (750, None)}
    assert sum(now for now, _ in found.owners.values()) == found.resident


def test_processes_count_once_and_ranks_separately():
    answers = [
        answer(1, kv_cache=[40, 80]),
        answer(1, "rank 0", kv_cache=[40, 80]),
        answer(2, "rank 1", weights=[9, 9]),
    ]
    found = {each.process: each for each in processes({}, answers)}
    assert sorted(found) == ["api", "engine", "rank 1"]
    assert found["engine"].owners == {
        "kv_cache": (40, 80),
        "free_heap": (10, None),
        "other": (50, None),
    }


def test_in_process_engine_is_not_counted_twice():
    assert [each.process for each in processes({}, [answer(os.getpid())])] == ["engine"]


def test_page_has_owner_limits_and_drops_ended_processes():
    sink = PrometheusSink(EngineConfig())

    def page_values(engine):
        text = sink.expose({"memory": {"owners": {}, "engine": engine}})[0].decode()
        return {
            (sample.name, sample.labels.get("process"), sample.labels.get("owner")): sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
        }

    first = page_values([answer(2, "rank 1", weights=[7, 9])])
    assert first["engine_memory_bytes", "rank 1", "weights"] == 7
    assert first["engine_memory_limit_bytes", "rank 1", "weights"] == 9
    assert first["engine_process_memory_bytes", "rank 1", None] == 100
    assert not any(process == "rank 1" for _, process, _ in page_values([]))


def test_prefix_index_size_grows_with_cache_usage():
    registry = Plugins()
    pools = [SimpleNamespace(num_blocks=60), SimpleNamespace(num_blocks=40)]
    SchedulerMemory(registry).attach(
        SimpleNamespace(kv=SimpleNamespace(layout=SimpleNamespace(pools=pools)))
    )
    memory_owners(registry).add("kv_cache", lambda: 25, lambda: 100)
    now, maximum = memory_owners(registry).usage()["prefix_index"]
    assert (now, maximum) == (25 * INDEX_ENTRY_BYTES, 100 * INDEX_ENTRY_BYTES)


@LINUX
def test_touched_bytes_count_only_written_pages():
    data = np.frombuffer(
        mmap.mmap(-1, 64 << 20), dtype=np.uint8
    )  # an allocator may hand out pages that were used
    start = data.ctypes.data
    assert memory.touched_bytes(start, data.nbytes) < 1 << 20
    data[: 8 << 20] = 1
    assert (
        8 << 20 <= memory.touched_bytes(start, data.nbytes) <= 12 << 20
    )  # a huge page more at each end
    assert memory.resident_bytes() > 8 << 20


def test_engine_reports_weights_cache_rows_and_index():
    with LLM(
        "demo:",
        num_gpu_blocks_override=256,
        max_model_len=256,
        max_num_seqs=4,
        disable_log_stats=False,
    ) as llm:
        llm.generate("Hello", use_tqdm=False)
        answers = llm.core.call("memory.owners").all[0]
    owners = msgspec.json.decode(answers)["owners"]
    assert set(owners) >= {"weights", "kv_cache", "rows", "prefix_index"}
    assert all(0 <= now <= maximum for now, maximum in owners.values())
    assert owners["kv_cache"][0] > 0


def test_disabled_metrics_add_no_extensions():
    with LLM(
        "scripted:", max_model_len=256, disable_log_stats=True, num_gpu_blocks_override=64
    ) as llm:
        assert "memory" not in llm.core.scheduler.extension_names
