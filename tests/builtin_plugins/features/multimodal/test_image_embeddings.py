"""Embeddings of prompts with images: the pooled hidden states of transformers."""

from __future__ import annotations

import base64
import io
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import transformers

pytest.importorskip("PIL", reason="Pillow is not installed")

from builtin_plugins.input_processors.transformers.loading import load_processor
from builtin_plugins.models.generic.loading import quiet
from builtin_plugins.routes.embeddings.routes import PoolingRoutes
from builtin_plugins.servers.http.server import HttpServer
from core import LLM, AsyncLLM
from tests.builtin_plugins.models.vision.checkpoints import MODELS
from tests.builtin_plugins.models.vision.parity import FIRST, SECOND
from tests.in_process import send_to

pytestmark = pytest.mark.slow
SETTINGS: dict[str, Any] = {"dtype": "float32", "max_model_len": 256, "runner": "pooling"}


def pooled(folder: Path, text: str, image: Any) -> torch.Tensor:
    """Return the normalized hidden state of the last token by transformers."""
    config = json.loads((folder / "config.json").read_text())
    source: Any = SimpleNamespace(path=str(folder), hf_config=SimpleNamespace(**config))
    with quiet():
        processor = load_processor(source)
        model_class = getattr(transformers, config["architectures"][0])
        model = model_class.from_pretrained(folder, dtype=torch.float32).eval()
    inputs = processor(text=[text], images=[image], return_tensors="pt")
    with torch.no_grad():
        hidden = model.model(**inputs).last_hidden_state[0, -1]
    return hidden / hidden.norm()


@pytest.mark.parametrize("name", ["gemma3", "qwen3_vl"])
def test_embeddings_of_images_equal_transformers(name: str, tmp_path: Path) -> None:
    MODELS[name].make(tmp_path)
    text = f"look {MODELS[name].image} what?"
    prompts: Any = [
        {"prompt": text, "multi_modal_data": {"image": image}} for image in (FIRST, SECOND)
    ]
    with LLM(str(tmp_path), **SETTINGS) as llm:
        outputs = llm.embed(prompts, use_tqdm=False)
    for image, output in zip((FIRST, SECOND), outputs, strict=True):
        found = torch.tensor(output.outputs.embedding)
        torch.testing.assert_close(found, pooled(tmp_path, text, image), atol=1e-4, rtol=0)


def test_messages_with_images_have_embeddings_over_http(tmp_path: Path) -> None:
    MODELS["qwen3_vl"].make(tmp_path)
    file = io.BytesIO()
    FIRST.save(file, "PNG")
    url = f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"
    content = [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": "what?"}]
    engine = AsyncLLM(str(tmp_path), disable_frontend_multiprocessing=True, **SETTINGS)
    try:
        app = HttpServer(engine, engine.config, [PoolingRoutes(engine, engine.config)]).app
        body = {"model": "", "messages": [{"role": "user", "content": content}]}
        answer = send_to(app, "POST", "/v1/embeddings", json=body)
        assert answer.status_code == 200, answer.text
        (found,) = answer.json()["data"]
        text = f"<|im_start|>user\n{MODELS['qwen3_vl'].image}what?<|im_end|>\n"
        expected = pooled(tmp_path, text, FIRST)
        torch.testing.assert_close(torch.tensor(found["embedding"]), expected, atol=1e-4, rtol=0)
        assert answer.json()["usage"]["prompt_tokens"] > len("what?")
    finally:
        engine.shutdown()
