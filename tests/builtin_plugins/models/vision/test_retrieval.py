"""Models that embed pages and queries for late interaction equal transformers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
import torch
import transformers

pytest.importorskip("PIL", reason="Pillow is not installed")

from builtin_plugins.models.generic.loading import quiet
from core import LLM
from tests.builtin_plugins.models.vision.checkpoints.common import save, save_parts
from tests.builtin_plugins.models.vision.checkpoints.qwen_vl import (
    QWEN,
    QWEN2_VISION,
    image_processor,
    qwen_config,
    rope,
)
from tests.builtin_plugins.models.vision.parity import FIRST, SECOND

pytestmark = pytest.mark.slow
PAGE: Final = f"<|im_start|>user\n{QWEN}Describe the image.<|im_end|><|endoftext|>"
QUERY: Final = "Query: what is it?" + 10 * "<|endoftext|>" + "\n"
WIDTH: Final = 24


def make(folder: Path) -> None:
    """Write a tiny random ColQwen2."""
    own, inner = qwen_config(transformers.Qwen2VLConfig, QWEN2_VISION, rope())
    config = transformers.ColQwen2Config(vlm_config=inner.to_dict(), embedding_dim=WIDTH)
    model = transformers.ColQwen2ForRetrieval(config)
    model.generation_config = transformers.GenerationConfig()
    save(model, folder)
    save_parts(folder, image_processor(), own, QWEN, processor_class="ColQwen2Processor")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("colqwen2")
    make(folder)
    return folder


@pytest.fixture(scope="module")
def llm(folder: Path) -> Iterator[LLM]:
    with LLM(
        str(folder), dtype="float32", max_model_len=256, max_num_batched_tokens=40
    ) as made:  # chunks cut through images
        yield made


def expected(folder: Path, image: Any = None) -> torch.Tensor:
    """Return the vectors of transformers for a page, or for the query."""
    with quiet():
        processor: Any = transformers.ColQwen2Processor(
            image_processor=transformers.Qwen2VLImageProcessorPil.from_pretrained(folder),
            tokenizer=transformers.AutoTokenizer.from_pretrained(folder),
        )
        model: Any = transformers.ColQwen2ForRetrieval.from_pretrained(folder, dtype=torch.float32)
    if image is None:
        inputs = processor.tokenizer([QUERY], return_tensors="pt")
    else:
        inputs = processor(images=[image], return_tensors="pt")
    with torch.no_grad():
        found: torch.Tensor = model.eval()(**inputs).embeddings[0]
    return found


def test_pages_and_queries_of_one_batch_equal_transformers(folder: Path, llm: LLM) -> None:
    pages = [{"prompt": PAGE, "multi_modal_data": {"image": each}} for each in (FIRST, SECOND)]
    outputs = llm.encode([*pages, QUERY], pooling_task="token_embed", use_tqdm=False)
    for output, image in zip(outputs, (FIRST, SECOND, None), strict=True):
        truth = expected(folder, image)
        assert output.outputs.data.shape == truth.shape == (len(truth), WIDTH)
        torch.testing.assert_close(output.outputs.data.float(), truth, atol=1e-4, rtol=0)
