"""`engine plan`: what it says before a start is what the start then takes."""

from __future__ import annotations

import json
import struct
import subprocess
import sys
from collections.abc import Callable, Sequence
from math import prod
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from builtin_plugins.commands.api import memory_plan
from builtin_plugins.platforms.cpu.platform import CpuPlatform
from core.cli.main import main
from core.config import EngineConfig
from core.config.build import config_from_kwargs
from core.engine.memory import fit_memory
from core.engine.resolve import find_model, resolve
from core.model_spec.decoder import DecoderSpec
from core.model_spec.parallel import ParallelGroup, Pipeline
from core.models.layers.decoder import Decoder
from core.models.layers.loading import read_model
from core.plugin import Registry, load_plan, make_plan
from core.step import WorkerInfo
from core.testing.checkpoints import TINY, make_checkpoint
from core.testing.one_sequence import plain_context
from core.worker import Worker

torch.set_num_threads(1)

QWEN3_06B = {
    "architectures": ["Qwen3ForCausalLM"],
    "hidden_size": 1024,
    "intermediate_size": 3072,
    "num_hidden_layers": 28,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "rms_norm_eps": 1e-6,
    "max_position_embeddings": 40960,
    "rope_theta": 1e6,
    "tie_word_embeddings": True,
    "vocab_size": 151936,
    "torch_dtype": "bfloat16",
}


@pytest.fixture(scope="module")
def registry() -> Registry:
    return load_plan(make_plan([]))


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    root = tmp_path_factory.mktemp("checkpoints")

    def folder_of(architecture: str) -> Path:
        folder = root / architecture
        return folder if folder.exists() else make_checkpoint(architecture, folder)

    return folder_of


@pytest.fixture
def allocated(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Sizes in bytes of all allocations of the platform."""
    sizes: list[int] = []
    allocate = CpuPlatform.allocate

    def counting(platform: CpuPlatform, num_bytes: int) -> torch.Tensor:
        sizes.append(num_bytes)
        return allocate(platform, num_bytes)

    monkeypatch.setattr(CpuPlatform, "allocate", counting)
    return sizes


def configure(registry: Registry, model: object, **settings: Any) -> EngineConfig:
    return config_from_kwargs({"model": str(model), **settings}, registry.options())


def start(config: EngineConfig, registry: Registry) -> tuple[EngineConfig, list[int]]:
    """Start a worker per rank, without the others; return the configuration and the weights of
    each.
    """
    resolved = resolve(config, registry, serving=True)
    parallel = resolved.config.parallel
    tensor = parallel.tensor_parallel_size
    stages = parallel.pipeline_parallel_size

    def joining(rank: int) -> Callable[[object], tuple[ParallelGroup, Pipeline]]:
        return lambda platform: (
            ParallelGroup(tensor, rank % tensor),
            Pipeline(stages, rank // tensor),
        )

    workers = [
        Worker(resolved.config, registry, resolved.source, joining(rank))
        for rank in range(tensor * stages)
    ]
    infos = [worker.start() for worker in workers]
    config, layout = fit_memory(
        resolved.config,
        WorkerInfo.combine(infos, tensor),
        cut_context=not resolved.context_is_chosen,
    )
    first_layer = 0
    for rank, worker in enumerate(workers):
        worker.allocate(layout, first_layer)
        if rank % tensor == tensor - 1:
            first_layer += len(infos[rank].layers)
    return config, [info.weight_bytes for info in infos]


def write_sparse_checkpoint(folder: Path, stated: dict[str, Any], registry: Registry) -> Path:
    """A checkpoint of zeros that takes no room: its tensors are a hole in the file."""
    (folder / "config.json").write_text(json.dumps(stated))
    config = configure(registry, folder, max_model_len=64)
    source = find_model(config, registry)
    spec, _ = read_model(config, source, registry)
    assert isinstance(spec, DecoderSpec)
    header: dict[str, Any] = {}
    end = 0
    for name, shape in Decoder(spec, plain_context(dtype=torch.bfloat16)).weight_shapes().items():
        start = end
        end = end + 2 * prod(shape)
        header[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with (folder / "model.safetensors").open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.truncate(8 + len(text) + end)
    return folder


def compare(config: EngineConfig, registry: Registry, allocated: list[int]) -> None:
    plan = memory_plan(config, registry)
    assert not allocated, "planning took memory"
    settled, weights = start(config, registry)
    assert plan.weight_bytes == pytest.approx(
        weights, rel=0.05
    )  # packed panels are filled up to 64 rows
    assert sum(plan.kv_bytes) == pytest.approx(sum(allocated), rel=0.05)
    assert plan.context_length == settled.model.max_model_len


@pytest.mark.parametrize("architecture", [*TINY, "DeepseekV3ForCausalLM"])
@pytest.mark.parametrize("dtype", ["auto", "bfloat16"])
def test_plan_matches_an_engine_start(
    architecture: str,
    dtype: str,
    checkpoint: Callable[[str], Path],
    registry: Registry,
    allocated: list[int],
) -> None:
    config = configure(
        registry, checkpoint(architecture), dtype=dtype, kv_cache_memory_bytes="4M", max_num_seqs=8
    )
    compare(config, registry, allocated)


@pytest.mark.parametrize(
    "architecture", ["LlamaForCausalLM", "MixtralForCausalLM", "Gemma3ForCausalLM"]
)
@pytest.mark.parametrize(("tensor", "pipeline"), [(2, 1), (1, 3), (2, 2), (4, 1)])
def test_plan_reports_memory_per_rank(
    architecture: str,
    tensor: int,
    pipeline: int,
    checkpoint: Callable[[str], Path],
    registry: Registry,
    allocated: list[int],
) -> None:
    config = configure(
        registry,
        checkpoint(architecture),
        tensor_parallel_size=tensor,
        pipeline_parallel_size=pipeline,
        kv_cache_memory_bytes="4M",
        use_tqdm_on_load=False,
    )
    compare(config, registry, allocated)


@pytest.mark.parametrize(
    ("dtype", "layers"), [pytest.param("auto", 28, marks=pytest.mark.slow), ("float32", 2)]
)
def test_plan_of_a_real_model_size(
    dtype: str, layers: int, registry: Registry, allocated: list[int], tmp_path: Path
) -> None:
    folder = write_sparse_checkpoint(tmp_path, {**QWEN3_06B, "num_hidden_layers": layers}, registry)
    compare(configure(registry, folder, dtype=dtype), registry, allocated)


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="peak memory needs Linux")
def test_planning_reads_no_weight(registry: Registry, tmp_path: Path) -> None:
    folder = write_sparse_checkpoint(tmp_path, QWEN3_06B, registry)
    # In a process of its own: in this one engines of other tests may still take memory.
    done = subprocess.run(
        [sys.executable, "-c", MEMORY_OF_A_PLAN, folder],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout.splitlines()[-1]) < 64 << 20  # of weights of 1.1 GiB


MEMORY_OF_A_PLAN = """
import sys
from pathlib import Path
from builtin_plugins.commands.api import memory_plan
from core.config.build import config_from_kwargs
from core.plugin import load_plan, make_plan

def peak_bytes():
    status = Path("/proc/self/status").read_text()
    lines = (line.split() for line in status.splitlines())
    return next(int(words[1]) << 10 for words in lines if words[0] == "VmHWM:")

registry = load_plan(make_plan([]))
config = config_from_kwargs({"model": sys.argv[1]}, registry.options())
memory_plan(config, registry)  # with everything imported
Path("/proc/self/clear_refs").write_text("5")  # resets the peak
before = peak_bytes()
memory_plan(config, registry)
print(peak_bytes() - before)
"""


def test_plan_of_a_full_attention_cache(
    checkpoint: Callable[[str], Path], registry: Registry
) -> None:
    config = configure(
        registry,
        checkpoint("Olmo2ForCausalLM"),
        num_gpu_blocks_override=64,
        max_model_len=160,
        max_num_seqs=32,
    )
    plan = memory_plan(config, registry)
    block_bytes = (
        3 * 16 * 2 * 2 * 16 * 4
    )  # layers, tokens, key and value, heads, head size, float32
    assert plan.layout_bytes == 65 * block_bytes
    assert plan.least_kv_bytes(160) == 11 * block_bytes
    assert [plan.requests_at_once(length) for length in (160, 161, 1024, 1025, 16)] == [
        6,
        5,
        1,
        0,
        32,
    ]


def test_sliding_window_allows_more_requests(
    checkpoint: Callable[[str], Path], registry: Registry
) -> None:
    def at_once(**settings: Any) -> int:
        config = configure(
            registry,
            checkpoint("MistralForCausalLM"),
            num_gpu_blocks_override=64,
            max_num_batched_tokens=64,
            **settings,
        )
        return memory_plan(config, registry).requests_at_once(500)

    assert at_once() > 2 * at_once(hf_overrides={"sliding_window": None})


# --- the command


class Run:
    """Runs `engine plan` on one model and keeps what it printed."""

    def __init__(self, folder: object, capsys: pytest.CaptureFixture[str]) -> None:
        self._folder = str(folder)
        self._capsys = capsys

    def __call__(self, *argv: str) -> tuple[int, str]:
        status = main(["plan", self._folder, "--log-level", "error", *argv])
        captured = self._capsys.readouterr()
        return status, captured.out + captured.err

    def json(self, *argv: str) -> dict[str, Any]:
        status, out = self("--json", *argv)
        plan: dict[str, Any] = json.loads(out)
        assert status == (0 if plan["fits"] else 1)
        return plan


@pytest.fixture
def run(checkpoint: Callable[[str], Path], capsys: pytest.CaptureFixture[str]) -> Run:
    return Run(checkpoint("Qwen3ForCausalLM"), capsys)


def have_free(monkeypatch: pytest.MonkeyPatch, num_bytes: int) -> None:
    monkeypatch.setattr(
        CpuPlatform, "free_memory_bytes", lambda platform, config: num_bytes, raising=False
    )


def test_verdict_is_printed_last_and_is_the_exit_status(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    have_free(monkeypatch, 8 << 30)
    status, out = run("--kv-cache-memory-bytes", "16M", "--max-model-len", "512")
    assert (status, out.splitlines()[-1]) == (0, "fits")
    status, out = run("--kv-cache-memory-bytes", "100k", "--max-model-len", "512")
    assert status == 1
    assert "does not fit: " in out
    assert "any of these makes it fit: --max-model-len " in out


def test_suggested_flags_make_the_plan_fit(run: Run) -> None:
    small = ["--kv-cache-memory-bytes", "700k", "--max-model-len", "512"]
    plan = run.json(*small)
    assert not plan["fits"]
    assert {flags.split()[0] for flags in plan["flags_that_help"]} == {
        "--max-model-len",
        "--kv-cache-memory-bytes",
        "--dtype",
    }
    for flags in plan["flags_that_help"]:
        assert run.json(*small, *flags.split())["fits"], flags


def test_missing_bytes_are_exact(run: Run) -> None:
    small = ["--max-model-len", "512"]
    short = run.json(*small, "--kv-cache-memory-bytes", "700000")["short_bytes"]
    assert not run.json(*small, "--kv-cache-memory-bytes", str(700000 + short - 1))["fits"]
    assert run.json(*small, "--kv-cache-memory-bytes", str(700000 + short))["fits"]


def test_automatic_context_is_reduced_with_a_remedy(run: Run) -> None:
    plan = run.json("--kv-cache-memory-bytes", "700k")
    assert plan["fits"]
    assert plan["context_length"] < plan["stated_context_length"] == 512
    (flags,) = plan["flags_that_help"]
    assert run.json(*flags.split())["context_length"] == 512


def test_weights_and_cache_beyond_the_free_memory_do_not_fit(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    have_free(monkeypatch, 4_000_000)
    assert run.json("--kv-cache-memory-bytes", "2M")["fits"]
    assert run("--kv-cache-memory-bytes", "2M")[1].splitlines()[-1].endswith(" left")
    plan = run.json("--kv-cache-memory-bytes", "8M")
    taken = plan["weight_bytes"][0] + plan["kv_cache"]["bytes"][0]
    assert plan["short_bytes"] == taken - 4_000_000
    for flags in plan["flags_that_help"]:
        assert run.json("--kv-cache-memory-bytes", "8M", *flags.split())["fits"], flags
    assert any(flags.startswith("--kv-cache-memory-bytes") for flags in plan["flags_that_help"])


def test_unknown_platform_memory_is_reported(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(CpuPlatform, "free_memory_bytes", raising=False)
    status, out = run("--kv-cache-memory-bytes", "16M")
    assert (status, out.splitlines()[-1]) == (
        0,
        "fits if this memory is free; the platform does not report it",
    )


def test_unloadable_checkpoint_is_reported(run: Run, tmp_path: Path) -> None:
    status, out = run("--hf-overrides.num_hidden_layers", "5")
    assert status == 1
    assert "missing tensors: model.layers.3." in out


def test_model_without_files(capsys: pytest.CaptureFixture[str]) -> None:
    plan = Run("scripted:", capsys).json()
    assert plan["fits"]
    assert plan["weight_bytes"] == [0]


@pytest.fixture
def hub(checkpoint: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch) -> list[Sequence[str]]:
    """A hub with one repository; returns the requested file patterns."""
    folder = checkpoint("LlamaForCausalLM")
    patterns: list[Sequence[str]] = []

    def snapshot_download(name: str, *, allow_patterns: Sequence[str], **options: Any) -> str:
        patterns.append(allow_patterns)
        return str(folder)

    def get_safetensors_metadata(name: str, **options: Any) -> SimpleNamespace:
        assert name == "acme/tiny-llama"
        text = (folder / "model.safetensors").read_bytes()
        header = json.loads(text[8 : 8 + struct.unpack("<Q", text[:8])[0]])
        header.pop("__metadata__", None)
        tensors = {name: SimpleNamespace(**facts) for name, facts in header.items()}
        return SimpleNamespace(
            files_metadata={"model.safetensors": SimpleNamespace(tensors=tensors)}
        )

    monkeypatch.setattr("huggingface_hub.snapshot_download", snapshot_download)
    monkeypatch.setattr("huggingface_hub.get_safetensors_metadata", get_safetensors_metadata)
    return patterns


def test_hub_model_is_planned_without_weights(
    hub: list[Sequence[str]], checkpoint: Callable[[str], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    plan = Run("acme/tiny-llama", capsys).json()
    local = Run(checkpoint("LlamaForCausalLM"), capsys).json()
    measured = {"model": "", "free_bytes": 0, "speed": {}}
    assert {**plan, **measured} == {**local, **measured}
    assert not any("safetensors" in pattern for patterns in hub for pattern in patterns)


def test_missing_hub_headers_are_reported(
    hub: list[Sequence[str]], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(name: str, **options: Any) -> None:
        raise OSError("no route to the hub")

    monkeypatch.setattr("huggingface_hub.get_safetensors_metadata", fail)
    status, out = Run("acme/tiny-llama", capsys)()
    assert status == 1
    assert "acme/tiny-llama: download failed: no route to the hub" in out
