"""Images of offline callers: every form, names of content, limits, and errors by field."""

from __future__ import annotations

import base64
import inspect
import io
import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import transformers

pytest.importorskip("PIL", reason="Pillow is not installed")

from builtin_plugins.input_processors.transformers.loading import load_processor
from builtin_plugins.models.generic.loading import quiet
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


def conversation(*parts: Any) -> list[dict[str, Any]]:
    return [{"role": "user", "content": [*parts, {"type": "text", "text": "what?"}]}]


def chat(llm: LLM, *parts: Any, **options: Any) -> tuple[list[int], list[int]]:
    (output,) = llm.chat(conversation(*parts), GREEDY, use_tqdm=False, **options)
    return list(output.prompt_token_ids or ()), list(output.outputs[0].token_ids)


def test_chat_takes_images_of_pillow_and_urls(llm: LLM) -> None:
    file = io.BytesIO()
    FIRST.save(file, "PNG")
    url = f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"
    pil = {"type": "image_pil", "image_pil": FIRST}
    expected = chat(llm, pil)
    assert expected != chat(llm, {"type": "image_pil", "image_pil": SECOND})
    assert chat(llm, {"type": "image_url", "image_url": {"url": url}}) == expected
    assert chat(llm, pil, chat_template_content_format="openai") == expected
    (prompt,) = llm.preprocess_chat(conversation(pil))
    (output,) = llm.generate(prompt, GREEDY, use_tqdm=False)
    assert list(output.outputs[0].token_ids) == expected[1]
    both = chat(llm, pil, {"type": "image_pil", "image_pil": SECOND})
    assert len(both[0]) > len(expected[0])


@pytest.mark.parametrize(
    ("part", "options", "words"),
    [
        ({"type": "image_pil", "image_pil": "a.png"}, {}, r"^messages\[0\].content\[0\].image_pil"),
        (
            {"type": "image_url", "image_url": {"url": "http://127.0.0.1/a.png"}},
            {},
            r"^messages\[0\].content\[0\].image_url: .*allowed-media-domains",
        ),
        (
            {"type": "image_pil", "image_pil": FIRST},
            {"chat_template_content_format": "string"},
            "^chat_template_content_format: got string for messages with images",
        ),
        (
            {"type": "image_pil", "image_pil": FIRST},
            {"mm_processor_kwargs": {"size": FIRST}},
            "^mm_processor_kwargs: got Object of type Image",
        ),
        (
            {"type": "image_embeds", "image_embeds": "AAAA"},
            {},
            r"content\[0\].image_embeds: got embeddings; .*--enable-mm-embeds",
        ),
    ],
)
def test_invalid_parts_of_chats_are_refused_by_field(
    llm: LLM, part: Any, options: dict[str, Any], words: str
) -> None:
    with pytest.raises(InvalidRequest, match=words):
        chat(llm, part, **options)


@pytest.mark.parametrize("name", ["llava", "qwen3_vl", "gemma3"])
def test_embeddings_of_a_tower_give_the_answer_of_its_image(name: str, tmp_path: Path) -> None:
    model = MODELS[name]
    model.make(tmp_path)
    text = f"look {model.image} what?"
    settings: dict[str, Any] = {"dtype": "float32", "max_model_len": 256}
    with LLM(str(tmp_path), enable_mm_embeds=True, **settings) as llm:

        def run(image: Any) -> tuple[list[int], list[int]]:
            prompt = {"prompt": text, "multi_modal_data": {"image": image}}
            (output,) = llm.generate(prompt, GREEDY, use_tqdm=False)
            return list(output.prompt_token_ids or ()), list(output.outputs[0].token_ids)

        expected = run(FIRST)
        given = embeddings_of(tmp_path)
        assert run(given) == expected
        width = given["image_embeds"].shape[-1]
        if "image_grid_thw" in given:
            with pytest.raises(InvalidRequest, match=r"data.image\[0\]: got embeddings with no"):
                run(given["image_embeds"])
            wrong = {**given, "image_grid_thw": torch.tensor([[1, 2, 2]])}
            with pytest.raises(InvalidRequest, match=r"got image_grid_thw \[1, 2, 2\] for"):
                run(wrong)
        else:
            assert run(given["image_embeds"]) == expected
            assert run(given["image_embeds"].numpy()) == expected
        bad = {**given, "image_embeds": given["image_embeds"][:, :-1]}
        with pytest.raises(InvalidRequest, match=rf"expected floats of shape \[tokens, {width}\]"):
            run(bad)
        bad = {**given, "image_embeds": given["image_embeds"] * float("nan")}
        with pytest.raises(InvalidRequest, match="not finite"):
            run(bad)
        assert run(FIRST) == expected


def embeddings_of(folder: Path) -> dict[str, torch.Tensor]:
    """Return the embeddings of the first image by transformers, and its grid if it has one."""
    config = json.loads((folder / "config.json").read_text())
    source: Any = SimpleNamespace(path=str(folder), hf_config=SimpleNamespace(**config))
    with quiet():
        processor = load_processor(source)
        model_class = getattr(transformers, config["architectures"][0])
        model = model_class.from_pretrained(folder, dtype=torch.float32).eval()
    inputs = dict(processor.image_processor([FIRST], return_tensors="pt"))
    known = inspect.signature(model.model.get_image_features).parameters
    given = {key: value for key, value in inputs.items() if key in known or key == "pixel_values"}
    with torch.no_grad():
        out = model.model.get_image_features(**given, return_dict=True)
    levels = [out.pooler_output, *(getattr(out, "deepstack_features", None) or ())]
    found = {"image_embeds": torch.cat([rows_of(level) for level in levels], -1)}
    return found | {key: inputs[key] for key in ("image_grid_thw",) if key in inputs}


def rows_of(features: Any) -> torch.Tensor:
    """Return features [rows, hidden] of one image."""
    parts = [features] if isinstance(features, torch.Tensor) else list(features)
    return torch.cat([part.reshape(-1, part.shape[-1]) for part in parts])
