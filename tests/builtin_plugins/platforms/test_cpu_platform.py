"""What the CPU platform reads from the system, and its decisions."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from core_kernels.library import load_library

from builtin_plugins.platforms.cpu import platform as cpu
from core.config import EngineConfig
from core.errors import ConfigError
from core.testing import conformance

GIB = 1 << 30


def test_kv_memory_uses_flag_or_bounded_share(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    config = EngineConfig()
    requested = replace(config, cache=replace(config.cache, kv_cache_memory_bytes=12345))
    platform = cpu.CpuPlatform()
    assert platform.kv_memory_bytes(requested, 0) == 12345
    for free, expected in (
        (GIB, GIB // 2),
        (64 * GIB, cpu.MAX_DEFAULT_KV_BYTES),
        (0, cpu.MIN_KV_BYTES),
    ):
        monkeypatch.setattr(cpu, "free_memory_bytes", lambda free=free: free)
        assert platform.kv_memory_bytes(config, 0) == expected


def test_kv_memory_is_a_share_of_memory_left_by_weights(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    config = replace(
        EngineConfig(), device=replace(EngineConfig().device, num_threads=torch.get_num_threads())
    )
    monkeypatch.setattr(cpu, "free_memory_bytes", lambda: 5 * GIB)
    before = cpu.CpuPlatform()
    started = cpu.CpuPlatform()
    started.start(config)
    monkeypatch.setattr(cpu, "free_memory_bytes", lambda: 2 * GIB)
    assert started.free_memory_bytes(config) == 5 * GIB
    assert started.kv_memory_bytes(config, 3 * GIB) == GIB
    monkeypatch.setattr(cpu, "free_memory_bytes", lambda: 5 * GIB)
    assert before.kv_memory_bytes(config, 3 * GIB) == GIB


@pytest.mark.parametrize(
    ("checkpoint", "dtype"),
    [("float32", "float32"), ("bfloat16", "bfloat16"), ("float16", "bfloat16")],
)
def test_auto_dtype_follows_checkpoint_except_float16(checkpoint: str, dtype: str) -> None:
    assert cpu.CpuPlatform().pick_dtype(checkpoint) == dtype


def test_instruction_sets_are_read_from_cpuinfo(tmp_path: Path) -> None:
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text("processor: 0\nflags\t\t: fpu avx2 avx512f sse\n")
    assert cpu.instruction_sets(cpuinfo) == ["avx2", "avx512f"]
    assert cpu.instruction_sets(tmp_path / "absent") == []


def test_num_threads_flag_sets_threads() -> None:
    config = EngineConfig()
    before = torch.get_num_threads()
    try:
        cpu.CpuPlatform().start(replace(config, device=replace(config.device, num_threads=1)))
        assert torch.get_num_threads() == 1
    finally:
        torch.set_num_threads(before)


def test_ranks_share_cores_and_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    alone = EngineConfig()
    config = replace(
        alone, parallel=replace(alone.parallel, tensor_parallel_size=2, pipeline_parallel_size=2)
    )
    monkeypatch.setattr(cpu, "usable_cores", lambda: 9)
    monkeypatch.setattr(cpu, "free_memory_bytes", lambda: 4 * GIB)
    before = torch.get_num_threads()
    try:
        cpu.CpuPlatform().start(config)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
    assert cpu.CpuPlatform().kv_memory_bytes(config, 0) == GIB // 2


@pytest.mark.parametrize("case", conformance.cases("platform_cpu"), ids=str)
def test_cpu_platform_passes_platform_suite(case: conformance.Case) -> None:
    case()


def test_kv_cache_above_machine_memory_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu, "all_memory_bytes", lambda: GIB)
    assert cpu.CpuPlatform().allocate(1000).numel() == 1000
    with pytest.raises(
        ConfigError,
        match=r"2\.00 GiB exceeds this machine's memory of 1\.00 GiB.*--num-gpu-blocks",
    ):
        cpu.CpuPlatform().allocate(2 * GIB)


def test_excessive_num_threads_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[int] = []
    monkeypatch.setattr(torch, "set_num_threads", given.append)
    monkeypatch.setattr(cpu.os, "cpu_count", lambda: 16)
    device = EngineConfig().device
    cpu.CpuPlatform().start(EngineConfig(device=replace(device, num_threads=128)))
    assert given == [128]
    with pytest.raises(
        ConfigError,
        match=r"--num-threads: got 129; expected up to 128 on a machine of 16 cores",
    ):
        cpu.CpuPlatform().start(EngineConfig(device=replace(device, num_threads=129)))


def with_isa(isa: str | None) -> EngineConfig:
    config = EngineConfig()
    threads = replace(config.device, num_threads=torch.get_num_threads())
    return replace(config, device=threads, options={**config.options, "isa": isa})


def test_unknown_isa_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ConfigError, match=r"--isa: got sse9; expected one of .*generic"):
        cpu.CpuPlatform().start(with_isa("sse9"))


@pytest.mark.skipif(load_library() is None, reason="no C++ library on this machine")
def test_forced_isa_computes_and_limits_the_facts_until_the_next_start() -> None:
    library = load_library()
    assert library is not None
    best = library.core_kernels_isa()
    started = cpu.CpuPlatform()
    started.start(with_isa("generic"))
    assert load_library() is library
    assert library.core_kernels_isa() == b"generic"
    assert started.facts()["isa"] == frozenset()
    started.start(with_isa(None))
    assert library.core_kernels_isa() == best
    assert started.facts()["isa"] == frozenset(cpu.instruction_sets())


@pytest.mark.skipif(load_library() is None, reason="no C++ library on this machine")
@pytest.mark.parametrize(
    ("faster", "dtype", "lines"),
    [(True, torch.bfloat16, 1), (True, torch.uint8, 0), (False, torch.bfloat16, 0)],
)
def test_start_recommends_int8_where_it_is_faster_than_bfloat16(
    *,
    faster: bool,
    dtype: torch.dtype,
    lines: int,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    model = torch.nn.Module()
    model.register_buffer("weight", torch.zeros(64, dtype=dtype))
    monkeypatch.setattr(cpu, "prefers_int8", lambda library: faster)
    with caplog.at_level("INFO"):
        cpu.CpuPlatform().wrap(model, [])  # type: ignore[arg-type]
    found = [record.message for record in caplog.records if "--quantization int8" in record.message]
    assert len(found) == lines
