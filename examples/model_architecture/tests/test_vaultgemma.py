"""The plugin loads, imports little, and passes the conformance suite of its kind."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from engine_vaultgemma.model import EXAMPLE_CONFIG, spec
from transformers import VaultGemmaConfig, VaultGemmaForCausalLM

from core import LLM, SamplingParams
from core.api import ModelError
from core.testing import conformance
from core.testing.plugins import load_plugins

MODULE = "engine_vaultgemma.plugin"


def test_vaultgemma_adds_an_architecture() -> None:
    entries = conformance.entries_of_named_plugins(load_plugins(MODULE))
    assert {registered.kind for registered in entries} == {"models"}


@pytest.mark.parametrize("case", conformance.cases(MODULE), ids=str)
def test_vaultgemma_passes_conformance_suite(case: conformance.Case) -> None:
    case()


def test_discovery_imports_no_torch() -> None:
    code = f"import sys, {MODULE}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def checkpoint(folder: Path, **changes: Any) -> VaultGemmaForCausalLM:
    """Write a tiny random checkpoint and return transformers' model of it."""
    generator = torch.Generator().manual_seed(1)
    config = VaultGemmaConfig(**{**EXAMPLE_CONFIG, **changes})
    model = VaultGemmaForCausalLM._from_config(config, attn_implementation="eager").eval()
    with torch.no_grad():
        for parameter in model.parameters():
            # Large enough that every layer and early tokens affect the last logits.
            noise = torch.randn(parameter.shape, generator=generator)
            parameter.copy_(
                noise * 1.5 / parameter.shape[-1] ** 0.5
                if parameter.ndim > 1
                else noise * 0.2 + 0.5
            )
    model.save_pretrained(folder)
    return model


@torch.inference_mode()
def greedy(model: VaultGemmaForCausalLM, ids: list[int], num_tokens: int) -> list[int]:
    """Return transformers' greedy tokens, each with a clear margin."""
    tokens = list(ids)
    for _ in range(num_tokens):
        logits = model(torch.tensor([tokens]), use_cache=False).logits[0, -1]
        best = logits.topk(2).values
        assert best[0] - best[1] > 1e-3, "draw another seed: a tie is too close to compare"
        tokens.append(int(logits.argmax()))
    return tokens[len(ids) :]


@pytest.mark.parametrize(
    "changes",
    [{}, {"layer_types": ["full_attention"] * 2, "final_logit_softcapping": None}],
    ids=["windows", "no windows"],
)
def test_greedy_tokens_equal_transformers(tmp_path: Path, changes: dict[str, Any]) -> None:
    ids = [(17 * i + 5) % 300 for i in range(70)]
    expected = greedy(checkpoint(tmp_path, **changes), ids, 8)
    with LLM(
        str(tmp_path),
        plugins=[MODULE],
        dtype="float32",
        skip_tokenizer_init=True,
        max_num_batched_tokens=16,
        num_gpu_blocks_override=32,
    ) as llm:
        params = SamplingParams(max_tokens=8, temperature=0, ignore_eos=True, detokenize=False)
        found = llm.generate({"prompt_token_ids": ids}, params, use_tqdm=False)[0]
    assert list(found.outputs[0].token_ids) == expected


def test_unsupported_config_field_is_rejected() -> None:
    with pytest.raises(ModelError, match=r"use_bidirectional_attention is on in config.json"):
        spec(SimpleNamespace(**EXAMPLE_CONFIG, use_bidirectional_attention=True))
