"""Drafts of `ngram` and `suffix`, and the cost of their lookups."""

from __future__ import annotations

import random
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from builtin_plugins.speculators.api import DraftRow, SpeculativeConfig
from builtin_plugins.speculators.ngram import NGram
from builtin_plugins.speculators.suffix import FILE, Suffix, read_outputs, write_outputs
from core.api import ConfigError, EngineConfig
from core.api.models import ModelSource
from core.step import NewRow
from core.types import SamplingParams


def new_owner(prompt_len: int = 0) -> NewRow:
    return NewRow(0, "r", [], prompt_len, SamplingParams(), 0, (), [])


def rows(
    tokens: list[int], owner: NewRow, max_draft_tokens: int = 4, row: int = 0
) -> list[DraftRow]:
    return [DraftRow(row, owner, np.array(tokens), max_draft_tokens)]


def load_outputs(suffix: Any, folder: Path, vocab_size: int = 99) -> Any:
    """Load the outputs of a folder."""
    suffix._find_outputs = lambda: ModelSource("given", "", None, str(folder))
    suffix.loaded(SimpleNamespace(model=SimpleNamespace(vocab_size=vocab_size)))
    return suffix


def make(kind: Any = NGram, **settings: Any) -> Any:
    return kind(EngineConfig(), SpeculativeConfig(method="x", **settings), None)


def by_scanning(tokens: list[int], shortest: int, longest: int, count: int) -> list[int]:
    """Return the draft of `ngram` by exhaustive search: the latest longest match."""
    for size in range(longest, shortest - 1, -1):
        for start in range(len(tokens) - 1, size - 1, -1):
            if len(tokens) > size and tokens[start - size : start] == tokens[len(tokens) - size :]:
                return [tokens[start + i % (len(tokens) - start)] for i in range(count)]
    return []


@pytest.mark.parametrize("seed", range(6))
def test_ngram_matches_exhaustive_scan(seed: int) -> None:
    draw = random.Random(seed)
    owner = new_owner()
    ngram = make()
    tokens = []
    for _ in range(120):  # so few that all occurrences are compared
        tokens += [draw.randrange(12) for _ in range(draw.randrange(1, 3))]
        assert ngram.propose(rows(tokens, owner))[0] == by_scanning(tokens, 2, 5, 4)


def test_ngram_continues_a_repetition() -> None:
    assert make().propose(rows([7, 8, 9, 7, 8, 9, 7], new_owner(), max_draft_tokens=7)) == [
        [8, 9, 7, 8, 9, 7, 8]
    ]


def calls(function: Any, *arguments: Any) -> int:
    """Return the executed lines of Python: the cost of a lookup, on any machine."""
    count = 0

    def trace(frame: Any, event: str, argument: Any) -> Any:
        nonlocal count
        count += event == "line"
        return trace

    sys.settrace(trace)
    try:
        function(*arguments)
    finally:
        sys.settrace(None)
    return count


@pytest.mark.parametrize("kind", [NGram, Suffix])
def test_lookup_cost_is_independent_of_length(kind: Any) -> None:
    costs = []
    for length in (200, 8000):
        draw = random.Random(1)
        owner = new_owner()
        speculator = make(kind)
        tokens = [draw.randrange(3) for _ in range(length)]
        speculator.propose(rows(tokens, owner))
        costs.append(
            max(
                calls(speculator.propose, rows([*tokens, *[1, 2, 3][: i + 1]], owner))
                for i in range(3)
            )
        )
    assert costs[1] <= 1.5 * costs[0]


@pytest.mark.parametrize("kind", [NGram, Suffix])
def test_lookup_is_cheap_for_fully_repeated_text(kind: Any) -> None:
    speculator = make(kind)
    text = list(range(100, 130)) * 8
    for _ in range(20):
        speculator.propose(rows(text, new_owner()))
    owner = new_owner()
    speculator.propose(rows(text[:100], owner))
    assert calls(speculator.propose, rows(text[:101], owner, max_draft_tokens=24)) < 400
    assert speculator.propose(rows(text[:102], owner, max_draft_tokens=24)) == [text[102:126]]


def test_suffix_drafts_majority_continuation() -> None:
    suffix = make(Suffix, suffix_decoding_max_spec_factor=4.0)
    greeting = [1, 2, 3]
    for ending in ([4, 5, 6], [4, 9, 9], [4, 5, 7]):
        suffix.propose(rows([50, *greeting, *ending], new_owner(1)))
    assert suffix.propose(rows([60, *greeting], new_owner(1), max_draft_tokens=2)) == [[4, 5]]
    without_outputs = make(Suffix, suffix_decoding_max_cached_requests=0)
    without_outputs.propose(rows([50, *greeting, 4, 5, 6], new_owner(1)))
    assert without_outputs.propose(rows([60, *greeting], new_owner(1))) == [[]]


def test_suffix_draft_is_bounded_by_match_and_probability() -> None:
    assert make(Suffix).propose(rows([1, 2, 3, 4, 5, 1, 2], new_owner())) == [[3, 4]]
    text = [1, 2, 3, 1, 2, 4, 1, 2, 5, 1, 2]
    assert make(Suffix, suffix_decoding_min_token_prob=0.5).propose(rows(text, new_owner())) == [[]]
    assert (
        len(make(Suffix, suffix_decoding_min_token_prob=0.3).propose(rows(text, new_owner()))[0])
        == 2
    )


@pytest.mark.parametrize("depth", [0, 1, 2, 3])
def test_suffix_draft_is_bounded_by_depth(depth: int) -> None:
    suffix = make(Suffix, suffix_decoding_max_tree_depth=depth)
    assert suffix.propose(rows([1, 2, 3, 4, 5, 1, 2, 3], new_owner())) == [[4, 5, 1][:depth]]


def test_suffix_outputs_expire_in_two_generations() -> None:
    suffix = make(Suffix, suffix_decoding_max_cached_requests=4)
    for i in range(9):
        suffix.propose(rows([100 + i, 200 + i, 300 + i], new_owner(0)))
    assert suffix.propose(rows([100, 200], new_owner(0))) == [[]]
    assert suffix.propose(rows([107, 207], new_owner(0))) == [[307]]


def test_suffix_loads_outputs_file(tmp_path: Path) -> None:
    """Outputs of a file never expire, and all ranks load them."""
    write_outputs(tmp_path, [[1, 2, 3, 4, 5], [7, 2, 3, 8], [9, 2, 3, 8]])
    suffix = load_outputs(make(Suffix, suffix_decoding_max_cached_requests=0), tmp_path)
    assert suffix.propose(rows([60, 1, 2, 3], new_owner())) == [[4, 5]]
    assert suffix.propose(rows([60, 2, 3], new_owner())) == [[8]], "a draft ends with the output"


def test_suffix_finds_longest_match_in_many_outputs(tmp_path: Path) -> None:
    """The last two tokens have more than sixteen later occurrences."""
    write_outputs(tmp_path, [[1, 2, 3, 4, 5, 6], *([[9, 4, 5, 7]] * 40)])
    suffix = load_outputs(make(Suffix), tmp_path)
    assert suffix.propose(rows([60, 1, 2, 3, 4, 5], new_owner())) == [[6]]
    assert suffix.propose(rows([60, 4, 5], new_owner())) == [[7]]


def test_suffix_prefers_own_text(tmp_path: Path) -> None:
    write_outputs(tmp_path, [[20, 21, 22, 30]])
    suffix = load_outputs(make(Suffix, suffix_decoding_max_cached_requests=0), tmp_path)
    assert suffix.propose(rows([21, 22, 40, 41, 20, 21, 22], new_owner(), max_draft_tokens=1)) == [
        [40]
    ]
    assert suffix.propose(rows([50, 20, 21, 22], new_owner(), max_draft_tokens=1)) == [[30]]


def test_suffix_outputs_of_another_model_are_rejected(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"has no outputs\.safetensors"):
        load_outputs(make(Suffix), tmp_path)
    write_outputs(tmp_path, [[1, 50]])
    with pytest.raises(ConfigError, match="expected the model's, up to 39"):
        load_outputs(make(Suffix), tmp_path, vocab_size=40)


@pytest.mark.parametrize(
    "content", [b"", b"x" * 64, bytes(7) + b"\x80", (1 << 20).to_bytes(8, "little") + b"["]
)
def test_hostile_file_of_initial_outputs_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / FILE).write_bytes(content)
    source = ModelSource(str(tmp_path), "", None, path=str(tmp_path))
    with pytest.raises(ConfigError, match=FILE):
        read_outputs(source, 100)
