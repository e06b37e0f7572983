"""Prompts with images, and what transformers generates for them."""

from __future__ import annotations

import json
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import numpy as np
import torch
import transformers
from PIL import Image

from builtin_plugins.input_processors.transformers.loading import load_processor
from builtin_plugins.models.generic.loading import quiet
from core import LLM, RequestOutput, SamplingParams

NUM_TOKENS: Final = 8
LONG_TOKENS: Final = 40
"""Tokens of answers that outgrow the first blocks of their requests."""
LOGPROB_TOLERANCE: Final = 1e-3


def picture(seed: int, width: int = 40, height: int = 30) -> Image.Image:
    """Return an image of noise."""
    pixels = np.random.RandomState(seed).randint(0, 255, (height, width, 3), dtype=np.uint8)
    return Image.fromarray(pixels)


FIRST: Final = picture(1)
SECOND: Final = picture(2, 64, 24)
THIRD: Final = picture(3, 30, 50)


@dataclass(frozen=True)
class Case:
    """A prompt, with `{}` for each image."""

    text: str
    images: Sequence[Image.Image] = ()

    def prompt(self, image: str) -> dict[str, Any]:
        """Return the engine's prompt; `image` is the text of one image."""
        given = {"multi_modal_data": {"image": list(self.images)}} if self.images else {}
        return {"prompt": self.text.format(*[image] * len(self.images)), **given}


ONE: Final = Case("look {} what?", [FIRST])
OTHER: Final = Case("look {} what?", [SECOND])
THREE: Final = Case("{} and {} and {} compare these", [FIRST, SECOND, THIRD])
AGAIN: Final = Case("{} and {} and {} compare those", [FIRST, SECOND, FIRST])
LAST: Final = Case(THREE.text, [FIRST, SECOND, FIRST])
"""The prompt of `THREE` with another last image."""
NONE: Final = Case("no picture at all here")


@dataclass
class Expected:
    """The greedy tokens of transformers, and their log-probabilities."""

    prompt_ids: list[int]
    token_ids: list[int]
    logprobs: list[float] = field(default_factory=list)


class Reference:
    """A checkpoint in transformers."""

    def __init__(self, folder: Path, image: str) -> None:
        config = json.loads((folder / "config.json").read_text())
        source: Any = SimpleNamespace(path=str(folder), hf_config=SimpleNamespace(**config))
        self._image = image
        with quiet():
            self._processor = load_processor(source)
            model_class = getattr(transformers, config["architectures"][0])
            self._model = model_class.from_pretrained(folder, dtype=torch.float32).eval()
        self._known: dict[tuple[Any, ...], Expected] = {}

    def expected(self, case: Case) -> Expected:
        """Return what transformers generates for a case."""
        key = (case.text, *map(id, case.images))
        if key not in self._known:
            self._known[key] = self._generate(case.text, case.images)
        return self._known[key]

    def _generate(self, text: str, images: Sequence[Image.Image]) -> Expected:
        prompt = [text.format(*[self._image] * len(images))]
        with warnings.catch_warnings(action="ignore"):  # of numpy 2, and of PaliGemma's labels
            if images:
                inputs = self._processor(text=prompt, images=list(images), return_tensors="pt")
                inputs = inputs.to(torch.float32)
            else:  # some processors read no text without images
                inputs = self._processor.tokenizer(prompt, return_tensors="pt")
        with torch.no_grad():
            out = self._model.generate(
                **inputs,
                max_new_tokens=LONG_TOKENS,
                do_sample=False,
                eos_token_id=None,
                pad_token_id=0,
                output_logits=True,
                return_dict_in_generate=True,
            )
        prompt_ids = inputs["input_ids"][0].tolist()
        token_ids = out.sequences[0, len(prompt_ids) :].tolist()
        logprobs = [
            float(logits[0].float().log_softmax(-1)[token])
            for logits, token in zip(out.logits, token_ids, strict=True)
        ]
        return Expected(prompt_ids, token_ids, logprobs)

    def check(self, case: Case, output: RequestOutput) -> None:
        """Raise `AssertionError` unless the output is transformers' own."""
        expected = self.expected(case)
        assert list(output.prompt_token_ids or ()) == expected.prompt_ids
        answer = output.outputs[0]
        count = len(answer.token_ids)
        assert count in (NUM_TOKENS, LONG_TOKENS)
        assert list(answer.token_ids) == expected.token_ids[:count]
        found = [
            step[token].logprob
            for step, token in zip(answer.logprobs or (), answer.token_ids, strict=True)
        ]
        np.testing.assert_allclose(found, expected.logprobs[:count], atol=LOGPROB_TOLERANCE, rtol=0)


def generate(
    llm: LLM, image: str, cases: Sequence[Case], num_tokens: int = NUM_TOKENS
) -> list[RequestOutput]:
    """Return the outputs of all cases in one batch."""
    greedy = SamplingParams(temperature=0, max_tokens=num_tokens, ignore_eos=True, logprobs=3)
    return llm.generate([case.prompt(image) for case in cases], greedy, use_tqdm=False)


def counters(llm: LLM) -> dict[str, int]:
    """Return the counters of the encoder cache."""
    found: dict[str, int] = json.loads(llm.collective_rpc("multimodal.counters")[0])
    return found
