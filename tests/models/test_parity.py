"""Every architecture against transformers: float32, tiny random weights, every particular feature on."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import transformers
from parity_harness import MODULES, Session, load

from core.testing.checkpoints import TINY, VOCAB, make_checkpoint

PROMPT_LEN = 70
"""Longer than every window (24 and 40) and than the original context of long rotary positions (48)."""
NUM_GENERATED = 8
TOLERANCE = 1e-3

torch.set_num_threads(1)


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("checkpoints")


@pytest.fixture(params=sorted(MODULES))
def case(request: pytest.FixtureRequest, checkpoints: Path) -> tuple[str, Path]:
    folder = checkpoints / request.param
    if not folder.exists():
        make_checkpoint(request.param, folder, seed=1)
    return request.param, folder


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


def test_every_architecture_of_the_kit_is_tested() -> None:
    assert set(MODULES) == set(TINY)


def test_greedy_tokens_and_log_probabilities_equal_transformers(case: tuple[str, Path]) -> None:
    architecture, folder = case
    ids = prompt()
    expected_tokens, expected = oracle(architecture, folder, ids)
    decoder = load(architecture, folder)
    for chunk in (PROMPT_LEN, 16, 7):
        session = Session(decoder)
        pieces = [session.step(ids[i : i + chunk]) for i in range(0, PROMPT_LEN, chunk)]
        tokens: list[int] = []
        for _ in range(NUM_GENERATED):
            tokens.append(int(pieces[-1][-1].argmax()))
            pieces.append(session.step([tokens[-1]]))
        assert tokens == expected_tokens, f"in chunks of {chunk}"
        assert (torch.cat(pieces) - expected).abs().max() < TOLERANCE, f"in chunks of {chunk}"


def test_early_tokens_move_the_last_logits(case: tuple[str, Path]) -> None:
    architecture, folder = case
    decoder = load(architecture, folder)
    ids = prompt()
    swapped = [*ids[:10], ids[11], ids[10], *ids[12:]]
    last = [Session(decoder).step(tokens)[-1] for tokens in (ids, swapped)]
    assert (last[0] - last[1]).abs().max() > 1e-2
