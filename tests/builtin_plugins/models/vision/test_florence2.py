"""Florence-2, with an encoder that reads images, equals transformers."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest
import torch
import transformers

pytest.importorskip("PIL", reason="Pillow is not installed")

from builtin_plugins.models.generic.loading import quiet
from core import LLM
from core.api import InvalidRequest
from tests.builtin_plugins.models.vision.checkpoints.florence2 import PICTURE, florence2
from tests.builtin_plugins.models.vision.one_image import check, check_twice, generate, start
from tests.builtin_plugins.models.vision.parity import (
    FIRST,
    LOGPROB_TOLERANCE,
    NUM_TOKENS,
    SECOND,
    THIRD,
)

pytestmark = pytest.mark.slow
CASES: Final = (
    ("<CAPTION>", FIRST),
    ("<OD>", SECOND),
    ("<REGION_TO_OCR><loc_1>", THIRD),
    ("<CAPTION>", SECOND),
    ("no picture at all here", None),
)
"""Tasks, with an image or without one."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("florence2")
    florence2(folder)
    return folder


@pytest.fixture(scope="module")
def llm(folder: Path) -> Iterator[LLM]:
    with start(folder) as made:
        yield made


class Reference:
    """The checkpoint in transformers."""

    def __init__(self, folder: Path) -> None:
        with quiet():
            self._processor = transformers.AutoProcessor.from_pretrained(folder, backend="pil")
            self._model: Any = transformers.Florence2ForConditionalGeneration.from_pretrained(
                folder, dtype=torch.float32
            ).eval()

    def check(self, output: Any, task: str, image: Any, num_tokens: int) -> None:
        """Raise `AssertionError` unless the output is transformers' own."""
        if image is None:
            inputs = self._processor.tokenizer(task, return_tensors="pt")
        else:
            inputs = self._processor(text=task, images=image, return_tensors="pt")
        with torch.no_grad(), warnings.catch_warnings(action="ignore"):
            out = self._model.generate(
                **inputs,
                max_new_tokens=num_tokens,
                do_sample=False,
                num_beams=1,
                eos_token_id=None,
                output_logits=True,
                return_dict_in_generate=True,
            )
        assert output.encoder_prompt_token_ids == inputs["input_ids"][0].tolist()
        token_ids = out.sequences[0, 1:].tolist()
        answer = output.outputs[0]
        assert list(answer.token_ids) == token_ids
        found = [
            step[token].logprob for step, token in zip(answer.logprobs, token_ids, strict=True)
        ]
        known = [
            float(logits[0].log_softmax(-1)[token])
            for logits, token in zip(out.logits, token_ids, strict=True)
        ]
        np.testing.assert_allclose(found, known, atol=LOGPROB_TOLERANCE, rtol=0)


@pytest.fixture(scope="module")
def reference(folder: Path) -> Reference:
    return Reference(folder)


def test_tasks_of_one_batch_equal_transformers(llm: LLM, reference: Reference) -> None:
    check_twice(llm, reference, CASES)


def test_prompt_with_a_placeholder_equals_its_task(llm: LLM, reference: Reference) -> None:
    whole = f"{PICTURE}<s>What does the image describe?</s>"
    (output,) = generate(llm, [(whole, FIRST)])
    reference.check(output, "<CAPTION>", FIRST, NUM_TOKENS)


def test_task_with_other_text_is_refused(llm: LLM) -> None:
    with pytest.raises(InvalidRequest, match="should be the only content"):
        generate(llm, [("<CAPTION> of a cat", FIRST)])
    with pytest.raises(InvalidRequest, match="placeholder"):
        generate(llm, [("<CAPTION>", [FIRST, SECOND])])
    generate(llm, [("<CAPTION>", FIRST)])


def test_preempted_requests_equal_transformers(folder: Path, reference: Reference) -> None:
    for blocks in (60, 50, 40):
        with start(folder, num_gpu_blocks_override=blocks, max_num_seqs=8) as llm:
            check(llm, reference, CASES[:2] * 4, num_tokens=40)
            if llm.core.scheduler.num_preemptions:
                return
    pytest.fail("no number of blocks preempts a request")


@pytest.mark.parametrize(
    "settings",
    [
        {"async_scheduling": True},
        {"mm_encoder_cache_tokens": 1, "mm_encoder_step_tokens": 1},
        {"attention_backend": "reference"},
        {"tensor_parallel_size": 2},
    ],
    ids=["two steps in flight", "an encoder cache of one item", "reference attention", "two ranks"],
)
def test_other_settings_equal_transformers(
    folder: Path, reference: Reference, settings: dict[str, Any]
) -> None:
    with start(folder, **settings) as llm:
        check(llm, reference, CASES)
