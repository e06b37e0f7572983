"""BLIP-2 and Fuyu, which read one image before a text, equal transformers."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest
import torch
import transformers

pytest.importorskip("PIL", reason="Pillow is not installed")

from builtin_plugins.input_processors.transformers.fuyu_images import FuyuImageProcessorPil
from builtin_plugins.models.generic.loading import quiet
from core import LLM, SamplingParams
from core.api import InvalidRequest
from core.cli.main import main
from tests.builtin_plugins.models.vision.checkpoints import blip2, fuyu
from tests.builtin_plugins.models.vision.one_image import (
    QUESTIONS,
    CausalReference,
    check,
    check_twice,
    generate,
    start,
)
from tests.builtin_plugins.models.vision.parity import (
    FIRST,
    LONG_TOKENS,
    NUM_TOKENS,
    SECOND,
    picture,
)

pytestmark = pytest.mark.slow


def blip2_reference(folder: Path) -> CausalReference:
    """Return the checkpoint of BLIP-2 in transformers."""
    tokenizer = transformers.PreTrainedTokenizerFast.from_pretrained(folder)
    images = transformers.BlipImageProcessorPil.from_pretrained(folder)
    model_class: Any = transformers.Blip2ForConditionalGeneration
    model = model_class.from_pretrained(folder, dtype=torch.float32).eval()

    def inputs(text: str, image: Any) -> tuple[list[int], dict[str, Any]]:
        ids = tokenizer(text)["input_ids"]
        if image is None:
            return ids, {}
        queries = [model.config.image_token_id] * model.config.num_query_tokens
        return [*queries, *ids], dict(images(images=[image], return_tensors="pt"))

    return CausalReference(model, model.language_model, inputs)


def fuyu_reference(folder: Path) -> CausalReference:
    """Return the checkpoint of Fuyu in transformers."""
    tokenizer = transformers.PreTrainedTokenizerFast.from_pretrained(folder)
    images: Any = FuyuImageProcessorPil.from_pretrained(folder)
    processor: Any = transformers.FuyuProcessor(images, tokenizer)
    model_class: Any = transformers.FuyuForCausalLM
    model = model_class.from_pretrained(folder, dtype=torch.float32).eval()

    def inputs(text: str, image: Any) -> tuple[list[int], dict[str, Any]]:
        options = {} if image is None else {"return_legacy_image_output": False}
        found = processor(images=image, text=text, return_tensors="pt", **options)
        ids = torch.as_tensor(found["input_ids"]).flatten().tolist()
        return ids, {} if image is None else {"pixel_values": found["pixel_values"]}

    return CausalReference(model, model, inputs)


@dataclass(frozen=True)
class OneImageModel:
    """How a model is made, and what its prompts are."""

    make: Callable[[Path], None]
    reference: Callable[[Path], CausalReference]
    placeholder: str
    step_tokens: int
    """Tokens of a step; prompts with an image are longer."""


MODELS: Final = {
    "blip2": OneImageModel(blip2.blip2, blip2_reference, blip2.PICTURE, 16),
    "fuyu": OneImageModel(fuyu.fuyu, fuyu_reference, fuyu.PICTURE, 40),
}


class Served:
    """A checkpoint and its reference."""

    def __init__(self, name: str, folder: Path) -> None:
        self.model = MODELS[name]
        self.folder = folder
        self.model.make(folder)
        with quiet():
            self.reference = self.model.reference(folder)

    def start(self, **settings: Any) -> LLM:
        return start(self.folder, max_num_batched_tokens=self.model.step_tokens, **settings)


@pytest.fixture(scope="module", params=MODELS)
def served(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Served:
    return Served(request.param, tmp_path_factory.mktemp(request.param))


@pytest.fixture(scope="module")
def llm(served: Served) -> Iterator[LLM]:
    with served.start() as made:
        yield made


def test_questions_of_one_batch_equal_transformers(served: Served, llm: LLM) -> None:
    check_twice(llm, served.reference, QUESTIONS)


def test_placeholder_before_the_text_may_be_written(served: Served, llm: LLM) -> None:
    (output,) = generate(llm, [(f"{served.model.placeholder}what is it?", FIRST)])
    served.reference.check(output, "what is it?", FIRST, NUM_TOKENS)


def test_a_prefix_is_shared_with_the_same_image_only(served: Served, llm: LLM) -> None:
    check(llm, served.reference, [("what is that?", FIRST)])
    (same,) = generate(llm, [("what is this?", FIRST)])
    served.reference.check(same, "what is this?", FIRST, NUM_TOKENS)
    unseen = picture(4, 30, 50)
    (other,) = generate(llm, [("what is this?", unseen)])
    served.reference.check(other, "what is this?", unseen, NUM_TOKENS)
    assert same.num_cached_tokens > 0
    assert not other.num_cached_tokens


@pytest.mark.parametrize("served", ["fuyu"], indirect=True, scope="module")
def test_prompt_of_tokens_has_the_image_at_its_placeholder(llm: LLM) -> None:
    text, image = QUESTIONS[0]
    (whole,) = generate(llm, [(text, image)])
    ids = list(whole.prompt_token_ids or ())
    begin = ids.index(fuyu.PIECES.index("<s>")) + 1
    prompt: Any = {
        "prompt_token_ids": [ids[0], *ids[begin:]],
        "multi_modal_data": {"image": image},
    }
    (output,) = llm.generate([prompt], SamplingParams(max_tokens=1), use_tqdm=False)
    assert list(output.prompt_token_ids or ()) == ids


@pytest.mark.parametrize("text", ["what {}?", "compare"])
def test_images_elsewhere_are_refused(served: Served, llm: LLM, text: str) -> None:
    placeholder = served.model.placeholder
    images = FIRST if "{}" in text else [FIRST, SECOND]
    with pytest.raises(InvalidRequest, match="expected one image, before the text"):
        generate(llm, [(text.format(placeholder), images)])
    generate(llm, QUESTIONS[:1])


@pytest.mark.parametrize("served", ["fuyu"], indirect=True, scope="module")
def test_control_token_after_an_image_is_refused(llm: LLM) -> None:
    with pytest.raises(InvalidRequest, match="expected text"):
        generate(llm, [("a <0x04> in it", FIRST)])
    generate(llm, QUESTIONS[:1])


def test_memory_plan_counts_the_tower(served: Served, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", str(served.folder), "--max-model-len", "128", "--json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert plan["weight_bytes"] == pytest.approx([plan["checkpoint_bytes"]], rel=0.01)


@pytest.mark.parametrize("settings", [{"async_scheduling": True}, {"tensor_parallel_size": 2}])
def test_other_settings_equal_transformers(served: Served, settings: dict[str, Any]) -> None:
    with served.start(**settings) as llm:
        check(llm, served.reference, QUESTIONS, LONG_TOKENS)


def test_preempted_requests_equal_transformers(served: Served) -> None:
    for blocks in (20, 16, 12):
        own = {"num_gpu_blocks_override": blocks, "enable_prefix_caching": False}
        with served.start(**own) as llm:
            check(llm, served.reference, [*QUESTIONS] * 2, LONG_TOKENS)
            if llm.core.scheduler.num_preemptions:
                return
    pytest.fail("no number of blocks preempts a request")
