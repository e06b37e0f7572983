"""The page's model with a tower of its own passes the suites and answers as its parts compute."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

pytest.importorskip("PIL", reason="Pillow is not installed")

from PIL import Image

from core import LLM, SamplingParams
from core.testing.conformance import check_plugin
from tests.builtin_plugins.models.vision.checkpoints.common import TEXT, edit, save, tokenizer

EXAMPLE = Path(__file__).parents[4] / "examples" / "docs" / "colours"
PLUGIN = "colours.plugin"
NUM_TOKENS = 6


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The two files of the page, importable here and in child processes."""
    folder = Path(shutil.copytree(EXAMPLE, tmp_path / "site" / "colours"))
    (folder / "__init__.py").touch()
    site = str(folder.parent)
    monkeypatch.syspath_prepend(site)
    monkeypatch.setenv("PYTHONPATH", site + os.pathsep + os.environ.get("PYTHONPATH", ""))
    yield
    for name in [name for name in sys.modules if name.partition(".")[0] == "colours"]:
        del sys.modules[name]


def make_checkpoint(folder: Path) -> Any:
    """Write the page's model with random weights; return its decoder and projection."""
    own = tokenizer(["<|endoftext|>", "<image>"])
    own.save_pretrained(folder)
    text: Any = transformers.LlamaForCausalLM(transformers.LlamaConfig(**TEXT))
    save(text, folder)
    projection = torch.randn(TEXT["hidden_size"], 3, generator=torch.Generator().manual_seed(5))
    edit(folder, lambda tensors: tensors.update({"vision.project.weight": projection}))
    file = folder / "config.json"
    changes = {
        "architectures": ["ColoursForCausalLM"],
        "image_token_id": own.convert_tokens_to_ids("<image>"),
    }
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))
    return text, projection


def expected(text: Any, projection: torch.Tensor, ids: list[int], image: Image.Image) -> list[int]:
    """Return the greedy tokens of the decoder for a prompt with one image."""
    pixels = np.asarray(image, dtype=np.float32) / 255
    top, left = (size // 2 for size in pixels.shape[:2])
    parts = [pixels[:top, :left], pixels[:top, left : 2 * left]]
    parts += [pixels[top : 2 * top, :left], pixels[top : 2 * top, left : 2 * left]]
    colours = torch.tensor(np.stack([part.mean(axis=(0, 1)) for part in parts]))
    tokens = torch.tensor(ids)
    embeddings = text.get_input_embeddings()(tokens).detach().clone()
    embeddings[tokens == 257] = colours @ projection.T
    with torch.no_grad():
        out = text.generate(
            inputs_embeds=embeddings[None],
            max_new_tokens=NUM_TOKENS,
            do_sample=False,
            eos_token_id=None,
            pad_token_id=0,
        )
    return [int(token) for token in out[0]]


@pytest.mark.usefixtures("package")
def test_page_passes_the_suites() -> None:
    results = list(check_plugin(PLUGIN))
    assert [(each.check, each.error) for each in results if not each.passed] == []
    assert "tower encodes its example" in {each.check for each in results}


@pytest.mark.usefixtures("package")
def test_page_is_served_with_images(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    text, projection = make_checkpoint(folder)
    images = [Image.new("RGB", (20, 10), colour) for colour in ("red", "blue")]
    prompts: Any = [
        {"prompt": "look <image> what?", "multi_modal_data": {"image": image}} for image in images
    ]
    greedy = SamplingParams(temperature=0, max_tokens=NUM_TOKENS, ignore_eos=True)
    settings: dict[str, Any] = {"dtype": "float32", "max_model_len": 64, "plugins": [PLUGIN]}
    with LLM(str(folder), **settings) as llm:
        outputs = llm.generate(prompts, greedy, use_tqdm=False)
    for image, output in zip(images, outputs, strict=True):
        ids = list(output.prompt_token_ids or ())
        assert ids.count(257) == 4
        assert list(output.outputs[0].token_ids) == expected(text, projection, ids, image)
    assert outputs[0].outputs[0].token_ids != outputs[1].outputs[0].token_ids
