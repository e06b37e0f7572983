"""Memory has names: what each process has is shared out among owners, each with the most it may
have.
"""

from __future__ import annotations

import mmap
import os
from types import SimpleNamespace

import msgspec
import numpy as np
import pytest
from prometheus_client.parser import text_string_to_metric_families

from builtin_plugins.metric_sinks.prometheus import memory, system
from builtin_plugins.metric_sinks.prometheus.halves import INDEX_ENTRY_BYTES, SchedulerMemory
from builtin_plugins.metric_sinks.prometheus.memory import processes
from builtin_plugins.metric_sinks.prometheus.sink import PrometheusSink
from core import LLM
from core.config import EngineConfig
from core.contracts.memory import memory_of

LINUX = pytest.mark.skipif(not system.STATM.exists(), reason="asks Linux")


class Plugins:
    """A registry, as far as features share things in one process."""

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


def test_an_owner_is_asked_whenever_somebody_looks():
    registry = Plugins()
    cache = []
    memory_of(registry).own("acme_cache", lambda: 8 * len(cache), lambda: 800)
    assert memory_of(registry).bytes_now() == {"acme_cache": (0, 800)}
    cache += range(5)
    assert memory_of(registry).bytes_now() == {"acme_cache": (40, 800)}


def test_what_has_no_owner_is_told_too_and_all_add_up(monkeypatch):
    monkeypatch.setattr(memory, "resident_bytes", lambda: 1000)
    monkeypatch.setattr(memory, "heap_bytes", lambda: (600, 50))
    (found,) = processes({"acme_cache": (200, 300)}, ())
    assert (found.process, found.resident) == ("api", 1000)
    assert found.owners == {"acme_cache": (200, 300), "free_heap": (50, None), "other": (750, None)}
    assert sum(now for now, _ in found.owners.values()) == found.resident


def test_halves_in_one_process_count_once_and_each_rank_by_itself():
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


def test_an_engine_in_this_process_is_no_other():
    assert [each.process for each in processes({}, [answer(os.getpid())])] == ["engine"]


def test_the_page_has_each_owner_with_its_limit_and_forgets_processes_that_are_gone():
    sink = PrometheusSink(EngineConfig())

    def shown(engine):
        text = sink.expose({"memory": {"owners": {}, "engine": engine}})[0].decode()
        return {
            (sample.name, sample.labels.get("process"), sample.labels.get("owner")): sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
        }

    first = shown([answer(2, "rank 1", weights=[7, 9])])
    assert first["engine_memory_bytes", "rank 1", "weights"] == 7
    assert first["engine_memory_limit_bytes", "rank 1", "weights"] == 9
    assert first["engine_process_memory_bytes", "rank 1", None] == 100
    assert not any(process == "rank 1" for _, process, _ in shown([]))


def test_the_index_grows_with_the_cache_and_has_a_bound():
    registry = Plugins()
    pools = [SimpleNamespace(num_blocks=60), SimpleNamespace(num_blocks=40)]
    SchedulerMemory(registry).attach(
        SimpleNamespace(kv=SimpleNamespace(layout=SimpleNamespace(pools=pools)))
    )
    memory_of(registry).own("kv_cache", lambda: 25, lambda: 100)
    now, most = memory_of(registry).bytes_now()["prefix_index"]
    assert (now, most) == (25 * INDEX_ENTRY_BYTES, 100 * INDEX_ENTRY_BYTES)


@LINUX
def test_pages_that_were_written_are_told_from_those_that_were_not():
    data = np.frombuffer(
        mmap.mmap(-1, 64 << 20), dtype=np.uint8
    )  # an allocator may hand out pages that were used
    start = data.ctypes.data
    assert system.touched_bytes(start, data.nbytes) < 1 << 20
    data[: 8 << 20] = 1
    assert (
        8 << 20 <= system.touched_bytes(start, data.nbytes) <= 12 << 20
    )  # a huge page more at each end
    assert system.resident_bytes() > 8 << 20


def test_an_engine_names_weights_cache_rows_and_index():
    with LLM(
        "demo:",
        num_gpu_blocks_override=256,
        max_model_len=256,
        max_num_seqs=4,
        disable_log_stats=False,
    ) as llm:
        llm.generate("Hello", use_tqdm=False)
        (told, *_) = llm.core.call("memory.owners")
    owners = msgspec.json.decode(told)["owners"]
    assert set(owners) >= {"weights", "kv_cache", "rows", "prefix_index"}
    assert all(0 <= now <= most for now, most in owners.values())
    assert owners["kv_cache"][0] > 0


def test_metrics_that_are_off_bring_no_halves():
    with LLM(
        "scripted:", max_model_len=256, disable_log_stats=True, num_gpu_blocks_override=64
    ) as llm:
        assert "memory" not in llm.core.scheduler.extension_names
