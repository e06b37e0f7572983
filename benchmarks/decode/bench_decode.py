"""Prefill and decode times compared with transformers' `generate`, interleaved in one process.

Prints median seconds per task and the median of paired ratios (above 1: the engine is faster).
Without --model a random model with four layers of Qwen3-0.6B is created.

Run: python benchmarks/decode/bench_decode.py [--model FOLDER] [--threads N] [--rounds N] [--dtype
bfloat16]
"""

from __future__ import annotations

import argparse
import random
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers

from core import LLM, SamplingParams
from core.testing.checkpoints import make_checkpoint

TASKS = {
    "prefill, 1 x 128": (1, 128, 1),
    "decode, 1 x 16 + 48": (1, 16, 48),
    "decode, 32 x 16 + 16": (32, 16, 16),
    "both, 8 x 256 + 16": (8, 256, 16),
}
"""Number of prompts, tokens per prompt, tokens to generate."""

FOUR_LAYERS: dict[str, Any] = {
    "hidden_size": 1024,
    "intermediate_size": 3072,
    "num_hidden_layers": 4,
    "head_dim": 128,
} | {
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "torch_dtype": "bfloat16",
}

Run = Callable[[list[list[int]], int], None]


def make_prompts(count: int, length: int, seed: int, vocab: int) -> list[list[int]]:
    """Return random prompts; a new seed per round avoids prefix cache hits."""
    source = random.Random(seed)
    return [[source.randrange(vocab) for _ in range(length)] for _ in range(count)]


def run_engine(llm: LLM) -> Run:
    """Return a function that generates with the engine."""

    def run(prompts: list[list[int]], length: int) -> None:
        params = SamplingParams(temperature=0, max_tokens=length, ignore_eos=True)
        outputs = llm.generate(prompts, params, use_tqdm=False)
        assert all(len(output.outputs[0].token_ids) == length for output in outputs)

    return run


def run_transformers(model: Any) -> Run:
    """Return a function that generates with transformers."""

    @torch.inference_mode()
    def run(prompts: list[list[int]], length: int) -> None:
        ids = torch.tensor(prompts)
        lengths = {"max_new_tokens": length, "min_new_tokens": length}
        out = model.generate(
            ids, attention_mask=torch.ones_like(ids), do_sample=False, pad_token_id=0, **lengths
        )
        assert out.shape[1] == ids.shape[1] + length

    return run


def seconds(run: Run, prompts: list[list[int]], length: int) -> float:
    """Return the time of one run in seconds."""
    started = time.perf_counter()
    run(prompts, length)
    return time.perf_counter() - started


def main() -> None:
    """Measure and print one line per task."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, help="folder of a checkpoint")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--dtype", default="bfloat16")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    with tempfile.TemporaryDirectory() as folder:
        compare(args.model or make_checkpoint("Qwen3ForCausalLM", folder, **FOUR_LAYERS), args)


def compare(folder: Path, args: argparse.Namespace) -> None:
    """Load a checkpoint in both, run every task alternately, print the table."""
    load: Any = transformers.AutoModelForCausalLM.from_pretrained
    model = load(folder, dtype=getattr(torch, args.dtype), attn_implementation="sdpa").eval()
    settings: dict[str, Any] = {
        "dtype": args.dtype,
        "num_threads": args.threads,
        "kv_cache_memory_bytes": 1 << 30,
    }
    with LLM(str(folder), max_model_len=512, log_level="error", **settings) as llm:
        ours = run_engine(llm)
        theirs = run_transformers(model)
        print(f"{'task':<22} {'engine s':>9} {'transformers s':>15} {'ratio':>6}")
        for name, (count, length, out) in TASKS.items():
            pairs = []
            for seed in range(args.rounds + 1):
                prompts = make_prompts(count, length, seed, model.config.vocab_size)
                pairs.append((seconds(ours, prompts, out), seconds(theirs, prompts, out)))
            pairs = pairs[1:]  # the first round is a warmup
            engine, other = (statistics.median(times) for times in zip(*pairs, strict=True))
            ratio = statistics.median(b / a for a, b in pairs)
            print(f"{name:<22} {engine:>9.3f} {other:>15.3f} {ratio:>6.2f}", flush=True)


if __name__ == "__main__":
    main()
