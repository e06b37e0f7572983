"""Latent attention details: query latents."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from core.testing.checkpoints import make_checkpoint
from core.testing.one_sequence import Session

IDS = torch.randint(0, 290, (56,), generator=torch.Generator().manual_seed(0)).tolist()


@pytest.mark.parametrize("seed", [1, 4])
def test_youtu_with_latent_queries_is_near_transformers(
    seed: int, tmp_path: Path, load: Callable[..., Any], by_transformers: Callable[[Path], Any]
) -> None:
    sizes = {"kv_lora_rank": 32, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 12}
    more = {"q_lora_rank": 24, "rope_interleave": True, "tie_word_embeddings": True}
    folder = make_checkpoint("YoutuForCausalLM", tmp_path, seed=seed, **sizes, **more)
    with torch.inference_mode():
        target = (
            by_transformers(folder)(torch.tensor([IDS]), use_cache=False).logits[0].log_softmax(-1)
        )
    torch.testing.assert_close(
        Session(load("YoutuForCausalLM", folder)).step(IDS), target, atol=2e-5, rtol=0
    )
