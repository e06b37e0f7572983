"""What `ngram` and `suffix` find, and what finding it costs."""

from __future__ import annotations

import random
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from builtin_plugins.speculators.ngram import NGram
from builtin_plugins.speculators.outputs import write_outputs
from builtin_plugins.speculators.suffix import Suffix
from core.api import ConfigError, DraftRow, EngineConfig, ModelSource, SpeculativeConfig
from core.step import NewRow
from core.types import SamplingParams


def owner(prompt_len: int = 0) -> NewRow:
    return NewRow(0, "r", [], prompt_len, SamplingParams(), 0, (), [])


def ask(tokens: list[int], who: NewRow, most: int = 4, row: int = 0) -> list[DraftRow]:
    return [DraftRow(row, who, np.array(tokens), most)]


def given(suffix: Any, folder: Path, vocab_size: int = 99) -> Any:
    """Let it read the outputs in a folder."""
    suffix._find = lambda: ModelSource("given", "", None, str(folder))
    suffix.loaded(SimpleNamespace(model=SimpleNamespace(vocab_size=vocab_size)))
    return suffix


def make(kind: Any = NGram, **settings: Any) -> Any:
    return kind(EngineConfig(), SpeculativeConfig(method="x", **settings), None)


def by_scanning(tokens: list[int], least: int, most: int, count: int) -> list[int]:
    """Return what ngram guesses, found the slow way: the longest end that stands earlier, the
    latest time it does.
    """
    for size in range(most, least - 1, -1):
        for place in range(len(tokens) - 1, size - 1, -1):
            if len(tokens) > size and tokens[place - size : place] == tokens[len(tokens) - size :]:
                return [tokens[place + i % (len(tokens) - place)] for i in range(count)]
    return []


@pytest.mark.parametrize("seed", range(6))
def test_ngram_finds_what_a_scan_of_everything_finds(seed: int) -> None:
    draw = random.Random(seed)
    who = owner()
    ngram = make()
    tokens = []
    for _ in range(120):  # so few that the places looked at are all there are
        tokens += [draw.randrange(12) for _ in range(draw.randrange(1, 3))]
        assert ngram.drafts(ask(tokens, who))[0] == by_scanning(tokens, 2, 5, 4)


def test_a_text_that_repeats_itself_goes_on() -> None:
    assert make().drafts(ask([7, 8, 9, 7, 8, 9, 7], owner(), most=7)) == [[8, 9, 7, 8, 9, 7, 8]]


def calls(function: Any, *arguments: Any) -> int:
    """Return how many lines of Python run: what a look costs, on any machine."""
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
def test_a_look_costs_the_same_at_any_length(kind: Any) -> None:
    costs = []
    for length in (200, 8000):
        draw = random.Random(1)
        who = owner()
        finder = make(kind)
        tokens = [draw.randrange(3) for _ in range(length)]
        finder.drafts(ask(tokens, who))
        costs.append(
            max(calls(finder.drafts, ask([*tokens, *[1, 2, 3][: i + 1]], who)) for i in range(3))
        )
    assert costs[1] <= 1.5 * costs[0]


@pytest.mark.parametrize("kind", [NGram, Suffix])
def test_a_look_costs_little_where_all_of_the_text_was_said_before(kind: Any) -> None:
    finder = make(kind)
    said = list(range(100, 130)) * 8
    for _ in range(20):
        finder.drafts(ask(said, owner()))
    who = owner()
    finder.drafts(ask(said[:100], who))
    assert calls(finder.drafts, ask(said[:101], who, most=24)) < 400
    assert finder.drafts(ask(said[:102], who, most=24)) == [said[102:126]]


def test_suffix_guesses_what_others_said_most_often() -> None:
    suffix = make(Suffix, suffix_decoding_max_spec_factor=4.0)
    greeting = [1, 2, 3]
    for ending in ([4, 5, 6], [4, 9, 9], [4, 5, 7]):
        suffix.drafts(ask([50, *greeting, *ending], owner(1)))
    assert suffix.drafts(ask([60, *greeting], owner(1), most=2)) == [[4, 5]]
    silent = make(Suffix, suffix_decoding_max_cached_requests=0)
    silent.drafts(ask([50, *greeting, 4, 5, 6], owner(1)))
    assert silent.drafts(ask([60, *greeting], owner(1))) == [[]]


def test_suffix_guesses_no_more_than_agrees_and_only_what_is_likely() -> None:
    assert make(Suffix).drafts(ask([1, 2, 3, 4, 5, 1, 2], owner())) == [[3, 4]]
    text = [1, 2, 3, 1, 2, 4, 1, 2, 5, 1, 2]
    assert make(Suffix, suffix_decoding_min_token_prob=0.5).drafts(ask(text, owner())) == [[]]
    assert len(make(Suffix, suffix_decoding_min_token_prob=0.3).drafts(ask(text, owner()))[0]) == 2


@pytest.mark.parametrize("depth", [0, 1, 2, 3])
def test_suffix_guesses_no_more_than_its_depth(depth: int) -> None:
    suffix = make(Suffix, suffix_decoding_max_tree_depth=depth)
    assert suffix.drafts(ask([1, 2, 3, 4, 5, 1, 2, 3], owner())) == [[4, 5, 1][:depth]]


def test_outputs_are_forgotten_in_two_generations() -> None:
    suffix = make(Suffix, suffix_decoding_max_cached_requests=4)
    for i in range(9):
        suffix.drafts(ask([100 + i, 200 + i, 300 + i], owner(0)))
    assert suffix.drafts(ask([100, 200], owner(0))) == [[]]
    assert suffix.drafts(ask([107, 207], owner(0))) == [[307]]


def test_outputs_may_be_there_from_the_start(tmp_path: Path) -> None:
    """Those of a file are never forgotten, and all ranks read them."""
    write_outputs(tmp_path, [[1, 2, 3, 4, 5], [7, 2, 3, 8], [9, 2, 3, 8]])
    suffix = given(make(Suffix, suffix_decoding_max_cached_requests=0), tmp_path)
    assert suffix.drafts(ask([60, 1, 2, 3], owner())) == [[4, 5]]
    assert suffix.drafts(ask([60, 2, 3], owner())) == [[8]], "nothing follows the end of an output"


def test_where_much_was_said_what_agrees_longest_is_found(tmp_path: Path) -> None:
    """There are more than sixteen later places of the last two tokens."""
    write_outputs(tmp_path, [[1, 2, 3, 4, 5, 6], *([[9, 4, 5, 7]] * 40)])
    suffix = given(make(Suffix), tmp_path)
    assert suffix.drafts(ask([60, 1, 2, 3, 4, 5], owner())) == [[6]]
    assert suffix.drafts(ask([60, 4, 5], owner())) == [[7]]


def test_a_text_itself_counts_for_more_than_others(tmp_path: Path) -> None:
    write_outputs(tmp_path, [[20, 21, 22, 30]])
    suffix = given(make(Suffix, suffix_decoding_max_cached_requests=0), tmp_path)
    assert suffix.drafts(ask([21, 22, 40, 41, 20, 21, 22], owner(), most=1)) == [[40]]
    assert suffix.drafts(ask([50, 20, 21, 22], owner(), most=1)) == [[30]]


def test_outputs_of_another_model_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"holds no outputs\.safetensors"):
        given(make(Suffix), tmp_path)
    write_outputs(tmp_path, [[1, 50]])
    with pytest.raises(ConfigError, match="the model has 40: it is of another"):
        given(make(Suffix), tmp_path, vocab_size=40)
