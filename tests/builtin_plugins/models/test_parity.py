"""Every architecture against transformers: float32, tiny random weights, every option on."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch.utils._python_dispatch import TorchDispatchMode

from core.testing.checkpoints import TINY, VOCAB, make_checkpoint
from core.testing.one_sequence import Session

PROMPT_LEN = 70
"""Longer than every window (24 and 40) and than the original context of long rotary positions (48).
"""
NUM_GENERATED = 8
TOLERANCE = 1e-3


def prompt(seed: int = 0) -> list[int]:
    return torch.randint(
        0, VOCAB, (PROMPT_LEN,), generator=torch.Generator().manual_seed(seed)
    ).tolist()


@torch.inference_mode()
def oracle(architecture: str, folder: Path, ids: list[int]) -> tuple[list[int], torch.Tensor]:
    """Return transformers' greedy tokens and the log-probabilities at every position."""
    model = (
        getattr(transformers, architecture)
        .from_pretrained(folder, attn_implementation="eager")
        .eval()
    )
    tokens = list(ids)
    for _ in range(NUM_GENERATED):
        logits = model(torch.tensor([tokens]), use_cache=False).logits[0]
        tokens.append(int(logits[-1].argmax()))
    logits = model(torch.tensor([tokens]), use_cache=False).logits[0]
    top = logits[PROMPT_LEN - 1 :].topk(2).values
    assert (top[:, 0] - top[:, 1]).min() > TOLERANCE, (
        "draw another seed: a tie is too close to compare"
    )
    return tokens[PROMPT_LEN:], logits.log_softmax(-1)


@pytest.mark.parametrize("architecture", sorted(TINY))
def test_greedy_tokens_and_logprobs_equal_transformers(
    architecture: str, checkpoint: Callable[[str], Path], load: Callable[..., Any]
) -> None:
    folder = checkpoint(architecture)
    expected_tokens, expected = oracle(architecture, folder, prompt())
    decoder = load(architecture, folder)
    for chunk in (PROMPT_LEN, 16, 7):
        tokens, found = Session(decoder).generate(prompt(), NUM_GENERATED, chunk)
        assert tokens == expected_tokens, f"in chunks of {chunk}"
        assert (found - expected).abs().max() < TOLERANCE, f"in chunks of {chunk}"


@pytest.mark.parametrize("architecture", sorted(TINY))
def test_early_tokens_move_the_last_logits(
    architecture: str, checkpoint: Callable[[str], Path], load: Callable[..., Any]
) -> None:
    decoder = load(architecture, checkpoint(architecture))
    ids = prompt()
    swapped = [*ids[:10], ids[11], ids[10], *ids[12:]]
    last = [Session(decoder).step(tokens)[-1] for tokens in (ids, swapped)]
    assert (last[0] - last[1]).abs().max() > 1e-2


YARN = {
    "rope_type": "yarn",
    "rope_theta": 1e4,
    "factor": 4.0,
    "original_max_position_embeddings": 64,
}
LINEAR = {"rope_type": "linear", "rope_theta": 1e4, "factor": 4.0}
PLAIN = {"rope_type": "default", "rope_theta": 1e4}
VARIANTS = [
    ("LlamaForCausalLM", {"rope_parameters": YARN, "tie_word_embeddings": True, "mlp_bias": True}),
    (
        "LlamaForCausalLM",
        {"rope_parameters": LINEAR, "attention_bias": False, "num_key_value_heads": 1},
    ),
    ("MistralForCausalLM", {"sliding_window": None}),
    ("Qwen2ForCausalLM", {"use_sliding_window": False, "tie_word_embeddings": True}),
    (
        "Qwen3ForCausalLM",
        {"use_sliding_window": True, "sliding_window": 16, "max_window_layers": 2},
    ),
    ("Gemma3ForCausalLM", {"final_logit_softcapping": 8.0, "layer_types": None}),
    ("Phi3ForCausalLM", {"rope_parameters": PLAIN, "sliding_window": None}),
    (
        "GPT2LMHeadModel",
        {"scale_attn_by_inverse_layer_idx": False, "n_inner": 80, "activation_function": "relu"},
    ),
    ("GPTNeoXForCausalLM", {"use_parallel_residual": False, "hidden_act": "gelu_fast"}),
    (
        "Qwen3MoeForCausalLM",
        {"norm_topk_prob": False, "mlp_only_layers": [], "decoder_sparse_step": 2},
    ),
]


@pytest.mark.parametrize(
    ("architecture", "changes"), VARIANTS, ids=[f"{a}-{min(c)}" for a, c in VARIANTS]
)
def test_architecture_variants_equal_transformers(
    architecture: str, changes: dict[str, Any], tmp_path: Path, load: Callable[..., Any]
) -> None:
    folder = make_checkpoint(architecture, tmp_path, seed=2, **changes)
    expected_tokens, expected = oracle(architecture, folder, prompt())
    tokens, found = Session(load(architecture, folder)).generate(prompt(), NUM_GENERATED)
    assert tokens == expected_tokens
    assert (found - expected).abs().max() < TOLERANCE


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("architecture", sorted(TINY))
def test_half_precision_is_near_float32(
    architecture: str,
    dtype: torch.dtype,
    checkpoint: Callable[[str], Path],
    load: Callable[..., Any],
) -> None:
    folder = checkpoint(architecture)
    exact, rounded = (
        Session(load(architecture, folder, kind)).step(prompt()) for kind in (torch.float32, dtype)
    )
    assert rounded.dtype == torch.float32
    assert (exact - rounded).abs().mean() < (0.3 if dtype == torch.bfloat16 else 0.05)


class NoReadBack(TorchDispatchMode):
    """Raises when a device value would be read by the host."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        assert func._opname not in ("_local_scalar_dense", "nonzero", "item"), (
            f"{func} reads a value back"
        )
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("architecture", sorted(TINY))
def test_steps_have_no_host_sync(
    architecture: str, checkpoint: Callable[[str], Path], load: Callable[..., Any]
) -> None:
    session = Session(load(architecture, checkpoint(architecture)))
    with NoReadBack():
        session.step(prompt())
        session.step([1])
