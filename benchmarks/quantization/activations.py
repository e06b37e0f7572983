"""Effect of rounded activations on the demo model, by combination of formats.

    python -m benchmarks.quantization.activations [--tokens 200] [--only TEXT]

The effect is the mean change of log-probabilities of held-out answers against unrounded inputs:
of a simulation (rounded inputs times dequantized weights, float32, sharing no code with the
engine), of the layers with torch and with the CPU kernels in float32, and of the kernels in
bfloat16, against unrounded inputs in bfloat16. A ratio of 1 is the simulation's own effect, in
bfloat16 that of the simulation in bfloat16, which has the noise of that type as well.
"""

from __future__ import annotations

import argparse
import json
import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer

from builtin_plugins.models.qwen import qwen3
from builtin_plugins.quant_methods.cpu_packed.method import make_method
from core.models.layers.decoder import Decoder
from core.testing.one_sequence import Session, plain_context, read_config
from examples.demo_model.evaluate import SHIPPED
from examples.demo_model.mix import SKILLS, evaluation_items
from tests.builtin_plugins.quant_methods.writers.activations import (
    Simulated,
    cases,
    engine,
    with_activations,
)
from tests.builtin_plugins.quant_methods.writers.model import Tensors, quantize


def token_ids(count: int) -> list[int]:
    """Return `count` token ids of held-out conversations."""
    tokenizer = Tokenizer.from_file(str(SHIPPED / "tokenizer.json"))
    texts = [
        json.dumps(item.messages) for skill in SKILLS for item in evaluation_items(skill, 0, 2)
    ]
    ids: list[int] = tokenizer.encode("\n".join(texts)).ids
    return ids[:count]


def logprobs(
    ids: Sequence[int],
    tensors: Tensors,
    quant: Any = None,
    plain: Any = None,
    dtype: torch.dtype = torch.float32,
) -> torch.Tensor:
    """Return the log-probability of each next token."""
    context = plain_context(dtype=dtype)
    context = replace(context, quant=quant or context.quant, plain=plain)
    decoder = Decoder(qwen3(read_config(SHIPPED)), context)
    decoder.load_weights(tensors.items())
    found = Session(decoder, length=len(ids)).step(ids).float()
    return found[:-1].gather(1, torch.tensor(ids[1:])[:, None])[:, 0]


def largest_input(ids: Sequence[int], tensors: Tensors) -> float:
    """Return the largest magnitude of all inputs of linear layers, which static scales need."""
    found = [0.0]

    def record(x: torch.Tensor) -> torch.Tensor:
        found.append(float(x.abs().max()))
        return x

    logprobs(ids, tensors, Simulated(record))
    return max(found)


def row(name: str, case: Any, ids: Sequence[int], tensors: Tensors) -> str:
    """Return a table line."""
    (write, method), extra, simulate = case
    stored, dequantized = quantize(tensors, write)
    stored = with_activations(stored, extra)
    simulated = Simulated(lambda x: simulate(x.float()).to(x.dtype))
    own = {
        dtype: float(
            (
                logprobs(ids, dequantized, simulated, dtype=dtype)
                - logprobs(ids, dequantized, dtype=dtype)
            )
            .abs()
            .mean()
        )
        for dtype in (torch.float32, torch.bfloat16)
    }
    ways = {
        "torch": (None, torch.float32),
        "kernels": (make_method(), torch.float32),
        "kernels, bfloat16": (make_method(), torch.bfloat16),
    }
    effects = []
    for plain, dtype in ways.values():
        rounded, base = (
            logprobs(ids, stored, method(engine(mode)), plain, dtype) for mode in ("on", "off")
        )
        effects.append(float((rounded - base).abs().mean()) / own[dtype])
    ratios = " | ".join(f"{ratio:.2f}" for ratio in effects)
    return f"| {name} | {own[torch.float32]:.4f} | {ratios} |"


def main() -> None:
    """Print a table, line by line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tokens", type=int, default=200)
    parser.add_argument("--only", default="", help="combinations with this text in their name")
    arguments = parser.parse_args()
    logging.disable()
    torch.set_num_threads(1)
    ids = token_ids(arguments.tokens)
    tensors = {name: own.float() for name, own in load_file(SHIPPED / "model.safetensors").items()}
    amax = largest_input(ids, tensors)
    print(f"largest input: {amax:.1f}\n")
    print("| weights and activations | effect | torch | kernels | kernels, bfloat16 |")
    print("| --- | ---: | ---: | ---: | ---: |")
    for name, case in cases(amax).items():
        if arguments.only in name:
            print(row(name, case, ids, tensors), flush=True)


if __name__ == "__main__":
    main()
