"""On a GPU: kernels equal the reference, steps have no host sync, and tokens equal the CPU's.

`TRITON_INTERPRET=0 python -m pytest -m gpu tests/builtin_plugins/platforms/gpu` runs them; without
a GPU they are skipped.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from core_kernels.triton.launching import INTERPRETED

from builtin_plugins.attention_backends.reference.backend import ReferenceAttention
from builtin_plugins.attention_backends.triton.backend import TritonAttention
from builtin_plugins.op_impls.triton import ops, plugin
from core import LLM, SamplingParams
from core.model_spec.attention_params import AttentionParams
from core.models.ops import reference
from core.testing.attention_oracle import PagedSequences
from core.testing.checkpoints import make_checkpoint
from core.testing.conformance.op_impls import _examples as examples

DEVICE = "cuda"
TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 3e-2}
BY_HEAD = torch.linspace(-1.0, 1.0, 8)
LAYERS = (
    AttentionParams(8, 2, 128, 0.1),
    AttentionParams(8, 8, 64, 0.1, window=40, softcap=3.0, alibi=BY_HEAD, sinks=BY_HEAD),
    AttentionParams(16, 1, 576, 0.05, value_size=512),
)

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no GPU"),
    pytest.mark.skipif(INTERPRETED, reason="kernels are interpreted; set TRITON_INTERPRET=0"),
]


def on_device(value: Any) -> Any:
    """Return tensors of arguments on the device."""
    return value.to(DEVICE) if isinstance(value, torch.Tensor) else value


@contextmanager
def waiting_is_an_error() -> Iterator[None]:
    """Make torch raise on a host sync."""
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


def assert_same(found: Any, expected: Any, dtype: torch.dtype) -> None:
    pairs = zip(
        *(value if isinstance(value, tuple) else (value,) for value in (found, expected)),
        strict=True,
    )
    for ours, theirs in pairs:
        torch.testing.assert_close(ours.cpu(), theirs, atol=TOLERANCE[dtype], rtol=TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("op", sorted({*plugin.OPS} - {"truncate", "delta_scan"}))
def test_gpu_ops_equal_reference(op: str, dtype: torch.dtype) -> None:
    for given in examples(op, lambda *shape: torch.randn(shape).to(dtype)):
        expected = getattr(reference, op)(*given)
        assert_same(getattr(ops, op)(*map(on_device, given)), expected, dtype)


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("params", LAYERS, ids=str)
def test_gpu_attention_equals_reference_without_sync(
    params: AttentionParams, dtype: torch.dtype
) -> None:
    backend = TritonAttention()
    truth = ReferenceAttention()
    sequences = PagedSequences(truth, params, num_sequences=3, max_len=700, dtype=dtype)
    own = replace(params, alibi=on_device(params.alibi), sinks=on_device(params.sinks))
    cache = sequences.cache.to(DEVICE)
    for counts in ({0: 600, 1: 33}, {0: 30, 1: 1, 2: 64}, {0: 1, 1: 1, 2: 1}):
        inputs, *given = sequences.tokens(counts)
        expected = truth.attend(params, *given, sequences.cache, truth.prepare(inputs))
        moved = replace(
            inputs, block_table=on_device(inputs.block_table), slots=on_device(inputs.slots)
        )
        arguments = [on_device(each) for each in given]
        with waiting_is_an_error():
            found = backend.attend(own, *arguments, cache, backend.prepare(moved))
        assert_same(found, expected, dtype)


@pytest.mark.parametrize("settings", [{}, {"enforce_eager": True}], ids=["replayed", "eager"])
@pytest.mark.parametrize(
    "architecture", ["LlamaForCausalLM", "Qwen3MoeForCausalLM", "Gemma2ForCausalLM"]
)
def test_gpu_greedy_tokens_equal_cpu(
    architecture: str, settings: dict[str, Any], tmp_path: Path
) -> None:
    folder = str(make_checkpoint(architecture, tmp_path / "model", seed=1))
    prompts = [
        {"prompt_token_ids": [(7 * i + 13 * n) % 200 for i in range(n)]} for n in (60, 17, 3)
    ]
    sampling = SamplingParams(temperature=0.0, max_tokens=20, ignore_eos=True)
    found = []
    for device, own in (("cpu", {}), ("cuda", settings)):
        sizes = {"max_num_seqs": 3, "max_model_len": 128, "num_gpu_blocks_override": 40}
        with LLM(
            folder, dtype="float32", device=device, skip_tokenizer_init=True, **sizes, **own
        ) as llm:
            outputs = llm.generate(prompts, sampling, use_tqdm=False)
            found.append([list(output.outputs[0].token_ids) for output in outputs])
    assert found[0] == found[1]


@pytest.mark.parametrize("settings", [{}, {"enforce_eager": True}], ids=["replayed", "eager"])
def test_gpu_steps_have_no_host_sync(settings: dict[str, Any], tmp_path: Path) -> None:
    folder = str(make_checkpoint("LlamaForCausalLM", tmp_path / "model", seed=1))
    prompts = [
        {"prompt_token_ids": [(7 * i + 13 * n) % 200 for i in range(n)]} for n in (60, 17, 3)
    ]
    sampling = SamplingParams(
        temperature=0.7, top_k=20, top_p=0.9, seed=3, max_tokens=20, ignore_eos=True
    )
    sizes = {
        "max_num_seqs": 3,
        "max_model_len": 128,
        "num_gpu_blocks_override": 40,
        "enable_prefix_caching": False,
    }
    with LLM(
        folder, dtype="bfloat16", device="cuda", skip_tokenizer_init=True, **sizes, **settings
    ) as llm:

        def tokens() -> list[list[int]]:
            return [
                list(out.outputs[0].token_ids)
                for out in llm.generate(prompts, sampling, use_tqdm=False)
            ]

        known = [tokens() for _ in range(3)][-1]  # all that is compiled or recorded is by then
        with waiting_is_an_error():
            assert tokens() == known
