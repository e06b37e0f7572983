"""Workloads W1, W2a, W3 and W5: the engine with random weights in real shapes.

W1 also runs transformers' continuous batching on the same requests.
"""

from __future__ import annotations

import gc
import json
import random
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from benchmarks.gpu.ceilings import Ceilings
from benchmarks.gpu.clock import Clock, Row
from benchmarks.peers.limits import Rates, Shape, step_s

MODELS = {"Qwen3ForCausalLM": "qwen3", "LlamaForCausalLM": "llama"}


@dataclass(frozen=True, slots=True)
class Request:
    """Random prompt ids, and number of tokens to generate."""

    prompt: list[int]
    output: int


@dataclass(frozen=True, slots=True)
class ModelSizes:
    """Sizes of the model workloads."""

    small: Shape
    """Shape of Qwen3-0.6B."""
    large: Shape
    """Shape of Llama-3.1-8B."""
    batch: Shape
    """Shape of Qwen3-8B."""
    requests: int
    min_tokens: int
    max_tokens: int
    """Maximum number of tokens of W1's prompts and outputs."""
    wide: tuple[int, int, int]
    """W2a: requests, prompt tokens, output tokens."""
    contexts: tuple[int, int]
    answer: int
    """W3: number of output tokens."""
    prompts: tuple[tuple[int, int], ...]
    """W5: number of prompts, and tokens of each."""


REAL = ModelSizes(
    Shape(28, 1024, 3072, 16, 8, 128, 151_936),
    Shape(32, 4096, 14336, 32, 8, 128, 128_256),
    Shape(36, 4096, 12288, 32, 8, 128, 151_936),
    256,
    100,
    1024,
    (256, 1024, 1024),
    (32, 16_384),
    256,
    ((1, 2048), (4, 2048), (1, 8192), (1, 32_000)),
)
_TINY = Shape(1, 32, 48, 4, 2, 16, 300)
TOY = ModelSizes(_TINY, _TINY, _TINY, 3, 2, 5, (2, 6, 3), (3, 9), 3, ((1, 5), (2, 5)))


def small_batch(clock: Clock, ceilings: Ceilings, sizes: ModelSizes) -> Iterator[Row]:
    """W1: mixed lengths on a small model, without overlap and with transformers; then W3."""
    requests = mixed(sizes)
    limit = least_s(requests, sizes.small, ceilings.rates)
    settings = {"temperature": 0.6}
    with checkpoint("Qwen3ForCausalLM", sizes.small) as folder:
        with engine(clock, folder, sizes.max_tokens * 2, max_num_seqs=256) as llm:
            generate(llm, requests[: len(requests) // 4], **settings)
            ours = clock.wall(lambda: generate(llm, requests, **settings))
            streams = list(
                single_stream(
                    clock, ceilings, sizes, llm, sizes.small, sizes.contexts[:1], "0.6B", "0.60"
                )
            )
        with engine(
            clock, folder, sizes.max_tokens * 2, max_num_seqs=256, async_scheduling=False
        ) as llm:
            generate(llm, requests[: len(requests) // 4], **settings)
            alone = clock.wall(lambda: generate(llm, requests, **settings))
        theirs = (
            clock.wall(lambda: by_transformers(folder, requests))
            if clock.device == "cuda"
            else float("nan")
        )
    about = f"{sum(len(r.prompt) for r in requests):,} in, {sum(r.output for r in requests):,} out"
    comparison = (
        f"transformers {theirs / ours:.2f} times as long (2.0, with its start); "
        f"without overlap {alone / ours:.2f} (1.10)"
    )
    yield Row(f"W1 {len(requests)} requests, {about}", ours, limit, "0.60, later 0.80", comparison)
    yield from streams


def large_model(clock: Clock, ceilings: Ceilings, sizes: ModelSizes) -> Iterator[Row]:
    """W3 and W5 of an 8B model."""
    longest = max(*sizes.contexts, *(count for _, count in sizes.prompts)) + sizes.answer
    with (
        checkpoint("LlamaForCausalLM", sizes.large) as folder,
        engine(clock, folder, longest, max_num_seqs=8, max_num_batched_tokens=longest) as llm,
    ):
        yield from single_stream(
            clock, ceilings, sizes, llm, sizes.large, sizes.contexts, "8B", "0.80, later 0.90"
        )
        for count, tokens in sizes.prompts:
            requests = [Request(ids(tokens, sizes.large, number), 1) for number in range(count)]
            generate(llm, requests)
            seconds = clock.wall(lambda given=requests: generate(llm, given))  # type: ignore[misc]
            target = "0.88" if tokens <= 8192 else "0.80"
            yield Row(
                f"W5 {count} x {tokens} prompt",
                seconds,
                least_s(requests, sizes.large, ceilings.rates),
                target,
            )


def wide_batch(clock: Clock, ceilings: Ceilings, sizes: ModelSizes) -> Iterator[Row]:
    """W2a: many requests of equal lengths."""
    count, tokens, output = sizes.wide
    requests = [Request(ids(tokens, sizes.batch, number), output) for number in range(count)]
    with (
        checkpoint("Qwen3ForCausalLM", sizes.batch) as folder,
        engine(clock, folder, tokens + output, max_num_seqs=count) as llm,
    ):
        generate(llm, [Request(request.prompt[:64], 4) for request in requests])
        seconds = clock.wall(lambda: generate(llm, requests))
    limit = least_s(requests, sizes.batch, ceilings.rates)
    yield Row(f"W2a {count} x ({tokens} + {output})", seconds, limit, "0.88")


def single_stream(
    clock: Clock,
    ceilings: Ceilings,
    sizes: ModelSizes,
    llm: Any,
    shape: Shape,
    contexts: Sequence[int],
    name: str,
    aim: str,
) -> Iterator[Row]:
    """W3: inter-token time of one request."""
    for context in contexts:
        prompt = ids(context, shape, context)
        generate(llm, [Request(prompt, sizes.answer)])
        first = clock.wall(partial(generate, llm, [Request(prompt, 1)]))
        whole = clock.wall(partial(generate, llm, [Request(prompt, sizes.answer)]))
        middle = context + sizes.answer // 2
        limit = step_s(shape, ceilings.rates, 16, rows=1, sampled=1, pairs=middle, positions=middle)
        yield Row(
            f"W3 {name}, a token after {context}", (whole - first) / (sizes.answer - 1), limit, aim
        )


def mixed(sizes: ModelSizes) -> list[Request]:
    """Return W1's requests: 142,827 prompt and 133,966 output tokens at full size."""
    drawn = random.Random(0)
    top = min(10_000, sizes.small.vocab - 1)
    prompts = [
        [drawn.randint(0, top) for _ in range(drawn.randint(sizes.min_tokens, sizes.max_tokens))]
        for _ in range(sizes.requests)
    ]
    return [
        Request(prompt, drawn.randint(sizes.min_tokens, sizes.max_tokens)) for prompt in prompts
    ]


def ids(count: int, shape: Shape, seed: int) -> list[int]:
    """Return random ids."""
    drawn = random.Random(seed)
    return [drawn.randrange(shape.vocab) for _ in range(count)]


def least_s(requests: Sequence[Request], shape: Shape, rates: Rates) -> float:
    """Return the minimum time: one prefill step, then one step per token of the longest output."""
    prompts = [len(request.prompt) for request in requests]
    pairs = sum(count**2 / 2 for count in prompts)
    total = step_s(
        shape, rates, 16, rows=sum(prompts), sampled=len(requests), pairs=pairs, positions=0
    )
    for step in range(1, max(request.output for request in requests)):
        running = [len(request.prompt) + step for request in requests if request.output > step]
        seen = sum(running)
        total += step_s(
            shape, rates, 16, rows=len(running), sampled=len(running), pairs=seen, positions=seen
        )
    return total


@contextmanager
def checkpoint(architecture: str, shape: Shape) -> Iterator[str]:
    """Create a checkpoint folder with a config only; weights are random at load time."""
    config = {
        "architectures": [architecture],
        "model_type": MODELS[architecture],
        "hidden_size": shape.hidden,
        "intermediate_size": shape.intermediate,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head_dim,
        "vocab_size": shape.vocab,
        "max_position_embeddings": 40_960,
        "tie_word_embeddings": shape.hidden <= 1024,
        "torch_dtype": "bfloat16",
        "rms_norm_eps": 1e-6,
    }
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(config))
        yield folder


@contextmanager
def engine(clock: Clock, folder: str, longest: int, **settings: Any) -> Iterator[Any]:
    """Create an engine; tiny shapes run on the fake GPU."""
    from core import LLM  # lazy: after the interpreter setting

    if clock.device == "cuda":
        own: dict[str, Any] = {"device": "cuda"}
    else:
        fake_gpu = str(Path(__file__).with_name("fake_gpu.py"))
        own = {
            "device": "fake_gpu",
            "plugins": [fake_gpu, "no:ops_cpu", "no:quant_cpu_packed", "no:attention_paged"],
        }
        own["num_gpu_blocks_override"] = 16
    fixed = {
        "load_format": "dummy",
        "skip_tokenizer_init": True,
        "enable_prefix_caching": False,
        "log_level": "error",
    }
    with LLM(folder, dtype="bfloat16", max_model_len=longest, **fixed, **own, **settings) as llm:
        yield llm
    gc.collect()
    if clock.device == "cuda":
        torch.cuda.empty_cache()


def generate(llm: Any, requests: Sequence[Request], temperature: float = 0.0) -> None:
    """Complete all requests together."""
    from core import SamplingParams  # lazy: as above

    sampling = [
        SamplingParams(
            temperature=temperature,
            seed=number,
            max_tokens=each.output,
            ignore_eos=True,
            detokenize=False,
        )
        for number, each in enumerate(requests)
    ]
    llm.generate([{"prompt_token_ids": each.prompt} for each in requests], sampling, use_tqdm=False)


def by_transformers(folder: str, requests: Sequence[Request]) -> None:
    """Complete the requests with transformers' continuous batching and its best attention."""
    from transformers import (
        AutoConfig,
        AutoModelForCausalLM,
        GenerationConfig,
    )  # lazy: slow to import

    config = AutoConfig.from_pretrained(folder)
    with torch.device("cuda"):
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).eval()
    generation = GenerationConfig(
        do_sample=True, temperature=0.6, max_new_tokens=max(each.output for each in requests)
    )
    with model.continuous_batching_context_manager(generation_config=generation) as manager:
        for each in requests:
            manager.add_request(each.prompt, max_new_tokens=each.output, eos_token_id=-1)
        done = 0
        for result in manager:
            done += bool(result.is_finished())
            if done == len(requests):
                break
    del model
    gc.collect()
    torch.cuda.empty_cache()
