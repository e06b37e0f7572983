"""Rerankers that read images score pairs as transformers does, offline and over HTTP."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import httpx
import pytest
import torch
import transformers

pytest.importorskip("PIL", reason="Pillow is not installed")

from builtin_plugins.models.generic.loading import quiet
from core import LLM
from tests.builtin_plugins.models.vision.checkpoints.common import edit
from tests.builtin_plugins.models.vision.checkpoints.qwen_vl import (
    QWEN,
    image_processor,
    qwen2_vl,
    qwen3_vl,
)
from tests.builtin_plugins.models.vision.parity import FIRST, SECOND
from tests.served import served
from tests.timeouts import TIMEOUT_S

ANSWERS: Final = ("n", "y")
SETTINGS: Final[dict[str, Any]] = {
    "dtype": "float32",
    "max_model_len": 512,
    "max_num_batched_tokens": 256,
    "chat_template": "qwen3_vl_reranker",
    "hf_overrides": {
        "architectures": ["Qwen3VLForSequenceClassification"],
        "classifier_from_token": list(ANSWERS),
    },
}
PROMPT: Final = (
    "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and "
    'the Instruct provided. Note that the answer can only be "yes" or "no".<|im_end|>\n'
    "<|im_start|>user\n<Instruct>: Given a search query, retrieve relevant candidates that answer "
    "the query.<Query>:{query}\n<Document>:{document}<|im_end|>\n<|im_start|>assistant\n"
)
QUERY: Final = "a red house"
HEAD: Final = torch.randn(1, 64, generator=torch.Generator().manual_seed(3))


def url_of(image: Any) -> str:
    """Return a data URL."""
    file = io.BytesIO()
    image.save(file, "PNG")
    return "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()


def part(image: Any) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": url_of(image)}}


PICTURE: Final = {"content": [part(FIRST)]}
PAGE: Final = {"content": [part(SECOND), {"type": "text", "text": "a page"}]}
DOCUMENTS: Final = ("no picture at all", PICTURE, PAGE)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("qwen3_vl")
    qwen3_vl(folder)
    return folder


class Reference:
    """transformers' scores: `score` of the last token's hidden state, or by the answers' logits.

    `end_ids` follow the prompt.
    """

    def __init__(
        self,
        folder: Path,
        model_class: Any,
        score: Callable[[torch.Tensor], torch.Tensor] | None = None,
        prompt: str = PROMPT,
        end_ids: Sequence[int] = (),
    ) -> None:
        with quiet():
            tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
            self._processor: Any = image_processor()
            self._model = model_class.from_pretrained(folder, dtype=torch.float32).eval()
        self._tokenizer: Any = tokenizer
        if score is None:
            no, yes = (tokenizer.encode(text)[0] for text in ANSWERS)
            score = (self._model.lm_head.weight[[yes]] - self._model.lm_head.weight[[no]]).matmul
        self._score = score
        self._prompt = prompt
        self._end_ids = list(end_ids)

    @torch.inference_mode()
    def score(self, query: str, document: str, images: Sequence[Any] = ()) -> float:
        """Return the score of a pair; a document has `QWEN` for each image."""
        text = self._prompt.format(query=query, document=document)
        inputs: dict[str, Any] = {}
        if images:
            inputs = dict(self._processor(list(images), return_tensors="pt"))
            for grid in inputs["image_grid_thw"]:
                count = int(grid.prod()) // 4
                text = text.replace("<|image_pad|>", count * "<|placeholder|>", 1)
            text = text.replace("<|placeholder|>", "<|image_pad|>")
        ids = torch.tensor([[*self._tokenizer(text)["input_ids"], *self._end_ids]])
        image = self._tokenizer.convert_tokens_to_ids("<|image_pad|>")
        types = (ids == image).int()
        hidden = self._model.model(ids, mm_token_type_ids=types, **inputs).last_hidden_state[0, -1]
        return float(self._score(hidden).sigmoid())

    def all(self) -> list[float]:
        """Return the scores of `DOCUMENTS`."""
        return [
            self.score(QUERY, str(DOCUMENTS[0])),
            self.score(QUERY, QWEN, [FIRST]),
            self.score(QUERY, f"{QWEN}a page", [SECOND]),
        ]


@pytest.fixture(scope="module")
def expected(folder: Path) -> list[float]:
    found = Reference(folder, transformers.Qwen3VLForConditionalGeneration).all()
    assert len({round(score, 3) for score in found}) == len(found), "images change the score"
    return found


@pytest.fixture(scope="module")
def llm(folder: Path) -> Iterator[LLM]:
    with LLM(str(folder), **SETTINGS) as made:
        yield made


@pytest.mark.slow
def test_offline_scores_of_images_equal_transformers(llm: LLM, expected: list[float]) -> None:
    outputs = llm.score(QUERY, list(DOCUMENTS), use_tqdm=False)
    assert [output.outputs.score for output in outputs] == pytest.approx(expected, abs=1e-4)


@pytest.mark.slow
def test_score_head_of_a_vision_language_model_equals_transformers(tmp_path: Path) -> None:
    qwen2_vl(tmp_path)
    expected = Reference(tmp_path, transformers.Qwen2VLForConditionalGeneration, HEAD.matmul).all()
    edit(tmp_path, lambda tensors: tensors.update({"score.weight": HEAD}))
    settings = {"hf_overrides": {"num_labels": 1}, "convert": "classify", "runner": "pooling"}
    with LLM(str(tmp_path), **{**SETTINGS, **settings}) as llm:
        outputs = llm.score(QUERY, list(DOCUMENTS), use_tqdm=False)
    assert [output.outputs.score for output in outputs] == pytest.approx(expected, abs=1e-4)


@pytest.mark.slow
def test_jina_reranker_as_published_equals_its_own_head(tmp_path: Path) -> None:
    qwen2_vl(tmp_path)
    generator = torch.Generator().manual_seed(4)
    mlp = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1))
    for parameter in mlp.parameters():
        parameter.data = torch.randn(parameter.shape, generator=generator) / 4
    reference = Reference(
        tmp_path,
        transformers.Qwen2VLForConditionalGeneration,
        lambda hidden: mlp(hidden) - 2.65,
        "**Document**:\n{document}\n**Query**:\n{query}",
        end_ids=[100],
    )
    # Its images are in the order of its prompt, the document's first.
    expected = [*reference.all(), reference.score(QWEN, QWEN, [FIRST, SECOND])]
    assert len({round(score, 3) for score in expected}) == len(expected)

    def publish(tensors: dict[str, torch.Tensor]) -> None:
        del tensors["lm_head.weight"]
        tensors |= {f"score.{name}": tensor for name, tensor in mlp.state_dict().items()}

    edit(tmp_path, publish)
    config = json.loads((tmp_path / "config.json").read_text())
    config |= {"architectures": ["JinaVLForRanking"], "auto_map": {"AutoModel": "modeling.X"}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    settings = {**SETTINGS, "chat_template": "jina_reranker", "hf_overrides": {}}
    with LLM(str(tmp_path), **settings) as llm:
        outputs = llm.score(QUERY, list(DOCUMENTS), use_tqdm=False)
        outputs += llm.score({"content": [part(SECOND)]}, PICTURE, use_tqdm=False)
    assert [output.outputs.score for output in outputs] == pytest.approx(expected, abs=1e-4)


@pytest.mark.slow
def test_score_and_rerank_over_http_equal_transformers(folder: Path, expected: list[float]) -> None:
    flags = ["--chat-template", "qwen3_vl_reranker", "--max-model-len", "512"]
    flags += ["--dtype", "float32", "--hf-overrides", json.dumps(SETTINGS["hf_overrides"])]
    with served(str(folder), *flags) as client:

        def post(path: str, **body: Any) -> httpx.Response:
            return httpx.post(f"{client.base_url}{path}", json=body, timeout=TIMEOUT_S)

        answer = post("score", queries=QUERY, documents=list(DOCUMENTS))
        assert answer.status_code == 200, answer.text
        scores = [each["score"] for each in answer.json()["data"]]
        assert scores == pytest.approx(expected, abs=1e-4)

        answer = post("rerank", query=QUERY, documents=list(DOCUMENTS), top_n=2)
        assert answer.status_code == 200, answer.text
        order = sorted(range(3), key=lambda index: -expected[index])[:2]
        results = answer.json()["results"]
        assert [each["index"] for each in results] == order
        for each in results:
            given: Any = DOCUMENTS[each["index"]]
            parts = {"text": given} if isinstance(given, str) else {"multi_modal": given["content"]}
            assert each["document"] == parts
            assert each["relevance_score"] == pytest.approx(expected[each["index"]], abs=1e-4)

        broken = {
            "content": [{"type": "image_url", "image_url": {"url": "data:image/png;base64,"}}]
        }
        refused = post("rerank", query=QUERY, documents=["a text", broken])
        assert refused.status_code == 400
        assert refused.json()["error"]["param"].startswith("documents[1].content[0]")
