"""Every architecture against transformers: float32, tiny random weights, every particular feature on."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from core.testing.checkpoints import TINY, VOCAB
from core.testing.one_sequence import Session

PROMPT_LEN = 70
"""Longer than every window (24 and 40) and than the original context of long rotary positions (48)."""
NUM_GENERATED = 8
TOLERANCE = 1e-3


def prompt(seed: int = 0) -> list[int]:
    return torch.randint(0, VOCAB, (PROMPT_LEN,), generator=torch.Generator().manual_seed(seed)).tolist()


@torch.inference_mode()
def oracle(architecture: str, folder: Path, ids: list[int]) -> tuple[list[int], torch.Tensor]:
    """Return transformers' greedy tokens and the log-probabilities at every position."""
    model = getattr(transformers, architecture).from_pretrained(folder, attn_implementation="eager").eval()
    tokens = list(ids)
    for _ in range(NUM_GENERATED):
        logits = model(torch.tensor([tokens]), use_cache=False).logits[0]
        tokens.append(int(logits[-1].argmax()))
    logits = model(torch.tensor([tokens]), use_cache=False).logits[0]
    top = logits[PROMPT_LEN - 1 :].topk(2).values
    assert (top[:, 0] - top[:, 1]).min() > TOLERANCE, "draw another seed: a tie is too close to compare"
    return tokens[PROMPT_LEN:], logits.log_softmax(-1)


@pytest.mark.parametrize("architecture", sorted(TINY))
def test_greedy_tokens_and_log_probabilities_equal_transformers(
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
