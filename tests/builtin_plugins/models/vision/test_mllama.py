"""Tokens of Mllama read the states of their images, whatever lies between these."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

pytest.importorskip("PIL", reason="Pillow is not installed")

from core import LLM
from core.api import InvalidRequest
from tests.builtin_plugins.models.vision.checkpoints.mllama import BEGIN, PICTURE, mllama
from tests.builtin_plugins.models.vision.parity import (
    FIRST,
    NUM_TOKENS,
    SECOND,
    THIRD,
    Case,
    Reference,
    generate,
)

pytestmark = pytest.mark.slow
PAIR: Final = Case(f"{PICTURE}{PICTURE}{BEGIN}compare", [FIRST, SECOND])
PAIR_AND_ONE: Final = Case(
    f"{BEGIN}these {PICTURE}{PICTURE} and{PICTURE}, compare", [THIRD, FIRST, SECOND]
)
APART: Final = Case(f"{BEGIN}{PICTURE}a{PICTURE}b{PICTURE}", [FIRST, SECOND, THIRD])
CASES: Final = (PAIR, PAIR_AND_ONE, APART)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("mllama")
    mllama(folder)
    return folder


@pytest.fixture(scope="module")
def reference(folder: Path) -> Reference:
    return Reference(folder, PICTURE)


@pytest.fixture(params=["auto", "torch_sdpa", "reference"])
def llm(folder: Path, request: pytest.FixtureRequest) -> Iterator[LLM]:
    settings: dict[str, Any] = {"attention_backend": request.param, "max_num_batched_tokens": 16}
    with LLM(str(folder), dtype="float32", max_model_len=256, **settings) as made:
        yield made


def test_images_next_to_each_other_and_apart_equal_transformers(
    reference: Reference, llm: LLM
) -> None:
    outputs = generate(llm, PICTURE, CASES, NUM_TOKENS)
    for case, output in zip(CASES, outputs, strict=True):
        reference.check(case, output)


def test_tokens_before_the_first_image_are_shared_only_with_all_images_equal(
    folder: Path, reference: Reference
) -> None:
    text = f"{BEGIN}look at this {PICTURE} and at that {PICTURE} and compare"
    cases = [Case(text, [FIRST, second]) for second in (SECOND, SECOND, THIRD)]
    with LLM(str(folder), dtype="float32", max_model_len=256, block_size=4) as llm:
        for case, is_hit in zip(cases, (False, True, False), strict=True):
            (output,) = generate(llm, PICTURE, [case])
            reference.check(case, output)
            assert bool(output.num_cached_tokens) == is_hit


def test_more_states_than_the_cache_holds_are_refused(folder: Path) -> None:
    too_many = Case(f"{BEGIN}" + f"{PICTURE}x" * 8, [FIRST, SECOND] * 4)
    with LLM(str(folder), dtype="float32", max_model_len=256) as llm:
        with pytest.raises(InvalidRequest, match="encoder states in all; expected at most 160"):
            generate(llm, PICTURE, [too_many])
        generate(llm, PICTURE, [PAIR])
