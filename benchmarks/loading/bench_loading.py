"""Time from checkpoint files to the first forward pass, compared with reading the files.

Each measurement runs in its own process after its imports, alternately with a cold and a warm page
cache. Memory is the growth of the process during loading, mapped files included, without a KV
cache. Without --model, a random bfloat16 model with 473 million parameters is created.

Run: python benchmarks/loading/bench_loading.py [--model FOLDER_OR_FILE] [--rounds N] [--threads N]
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

CONFIG = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "vocab_size": 32000,
    "hidden_size": 1024,
    "intermediate_size": 3072,
    "num_hidden_layers": 28,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1e6,
    "max_position_embeddings": 4096,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
}
READ_BYTES = 1 << 24


def write_checkpoint(folder: Path) -> None:
    """Write a checkpoint with repeated random pages as weights."""
    import torch
    import transformers
    from safetensors.torch import save_file

    with torch.device("meta"):
        model = transformers.Qwen3ForCausalLM(transformers.Qwen3Config(**CONFIG))
    noise = torch.randn(1 << 20, generator=torch.Generator().manual_seed(0)).mul_(0.02).bfloat16()

    def filled(shape: torch.Size) -> torch.Tensor:
        return noise.repeat(-(-shape.numel() // noise.numel()))[: shape.numel()].view(shape)

    tensors = {
        name: filled(tensor.shape)
        for name, tensor in model.state_dict().items()
        if name != "lm_head.weight"
    }
    save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(CONFIG))


def files_of(model: Path) -> list[Path]:
    """Return the weight files."""
    return [model] if model.is_file() else sorted(model.glob("*.safetensors"))


def read_all(folder: Path) -> None:
    """Read all files into memory and keep the bytes."""
    for path in files_of(folder):
        with path.open("rb", buffering=0) as file:
            held = memoryview(bytearray(path.stat().st_size))
            done = 0
            while done < len(held):
                done += file.readinto(held[done : done + READ_BYTES]) or 0


def load(folder: Path, threads: int) -> Iterator[None]:
    """Yield after the imports, after loading the weights, and after a forward pass of one token."""
    import torch

    from core.config import EngineConfig
    from core.config.sections import LoadConfig, ModelConfig
    from core.model_spec.parallel import ParallelGroup, Pipeline
    from core.models.layers.loading import load_model
    from core.plugin import load_plan, make_plan
    from core.testing.one_sequence import OneSequenceAttention, Session

    torch.set_num_threads(threads)
    config = EngineConfig(
        ModelConfig(str(folder), max_model_len=256), load=LoadConfig(use_tqdm_on_load=False)
    )
    registry = load_plan(make_plan([]))
    source = registry.find_model(str(folder), config)
    assert source is not None
    yield
    with torch.inference_mode():
        model, _ = load_model(
            config,
            source,
            registry,
            device="cpu",
            dtype=getattr(torch, source.checkpoint_dtype),
            attention=OneSequenceAttention(),
            group=ParallelGroup(),
            pipeline=Pipeline(),
        )
    yield
    Session(model).step([1])
    yield


def measure(what: str, folder: Path, threads: int) -> dict[str, float]:
    """Return seconds and memory growth of this process."""
    steps = iter(load(folder, threads)) if what == "load" else None
    if steps is not None:
        next(steps)
    Path("/proc/self/clear_refs").write_text("5")  # resets the peak
    before = status("VmRSS")
    start = time.perf_counter()
    used = time.process_time()
    if steps is None:
        read_all(folder)
        loaded = time.perf_counter() - start
        peak = status("VmHWM") - before
    else:
        next(steps)
        loaded = time.perf_counter() - start
        peak = status("VmHWM") - before
        next(steps)
    seconds = time.perf_counter() - start
    processor = time.process_time() - used
    return {"seconds": seconds, "loaded": loaded, "processor": processor, "peak": peak}


def status(name: str) -> int:
    """Return a value of /proc/self/status in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{name}:"))


def in_a_process(what: str, folder: Path, threads: int, *, cold: bool) -> dict[str, float]:
    """Measure in a new process, with or without a warm page cache."""
    for path in files_of(folder):
        with path.open("rb") as file:
            if cold:
                os.fsync(file.fileno())
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            else:
                while file.read(READ_BYTES):
                    pass
    command = [
        sys.executable,
        __file__,
        "--child",
        what,
        "--model",
        str(folder),
        "--threads",
        str(threads),
    ]
    return json.loads(
        subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()[-1]
    )


def report(folder: Path, rounds: int, threads: int) -> None:
    """Print medians of interleaved rounds."""
    sizes = [path.stat().st_size for path in files_of(folder)]
    print(
        f"{sum(sizes) / 1e6:.0f} MB in {len(sizes)} files, load of the machine "
        f"{os.getloadavg()[0]:.1f}"
    )
    for cold in (True, False):
        found: dict[str, list[dict[str, float]]] = {"read": [], "load": []}
        for number in range(rounds):
            for what in list(found)[:: -1 if number % 2 else 1]:  # alternates the order
                found[what].append(in_a_process(what, folder, threads, cold=cold))
        print(f"{'cold' if cold else 'warm'}, medians of {rounds} rounds:")
        for what, results in found.items():
            goal = "in memory" if what == "read" else "loaded"
            peak = middle(results, "peak")
            print(
                f"  {what}: {middle(results, 'loaded'):.2f} s until {goal}, "
                f"{middle(results, 'seconds'):.2f} s in all, "
                f"{middle(results, 'processor'):.2f} s of processor, grew by {peak / 1e6:.0f} MB, "
                f"{peak / sum(sizes):.2f} of the files"
            )
        for figure in ("seconds", "processor"):
            pairs = zip(found["load"], found["read"], strict=True)
            ratio = statistics.median(ours[figure] / theirs[figure] for ours, theirs in pairs)
            best = [min(result[figure] for result in found[what]) for what in ("load", "read")]
            print(
                f"  {figure}: {ratio:.2f} times reading, best against best {best[0] / best[1]:.2f}"
            )


def middle(results: list[dict[str, float]], name: str) -> float:
    """Return the median of one value."""
    return statistics.median(result[name] for result in results)


def main(argv: list[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--child", choices=("read", "load"), help=argparse.SUPPRESS)
    args: Any = parser.parse_args(argv)
    if args.child:
        print(json.dumps(measure(args.child, args.model, args.threads)))
    elif args.model:
        report(args.model, args.rounds, args.threads)
    else:
        with tempfile.TemporaryDirectory() as folder:
            write_checkpoint(Path(folder))
            report(Path(folder), args.rounds, args.threads)


if __name__ == "__main__":
    main(sys.argv[1:])
