"""Every architecture against transformers: float32, tiny random weights, every particular feature on."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from core.testing.checkpoints import ARCHITECTURES, TINY, VOCAB, make_checkpoint
from core.testing.one_sequence import Session

PROMPT_LEN = 56
"""Longer than every window and chunk."""
NUM_GENERATED = 4
TOLERANCE = 1e-3
HERE = sorted(set(ARCHITECTURES) - set(TINY))
"""Those of `TINY` have tests of their own."""


def prompt(seed: int) -> list[int]:
    return torch.randint(0, VOCAB - 3, (PROMPT_LEN,), generator=torch.Generator().manual_seed(seed)).tolist()


@torch.inference_mode()
def oracle(folder: Path) -> tuple[list[int], list[int], torch.Tensor]:
    """Return a prompt without near ties, transformers' greedy tokens and all log-probabilities."""
    config = transformers.AutoConfig.from_pretrained(folder)
    # transformers 5.23: Falcon's eager attention adds the slopes twice, its fused one once.
    attention = "sdpa" if config.model_type == "falcon" else "eager"
    settings = {"attn_implementation": attention, "experts_implementation": "eager"}
    model: Any = transformers.AutoModelForCausalLM.from_pretrained(folder, config=config, **settings).eval()
    for seed in range(20):
        tokens = prompt(seed)
        for _ in range(NUM_GENERATED):
            logits = model(torch.tensor([tokens]), use_cache=False).logits[0]
            tokens.append(int(logits[-1].argmax()))
        top = logits[PROMPT_LEN - 1 :].topk(2).values
        if (top[:, 0] - top[:, 1]).min() > 2 * TOLERANCE:
            return tokens[:PROMPT_LEN], tokens[PROMPT_LEN:], logits.float().log_softmax(-1)
    raise AssertionError("no prompt without a tie was found")


@pytest.mark.parametrize("architecture", HERE)
def test_tokens_and_log_probabilities_equal_transformers(
    architecture: str, checkpoint: Callable[[str], Path], load: Callable[..., Any]
) -> None:
    folder = checkpoint(architecture)
    ids, expected_tokens, expected = oracle(folder)
    decoder = load(architecture, folder)
    for chunk in (PROMPT_LEN, 9):
        tokens, found = Session(decoder).generate(ids, NUM_GENERATED, chunk)
        assert (found[: len(expected)] - expected).abs().max() < TOLERANCE, f"in chunks of {chunk}"
        assert tokens == expected_tokens, f"in chunks of {chunk}"


@pytest.mark.parametrize("architecture", HERE)
def test_early_tokens_move_the_last_logits(
    architecture: str, checkpoint: Callable[[str], Path], load: Callable[..., Any]
) -> None:
    decoder = load(architecture, checkpoint(architecture))
    ids = prompt(0)
    swapped = [*ids[:10], ids[11], ids[10], *ids[12:]]
    last = [Session(decoder).step(tokens)[-1] for tokens in (ids, swapped)]
    assert (last[0] - last[1]).abs().max() > 1e-2


FALCON_ALIBI = {"new_decoder_architecture": False, "alibi": True, "parallel_attn": False}
OTHER_FORMS: list[tuple[str, dict[str, Any]]] = [
    ("FalconForCausalLM", {**FALCON_ALIBI, "multi_query": False, "num_kv_heads": None}),
    ("FalconForCausalLM", {"new_decoder_architecture": False, "num_kv_heads": None}),
    ("FalconForCausalLM", {"num_ln_in_parallel_attn": 1, "bias": False}),
    ("OPTForCausalLM", {"do_layer_norm_before": True, "word_embed_proj_dim": 64, "enable_bias": False}),
    ("OPTForCausalLM", {"do_layer_norm_before": True, "layer_norm_elementwise_affine": False}),
    ("GPTBigCodeForCausalLM", {"multi_query": False, "scale_attn_weights": False}),
    ("StableLmForCausalLM", {"qk_layernorm": False, "use_parallel_residual": False, "use_qkv_bias": False}),
    ("CohereForCausalLM", {"use_qk_norm": False, "attention_bias": False}),
    ("Exaone4ForCausalLM", {"sliding_window": None, "layer_types": ["full_attention"] * 3}),
    ("HyperCLOVAXForCausalLM", {"use_post_norm": False, "attention_multiplier": None}),
    ("GemmaForCausalLM", {"hidden_act": "gelu"}),
    ("SmolLM3ForCausalLM", {"no_rope_layers": None, "no_rope_layer_interval": 3, "use_sliding_window": False}),
]


@pytest.mark.slow
@pytest.mark.parametrize(("architecture", "changes"), OTHER_FORMS, ids=[f"{a}-{min(c)}" for a, c in OTHER_FORMS])
def test_other_forms_of_an_architecture_equal_transformers(
    architecture: str, changes: dict[str, Any], tmp_path: Path, load: Callable[..., Any]
) -> None:
    folder = make_checkpoint(architecture, tmp_path, seed=2, **changes)
    ids, expected_tokens, expected = oracle(folder)
    tokens, found = Session(load(architecture, folder)).generate(ids, NUM_GENERATED)
    assert (found[: len(expected)] - expected).abs().max() < TOLERANCE
    assert tokens == expected_tokens
