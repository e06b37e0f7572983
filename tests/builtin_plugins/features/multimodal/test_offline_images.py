"""Images of offline callers: every form, names of content, limits, and errors by field."""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("PIL", reason="Pillow is not installed")

from core import LLM, SamplingParams
from core.api import InvalidRequest
from tests.builtin_plugins.models.vision.checkpoints import MODELS
from tests.builtin_plugins.models.vision.parity import FIRST, SECOND

pytestmark = pytest.mark.slow
GREEDY = SamplingParams(temperature=0, max_tokens=4, ignore_eos=True)
TEXT = "look <image> what?"


@pytest.fixture(scope="module")
def llm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LLM]:
    folder = tmp_path_factory.mktemp("llava")
    MODELS["llava"].make(folder)
    settings: dict[str, Any] = {"dtype": "float32", "max_model_len": 128}
    with LLM(str(folder), limit_mm_per_prompt={"image": 2}, **settings) as made:
        yield made


def answer(llm: LLM, image: Any, **fields: Any) -> tuple[list[int], list[int]]:
    prompt = {"prompt": TEXT, "multi_modal_data": {"image": image}, **fields}
    (output,) = llm.generate(prompt, GREEDY, use_tqdm=False)
    return list(output.prompt_token_ids or ()), list(output.outputs[0].token_ids)


def test_every_form_of_an_image_has_one_answer(llm: LLM) -> None:
    pixels = np.asarray(FIRST)
    encoded = io.BytesIO()
    FIRST.save(encoded, "PNG")
    forms = [
        [FIRST],
        encoded.getvalue(),
        pixels,
        torch.from_numpy(pixels.copy()).permute(2, 0, 1),
        pixels.astype(np.float32) / 255,
    ]
    expected = answer(llm, FIRST)
    assert expected != answer(llm, SECOND)
    assert [answer(llm, form) for form in forms] == [expected] * len(forms)


def test_ids_with_placeholders_are_expanded_like_text(llm: LLM) -> None:
    expected = answer(llm, FIRST)
    tokenizer = llm.get_tokenizer()
    assert tokenizer is not None
    ids = tokenizer.encode(TEXT, False)
    prompt = {"prompt_token_ids": ids, "multi_modal_data": {"image": FIRST}}
    (output,) = llm.generate(prompt, GREEDY, use_tqdm=False)
    found = list(output.prompt_token_ids or ()), list(output.outputs[0].token_ids)
    assert found == expected


def test_named_content_needs_no_image_the_second_time(llm: LLM) -> None:
    name = {"multi_modal_uuids": {"image": ["cat"]}}
    first = answer(llm, FIRST, **name)
    assert answer(llm, None, **name) == first
    with pytest.raises(InvalidRequest, match="uuid 'cat' of no known content"):
        answer(llm, None, cache_salt="another tenant", **name)


@pytest.mark.parametrize(
    ("image", "fields", "words"),
    [
        ([FIRST] * 3, {}, r"multi_modal_data.image: got 3 items; expected at most 2"),
        ([FIRST] * 2, {}, "^prompt: got 1 placeholders '<image>' for 2 items"),
        ("a.png", {}, r"multi_modal_data.image\[0\]"),
        (FIRST, {"mm_processor_kwargs": {"sise": 1}}, "^mm_processor_kwargs: got 'sise'"),
        (
            FIRST,
            {"mm_processor_kwargs": {"size": {"long": 3}}},
            r"^multi_modal_data.image\[0\]: got 40 x 30",
        ),
        (FIRST, {"multi_modal_data": {"audio": [1]}}, "got 'audio'; this model reads: image"),
        (FIRST, {"multi_modal_uuids": {"image": ["a", "b"]}}, "multi_modal_uuids: got 2 for 1"),
        (FIRST, {"multi_modal_data": {}}, "prompt: got 1 placeholder tokens"),
    ],
)
def test_invalid_items_are_refused_by_field(
    llm: LLM, image: Any, fields: dict[str, Any], words: str
) -> None:
    with pytest.raises(InvalidRequest, match=words):
        answer(llm, image, **fields)
    assert answer(llm, FIRST)


def test_text_without_images_needs_none(llm: LLM) -> None:
    (output,) = llm.generate("no picture", GREEDY, use_tqdm=False)
    assert len(output.outputs[0].token_ids) == 4
