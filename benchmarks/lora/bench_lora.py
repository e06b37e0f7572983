"""Cost of LoRA adapters in a decode step: without LoRA, with idle LoRA, with many adapters.

Both engines run in one process on the same checkpoint (default: random, in the shape of Qwen3-0.6B,
bfloat16), rounds alternate. Prints per kind of batch: the median step time, the median ratio to the
first kind, the ratio of the fastest rounds (least sensitive to noise), and the ratio expected from
the bytes of weights and adapters.

Run: python -m benchmarks.lora.bench_lora [--model FOLDER] [--rows N] [--adapters N] [--rank N]
[--rounds N] [--steps N]
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import torch
from safetensors import safe_open
from safetensors.torch import save_file

from benchmarks.peers.make_model import write_model
from core import LLM, LoRARequest, SamplingParams

PROMPT: Final = 16
SETTINGS: Final[dict[str, Any]] = {
    "dtype": "bfloat16",
    "max_model_len": 256,
    "kv_cache_memory_bytes": 1 << 29,
    "enable_prefix_caching": False,
    "log_level": "error",
}
AdapterRegistry = Sequence[LoRARequest | None]


def write_adapter(model: Path, folder: Path, rank: int, seed: int) -> int:
    """Write an adapter for all linear layers except the head; return the bytes of its factors."""
    made: dict[str, torch.Tensor] = {}
    torch.manual_seed(seed)
    with safe_open(model / "model.safetensors", "pt") as file:
        for name in file.keys():  # noqa: SIM118 - it is no dictionary
            out, *inner = file.get_slice(name).get_shape()
            if "_proj.weight" in name and inner:
                key = f"base_model.model.{name.removesuffix('.weight')}"
                made[f"{key}.lora_A.weight"] = (
                    torch.randn(rank, *inner).bfloat16() / inner[0] ** 0.5
                )
                made[f"{key}.lora_B.weight"] = torch.randn(out, rank).bfloat16() / 64
    folder.mkdir()
    save_file(made, folder / "adapter_model.safetensors")
    config = {"peft_type": "LORA", "r": rank, "lora_alpha": rank, "target_modules": "all-linear"}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    return sum(tensor.nbytes for tensor in made.values())


def step_ms(llm: LLM, rows: AdapterRegistry, steps: int) -> float:
    """Return the mean time of decode steps in milliseconds."""
    params = SamplingParams(temperature=0, max_tokens=steps, ignore_eos=True, detokenize=False)
    prompts = [[7 + (31 * row + at) % 1000 for at in range(PROMPT)] for row in range(len(rows))]
    given: dict[str, Any] = {"lora_request": list(rows)} if any(rows) else {}
    outputs = llm.generate(prompts, params, use_tqdm=False, **given)
    times = [output.metrics for output in outputs if output.metrics is not None]
    first, last = (
        max(getattr(each, name) for each in times) for name in ("first_token_s", "last_token_s")
    )
    return 1e3 * float(last - first) / (steps - 1)


def compare(model: Path, folder: Path, args: argparse.Namespace) -> None:
    """Measure alternately and print the table."""
    sizes = [write_adapter(model, folder / f"a{n}", args.rank, n) for n in range(args.adapters)]
    adapters = [LoRARequest(f"a{n}", n + 1, str(folder / f"a{n}")) for n in range(args.adapters)]
    weights = (model / "model.safetensors").stat().st_size
    no_adapters: AdapterRegistry = [None] * args.rows
    each: AdapterRegistry = [adapters[row % len(adapters)] for row in range(args.rows)]
    half: AdapterRegistry = [adapter if row % 2 else None for row, adapter in enumerate(each)]
    one: AdapterRegistry = [adapters[0]] * args.rows
    lora = {"enable_lora": True, "max_loras": args.adapters, "max_lora_rank": args.rank}
    settings = {"max_num_seqs": args.rows, "num_threads": args.threads, **SETTINGS}
    with LLM(str(model), **settings) as without, LLM(str(model), **settings, **lora) as served:
        kinds = {
            "without LoRA": (without, no_adapters, 0),
            "with it, no adapter in the batch": (served, no_adapters, 0),
            f"{len({*each})} adapters, in every row": (served, each, len({*each})),
            f"{len({*half} - {None})} adapters, in every other row": (
                served,
                half,
                len({*half} - {None}),
            ),
            "one adapter, in every row": (served, one, 1),
        }
        times: dict[str, list[float]] = {name: [] for name in kinds}
        for turn in range(args.rounds + 1):
            for name, (llm, rows, _) in kinds.items():
                found = step_ms(llm, rows, args.steps)
                if turn:  # the first round is a warmup
                    times[name].append(found)
        print(
            f"{args.rows} rows, rank {args.rank}, {args.threads} threads, {weights / 1e6:.0f} MB "
            "of weights"
        )
        print(f"{'':<36} {'ms a step':>9} {'ratio':>6} {'best':>6} {'bytes':>6}")
        base = times["without LoRA"]
        for name, (_, _, count) in kinds.items():
            ratios = [own / plain for own, plain in zip(times[name], base, strict=True)]
            bound = 1 + count * sizes[0] / weights
            best = min(times[name]) / min(base)
            median = statistics.median(times[name])
            print(
                f"{name:<36} {median:>9.2f} {statistics.median(ratios):>6.3f} {best:>6.3f} "
                f"{bound:>6.3f}"
            )


def main() -> None:
    """Create missing files, and compare."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--model", type=Path, help="folder of a checkpoint with linear layers named as Llama's"
    )
    parser.add_argument("--rows", type=int, default=16)
    parser.add_argument("--adapters", type=int, default=8)
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--steps", type=int, default=24)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        model = args.model or Path(folder) / "model"
        if args.model is None:
            write_model(model)
        compare(model, Path(folder), args)


if __name__ == "__main__":
    main()
