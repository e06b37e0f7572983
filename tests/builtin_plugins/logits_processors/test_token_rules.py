"""Token rules of generation_config.json: greedy tokens equal transformers' `generate`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from core import LLM, SamplingParams
from core.errors import ModelError
from core.testing.checkpoints import make_checkpoint

IDS = [5, 6, 7, 8, 9, 10, 11, 40, 41, 42]
NUM_TOKENS = 8


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint("Qwen3ForCausalLM", tmp_path_factory.mktemp("rules") / "model", seed=3)


@pytest.fixture(scope="module")
def plain(folder: Path) -> list[int]:
    """Return transformers' tokens without rules."""
    return expected(folder, {})


@torch.inference_mode()
def expected(folder: Path, rules: dict[str, Any]) -> list[int]:
    (folder / "generation_config.json").unlink(missing_ok=True)  # the rules of another test
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    settings = transformers.GenerationConfig(
        max_new_tokens=NUM_TOKENS, do_sample=False, pad_token_id=0, eos_token_id=None, **rules
    )
    prompt = torch.tensor([IDS])
    out = model.generate(prompt, attention_mask=torch.ones_like(prompt), generation_config=settings)
    return out[0, len(IDS) :].tolist()


def found(folder: Path, rules: dict[str, Any], **options: Any) -> list[int]:
    (folder / "generation_config.json").write_text(json.dumps(rules))
    sampling = SamplingParams(temperature=0, max_tokens=NUM_TOKENS, ignore_eos=True)
    with LLM(str(folder), max_model_len=64, dtype="float32", log_level="error", **options) as llm:
        prompts = [{"prompt_token_ids": ids} for ids in (IDS, IDS[:4], IDS)]
        outputs = llm.generate(prompts, sampling, use_tqdm=False)
    tokens = [list(output.outputs[0].token_ids) for output in outputs]
    assert tokens[0] == tokens[2]
    return tokens[0]


def rules_of(plain: list[int], name: str) -> dict[str, Any]:
    return {
        "suppress_tokens": {"suppress_tokens": plain[:3]},
        "begin_suppress_tokens": {"begin_suppress_tokens": [plain[0]]},
        "bad_words_ids": {"bad_words_ids": [[plain[0]], plain[1:3], [plain[4]]]},
        "bad word from the prompt on": {"bad_words_ids": [[IDS[-1], plain[0]]]},
        "forced_eos_token_id": {"forced_eos_token_id": 17},
        "all": {
            "suppress_tokens": [plain[1]],
            "begin_suppress_tokens": [plain[0]],
            "bad_words_ids": [[plain[2], plain[3]], [IDS[-1], plain[0]]],
            "forced_eos_token_id": 17,
        },
    }[name]


@pytest.mark.parametrize(
    "name",
    [
        "suppress_tokens",
        "begin_suppress_tokens",
        "bad_words_ids",
        "bad word from the prompt on",
        "forced_eos_token_id",
        "all",
    ],
)
def test_tokens_equal_transformers(folder: Path, plain: list[int], name: str) -> None:
    rules = rules_of(plain, name)
    tokens = expected(folder, rules)
    assert tokens != plain
    assert found(folder, rules) == tokens


def test_vllm_generation_config_has_no_rules(folder: Path, plain: list[int]) -> None:
    rules = {"suppress_tokens": plain[:3]}
    assert found(folder, rules, generation_config="vllm") == plain


@pytest.mark.parametrize(
    "rules", [{"suppress_tokens": ["a"]}, {"bad_words_ids": [5]}, {"bad_words_ids": [[None]]}]
)
def test_rules_that_are_no_token_ids_are_refused(folder: Path, rules: dict[str, Any]) -> None:
    (name,) = rules
    with pytest.raises(ModelError, match=f"generation_config.json: {name}: got"):
        found(folder, rules)
