"""BLIP-2, with images before its texts, equals transformers."""

from __future__ import annotations

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
from tests.builtin_plugins.models.vision.checkpoints.blip2 import PICTURE, blip2
from tests.builtin_plugins.models.vision.one_image import check, check_twice, generate, start
from tests.builtin_plugins.models.vision.parity import (
    FIRST,
    LOGPROB_TOLERANCE,
    NUM_TOKENS,
    SECOND,
    THIRD,
)

pytestmark = pytest.mark.slow
SETTINGS: Final = {"max_num_batched_tokens": 16}
CASES: Final = (
    ("what is it?", FIRST),
    ("what is it?", SECOND),
    ("a longer question about a picture, answer:", THIRD),
    ("no picture at all here", None),
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("blip2")
    blip2(folder)
    return folder


@pytest.fixture(scope="module")
def llm(folder: Path) -> Iterator[LLM]:
    with start(folder, **SETTINGS) as made:
        yield made


class Reference:
    """The checkpoint in transformers."""

    def __init__(self, folder: Path) -> None:
        with quiet():
            self._tokenizer = transformers.PreTrainedTokenizerFast.from_pretrained(folder)
            self._images = transformers.BlipImageProcessorPil.from_pretrained(folder)
            model: Any = transformers.Blip2ForConditionalGeneration
            self._model = model.from_pretrained(folder, dtype=torch.float32).eval()

    @torch.no_grad()
    def check(self, output: Any, text: str, image: Any, num_tokens: int) -> None:
        """Raise `AssertionError` unless the output is transformers' own."""
        assert len(output.outputs[0].token_ids) == num_tokens
        ids = self._tokenizer(text)["input_ids"]
        pixels: dict[str, Any] = {}
        if image is not None:
            ids = [self._model.config.image_token_id] * self._model.config.num_query_tokens + ids
            pixels = dict(self._images(images=[image], return_tensors="pt"))
        model = self._model if pixels else self._model.language_model
        assert list(output.prompt_token_ids) == ids
        answer = output.outputs[0]
        for token, step in zip(answer.token_ids, answer.logprobs, strict=True):
            logits = model(input_ids=torch.tensor([ids]), **pixels).logits[0, -1]
            assert token == int(logits.argmax())
            known = float(logits.log_softmax(-1)[token])
            np.testing.assert_allclose(step[token].logprob, known, atol=LOGPROB_TOLERANCE, rtol=0)
            ids = [*ids, token]


@pytest.fixture(scope="module")
def reference(folder: Path) -> Reference:
    return Reference(folder)


def test_questions_of_one_batch_equal_transformers(llm: LLM, reference: Reference) -> None:
    check_twice(llm, reference, CASES)


def test_placeholder_before_the_text_may_be_written(llm: LLM, reference: Reference) -> None:
    (output,) = generate(llm, [(f"{PICTURE}what is it?", FIRST)])
    reference.check(output, "what is it?", FIRST, NUM_TOKENS)


@pytest.mark.parametrize(
    ("text", "images"), [("what {PICTURE}?", FIRST), ("compare", [FIRST, SECOND])]
)
def test_images_elsewhere_are_refused(llm: LLM, text: str, images: Any) -> None:
    with pytest.raises(InvalidRequest, match="expected one image, before the text"):
        generate(llm, [(text.format(PICTURE=PICTURE), images)])
    generate(llm, CASES[:1])


@pytest.mark.parametrize("settings", [{"async_scheduling": True}, {"tensor_parallel_size": 2}])
def test_other_settings_equal_transformers(
    folder: Path, reference: Reference, settings: dict[str, Any]
) -> None:
    with start(folder, **SETTINGS, **settings) as llm:
        check(llm, reference, CASES)
