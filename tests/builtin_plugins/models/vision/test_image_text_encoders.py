"""CLIP and SigLIP embed texts and images as transformers does."""

from __future__ import annotations

import base64
import io
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import httpx
import pytest
import torch
import transformers
from tokenizers.processors import TemplateProcessing

pytest.importorskip("PIL", reason="Pillow is not installed")

from builtin_plugins.models.generic.loading import quiet
from core import LLM
from core.api import ConfigError, InvalidRequest
from tests.builtin_plugins.models.vision.checkpoints.common import (
    SIGLIP,
    VOCAB,
    save,
    tokenizer,
)
from tests.builtin_plugins.models.vision.parity import FIRST, SECOND, THIRD
from tests.served import served as serve
from tests.timeouts import TIMEOUT_S

TEXTS: Final = ("a photo of a cat", "two", "a photo of a dog", "no picture at all here")
"""Two have equal lengths."""
IMAGES: Final = (FIRST, SECOND, THIRD)
END: Final = "<|endoftext|>"
TEXT_CONFIG: Final = {
    "vocab_size": VOCAB,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 48,
}


def _save(folder: Path, model: Any, image_processor: Any) -> None:
    own = tokenizer([END, "<|startoftext|>"])
    end = (END, own.convert_tokens_to_ids(END))
    own.backend_tokenizer.post_processor = TemplateProcessing(
        single=f"$A {END}", special_tokens=[end]
    )
    own.save_pretrained(folder)
    image_processor.save_pretrained(folder)
    model.generation_config = transformers.GenerationConfig()
    save(model, folder)


def clip(folder: Path) -> None:
    """CLIP: projections of both encoders; a text is read at its end token."""
    end = tokenizer([END]).convert_tokens_to_ids(END)
    vision = {**SIGLIP, "model_type": "clip_vision_model", "image_size": 28, "patch_size": 7}
    vision.pop("vision_use_head")
    config = transformers.CLIPConfig(
        text_config={**TEXT_CONFIG, "eos_token_id": end, "bos_token_id": end + 1},
        vision_config=vision,
        projection_dim=24,
    )
    size = {"height": 28, "width": 28}
    image_processor = transformers.CLIPImageProcessorPil(size={"shortest_edge": 28}, crop_size=size)
    _save(folder, transformers.CLIPModel(config), image_processor)


def siglip(folder: Path) -> None:
    """SigLIP: texts are padded; the image's pooling head is part of its encoder."""
    config = transformers.SiglipConfig(
        text_config={**TEXT_CONFIG, "projection_size": 32},
        vision_config={**SIGLIP, "vision_use_head": True},
    )
    image_processor = transformers.SiglipImageProcessorPil(size={"height": 16, "width": 16})
    _save(folder, transformers.SiglipModel(config), image_processor)


def siglip2(folder: Path) -> None:
    """SigLIP 2 for images of any shape."""
    vision = {**SIGLIP, "model_type": "siglip2_vision_model", "num_patches": 16}
    vision.pop("image_size")
    config = transformers.Siglip2Config(
        text_config={**TEXT_CONFIG, "projection_size": 32},
        vision_config={**vision, "vision_use_head": True},
    )
    image_processor = transformers.Siglip2ImageProcessorPil(patch_size=4, max_num_patches=16)
    _save(folder, transformers.Siglip2Model(config), image_processor)


MODELS: Final = {"clip": clip, "siglip": siglip, "siglip2": siglip2}


class Served:
    """A checkpoint and its engine."""

    def __init__(self, make: Callable[[Path], None], folder: Path) -> None:
        make(folder)
        self.folder = folder
        self.llm = LLM(str(folder), dtype="float32")

    def expected(self) -> torch.Tensor:
        """Return the embeddings of transformers: those of the texts, then those of the images."""
        with quiet():
            model: Any = transformers.AutoModel.from_pretrained(self.folder, dtype=torch.float32)
            own = transformers.PreTrainedTokenizerFast.from_pretrained(self.folder)
            auto: Any = transformers.AutoImageProcessor
            processor = auto.from_pretrained(self.folder, backend="pil")
        is_padded = type(model) is not transformers.CLIPModel
        found = []
        for text in TEXTS:
            ids = own(text, return_tensors="pt")["input_ids"]
            if is_padded:
                missing = model.config.text_config.max_position_embeddings - ids.shape[1]
                padding = model.config.text_config.pad_token_id
                ids = torch.nn.functional.pad(ids, (0, missing), value=padding)
            found.append(model.eval().get_text_features(ids).pooler_output)
        for image in IMAGES:
            inputs = processor(images=[image], return_tensors="pt")
            found.append(model.get_image_features(**inputs).pooler_output)
        return torch.nn.functional.normalize(torch.cat(found), dim=-1)


def picture(image: Any, **more: Any) -> Any:
    return {"multi_modal_data": {"image": image}, **more}


@pytest.fixture(
    scope="module",
    params=[
        "clip",
        pytest.param("siglip", marks=pytest.mark.slow),
        pytest.param("siglip2", marks=pytest.mark.slow),
    ],
)
def served(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Served]:
    made = Served(MODELS[request.param], tmp_path_factory.mktemp(request.param))
    with made.llm:
        yield made


@torch.inference_mode()
def test_texts_and_images_of_one_batch_equal_transformers(served: Served) -> None:
    prompts = [*TEXTS, *map(picture, IMAGES)]
    outputs = served.llm.embed(prompts, use_tqdm=False)
    found = torch.tensor([output.outputs.embedding for output in outputs])
    torch.testing.assert_close(found, served.expected(), atol=1e-4, rtol=0)
    assert len({tuple(row) for row in found.round(decimals=3).tolist()}) == len(prompts)


def test_empty_text_next_to_an_image_is_no_text(served: Served) -> None:
    first, second = served.llm.embed([picture(FIRST), picture(FIRST, prompt="")], use_tqdm=False)
    assert first.outputs.embedding == second.outputs.embedding


@pytest.mark.parametrize(
    ("prompt", "words"),
    [
        (picture(FIRST, prompt="a cat"), "got 1 items and a text; expected one item and no text"),
        (picture([FIRST, SECOND]), "got 2 items; expected one item"),
        ({"prompt_token_ids": [5, VOCAB]}, "got 1 placeholder tokens of 'image'"),
    ],
)
def test_other_prompts_are_refused(served: Served, prompt: Any, words: str) -> None:
    with pytest.raises(InvalidRequest, match=words):
        served.llm.embed([prompt], use_tqdm=False)
    assert served.llm.embed(["a cat"], use_tqdm=False)


@pytest.mark.slow
@torch.inference_mode()
def test_image_of_a_message_equals_transformers(served: Served) -> None:
    file = io.BytesIO()
    FIRST.save(file, "PNG")
    url = "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()
    image = {"type": "image_url", "image_url": {"url": url}}

    def body(*parts: Any) -> dict[str, Any]:
        return {"messages": [{"role": "user", "content": list(parts)}]}

    with serve(str(served.folder), "--dtype", "float32") as client:
        url = f"{client.base_url}embeddings"
        answer = httpx.post(url, json=body(image), timeout=TIMEOUT_S)
        assert answer.status_code == 200, answer.text
        assert answer.json()["usage"]["prompt_tokens"] == 1
        found = torch.tensor(answer.json()["data"][0]["embedding"])
        truth = served.expected()[len(TEXTS)]
        torch.testing.assert_close(found, truth, atol=1e-3, rtol=0)
        text = {"type": "text", "text": "a cat"}
        refused = httpx.post(url, json=body(image, text), timeout=TIMEOUT_S)
        assert refused.status_code == 400
        assert "expected one item and no text" in refused.text


@pytest.mark.slow
def test_two_ranks_are_refused(served: Served) -> None:
    with pytest.raises(ConfigError, match="Remove --tensor-parallel-size"):
        LLM(str(served.folder), dtype="float32", tensor_parallel_size=2)
