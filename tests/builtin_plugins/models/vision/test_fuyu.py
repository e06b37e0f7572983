"""Fuyu, with an image before its text, equals transformers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest
import torch
import transformers

pytest.importorskip("PIL", reason="Pillow is not installed")

from builtin_plugins.input_processors.transformers.fuyu_images import FuyuImageProcessorPil
from builtin_plugins.models.generic.loading import quiet
from core import LLM, SamplingParams
from core.api import InvalidRequest
from core.cli.main import main
from tests.builtin_plugins.models.vision.checkpoints.fuyu import PICTURE, PIECES, fuyu
from tests.builtin_plugins.models.vision.one_image import check, check_twice, generate, start
from tests.builtin_plugins.models.vision.parity import (
    FIRST,
    LOGPROB_TOLERANCE,
    LONG_TOKENS,
    NUM_TOKENS,
    SECOND,
    THIRD,
    picture,
)

pytestmark = pytest.mark.slow
SETTINGS: Final = {"max_num_batched_tokens": 40}
CASES: Final = (
    ("what is it?", FIRST),
    ("what is it?", SECOND),
    ("a longer question about a picture, answer:", THIRD),
    ("no picture at all here", None),
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("fuyu")
    fuyu(folder)
    return folder


@pytest.fixture(scope="module")
def llm(folder: Path) -> Iterator[LLM]:
    with start(folder, **SETTINGS) as made:
        yield made


class Reference:
    """The checkpoint in transformers."""

    def __init__(self, folder: Path) -> None:
        with quiet():
            tokenizer = transformers.PreTrainedTokenizerFast.from_pretrained(folder)
            images: Any = FuyuImageProcessorPil.from_pretrained(folder)
            self._processor: Any = transformers.FuyuProcessor(images, tokenizer)
            model: Any = transformers.FuyuForCausalLM
            self._model = model.from_pretrained(folder, dtype=torch.float32).eval()

    @torch.no_grad()
    def check(self, output: Any, text: str, image: Any, num_tokens: int) -> None:
        """Raise `AssertionError` unless the output is transformers' own."""
        answer = output.outputs[0]
        assert len(answer.token_ids) == num_tokens
        options = {} if image is None else {"return_legacy_image_output": False}
        inputs = self._processor(images=image, text=text, return_tensors="pt", **options)
        ids = torch.as_tensor(inputs["input_ids"]).reshape(1, -1)
        assert list(output.prompt_token_ids) == ids[0].tolist()
        pixels = {} if image is None else {"pixel_values": inputs["pixel_values"]}
        whole = torch.cat([ids, torch.tensor([list(answer.token_ids)])], dim=1)
        logits = self._model(input_ids=whole, **pixels).logits[0, ids.shape[1] - 1 : -1]
        assert logits.argmax(-1).tolist() == list(answer.token_ids)
        logprobs = logits.log_softmax(-1)
        for row, token, step in zip(logprobs, answer.token_ids, answer.logprobs, strict=True):
            np.testing.assert_allclose(
                step[token].logprob, float(row[token]), atol=LOGPROB_TOLERANCE, rtol=0
            )


@pytest.fixture(scope="module")
def reference(folder: Path) -> Reference:
    return Reference(folder)


def test_questions_of_one_batch_equal_transformers(llm: LLM, reference: Reference) -> None:
    check_twice(llm, reference, CASES)


def test_a_prefix_is_shared_with_the_same_image_only(llm: LLM, reference: Reference) -> None:
    check(llm, reference, [("what is that?", FIRST)])
    (same,) = generate(llm, [("what is this?", FIRST)])
    reference.check(same, "what is this?", FIRST, NUM_TOKENS)
    unseen = picture(4, 30, 50)
    (other,) = generate(llm, [("what is this?", unseen)])
    reference.check(other, "what is this?", unseen, NUM_TOKENS)
    assert same.num_cached_tokens > 0
    assert not other.num_cached_tokens


def test_prompt_of_tokens_has_the_image_at_its_placeholder(llm: LLM) -> None:
    text, image = CASES[0]
    (whole,) = generate(llm, [(text, image)])
    ids = list(whole.prompt_token_ids or ())
    begin = ids.index(PIECES.index("<s>")) + 1
    prompt: Any = {
        "prompt_token_ids": [ids[0], *ids[begin:]],
        "multi_modal_data": {"image": image},
    }
    (output,) = llm.generate([prompt], SamplingParams(max_tokens=1), use_tqdm=False)
    assert list(output.prompt_token_ids or ()) == ids


def test_memory_plan_counts_the_tower(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", str(folder), "--max-model-len", "128", "--json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert plan["weight_bytes"] == pytest.approx([plan["checkpoint_bytes"]], rel=0.01)


@pytest.mark.parametrize(
    ("text", "images"),
    [(f"what {PICTURE}?", FIRST), ("compare", [FIRST, SECOND]), ("a <0x04> in it", FIRST)],
)
def test_other_prompts_are_refused(llm: LLM, text: str, images: Any) -> None:
    with pytest.raises(InvalidRequest, match=r"expected (one image, before the )?text"):
        generate(llm, [(text, images)])
    generate(llm, CASES[:1])


@pytest.mark.parametrize(
    "settings",
    [
        {"async_scheduling": True},
        {"tensor_parallel_size": 2},
        {"num_gpu_blocks_override": 20, "enable_prefix_caching": False},
    ],
    ids=str,
)
def test_other_settings_equal_transformers(
    folder: Path, reference: Reference, settings: dict[str, Any]
) -> None:
    with start(folder, **SETTINGS, **settings) as llm:
        check(llm, reference, CASES, LONG_TOKENS)
