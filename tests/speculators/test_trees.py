"""Trees of guesses: how they are shaped and filled, what of them is worth computing, and that they
change no token.
"""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
import torch
from mixed_requests import counted, open_llm, run

from builtin_plugins.speculators.pace import LIKELY, Pace
from builtin_plugins.speculators.tree_drafting import _Paths
from builtin_plugins.speculators.trees import exponents, fill, likeliest
from core import LLM, SamplingParams
from core.api import DraftRow, StructuredOutputsParams, TokenTree
from core.errors import EngineError
from core.step import NewRow
from core.testing.checkpoints import make_checkpoint
from tests.speculators.thirty_two import TREE

DEMO = str(Path(__file__).parents[2] / "builtin_plugins" / "model_sources" / "demo" / "model")
SMALL = TokenTree.of([(0,), (1,), (0, 0), (0, 1), (1, 0), (0, 1, 0)])


def random_tree(draw: Random, count: int) -> TokenTree:
    nodes: list[tuple[int, ...]] = [()]
    for _ in range(count):
        parent = draw.choice(nodes)
        nodes.append((*parent, sum(node[:-1] == parent for node in nodes if node)))
    return TokenTree.of(nodes[1:])


def test_nodes_stand_behind_their_parents_and_the_first_path_first() -> None:
    assert SMALL.nodes == ((0,), (0, 0), (0, 1), (0, 1, 0), (1,), (1, 0))
    assert SMALL.depths == [0, 1, 2, 2, 3, 1, 2]
    assert SMALL.children == [[1, 5], [2, 3], [], [4], [], [6], []]
    assert SMALL.paths == [[1, 2], [1, 3, 4], [5, 6]]
    assert TokenTree.chain(3).paths == [[1, 2, 3]]
    draw = Random(1)
    for _ in range(50):
        tree = random_tree(draw, 1 + draw.randrange(20))
        seen: list[int] = []
        for path in tree.paths:
            own = [place for place in path if place not in seen]
            assert path[len(path) - len(own) :] == own
            seen += own
        assert seen == list(range(1, len(tree) + 1)), (
            "what a path adds follows what those before it have"
        )


def test_the_likeliest_nodes_are_trees_each_a_node_larger() -> None:
    draw = Random(2)
    for _ in range(20):
        trees = likeliest(random_tree(draw, 12))
        assert [len(tree) for tree in trees] == list(range(13))
        assert all({*less.nodes} < {*more.nodes} for less, more in pairwise(trees))
        depths, behind = exponents(trees)
        chances = LIKELY**depths * (1 - LIKELY) ** behind
        assert (np.diff(chances) <= 1e-12).all()


def test_a_tree_is_filled_level_by_level() -> None:
    """The model of this test says of each text a token more than its last one, and then ever ten
    more.
    """
    owner = NewRow(0, "r", [], 1, SamplingParams(), 0, (), [])
    rows = [DraftRow(0, owner, np.array([5]), 6, SMALL), DraftRow(1, owner, np.array([7]), 2)]
    told: list[Any] = []

    def begin(count: int) -> list[list[int]]:
        return [[int(row.tokens[-1]) + 1 + 10 * rank for rank in range(count)] for row in rows]

    def go_on(level: list[Any], tokens: list[list[int]], count: int) -> list[list[int]]:
        told.append(sorted((node.row, node.place) for node in level))
        return [
            [tokens[node.row][node.place - 1] + 1 + 10 * rank for rank in range(count)]
            for node in level
        ]

    assert fill(rows, begin, go_on) == [[6, 7, 17, 18, 16, 17], [8, 9]]
    assert told == [[(0, 1), (0, 5), (1, 1)], [(0, 3)]], "leaves are not computed"


def test_the_path_holds_that_was_sampled() -> None:
    paths = _Paths(SMALL, "cpu")
    guessed = torch.tensor([10, 11, 12, 13, 20, 21, 99])

    def longest(*sampled: int) -> tuple[list[int], int, int]:
        best, length = paths.longest(guessed, torch.tensor(sampled))
        held = int(length)
        return paths.places[best][:held].tolist(), held, int(paths.looked[best, length])

    assert longest(9, 0, 0, 0, 0, 0, 0) == ([], 0, 2)
    assert longest(10, 9, 0, 13, 0, 0, 0) == ([1], 1, 3), "a right token behind a wrong one is none"
    assert longest(10, 12, 0, 13, 0, 0, 0) == ([1, 3, 4], 3, 4)
    assert longest(20, 0, 0, 0, 0, 21, 0) == ([5, 6], 2, 3)


def test_nodes_are_chosen_by_how_likely_they_are() -> None:
    trees = likeliest(TokenTree.of([(0,), (1,), (2,), (0, 0), (0, 0, 0), (0, 1)]))
    depths, behind = exponents(trees)
    pace = Pace(8, 6, depths=depths, behind=behind)
    for size in (2, 4, 14):
        for _ in range(4):
            pace.costs.take(size, 1.0 + 0.1 * size)
    for _ in range(10):
        pace.verified(np.array([0, 1]), np.array([3, 3]), np.array([3, 0]))
    sure, unsure = pace.choose(np.arange(2), np.full(2, 6)).tolist()
    assert sure > unsure
    assert sure < 6, "siblings of what is nearly sure are not worth their time"


def test_where_branches_do_not_pay_a_chain_is_computed() -> None:
    """Of this tree the first three nodes are one; a row that computes more of it has branches."""
    depths, behind = exponents(
        likeliest(TokenTree.of([(0,), (1,), (2,), (0, 0), (0, 1), (1, 0), (0, 0, 0)]))
    )
    for branched_s, fewest, most in ((3.0, 1, 3), (1.3, 4, 7)):
        pace = Pace(1, 7, depths=depths, behind=behind)
        for size in range(1, 9):
            for _ in range(4):
                pace.costs.take(size, 1.0 + 0.01 * size if size <= 4 else branched_s)
        for _ in range(10):
            pace.verified(np.array([0]), np.array([2]), np.array([1]))
        assert fewest <= int(pace.choose(np.arange(1), np.full(1, 7))[0]) <= most


def test_methods_without_branches_are_refused_by_name() -> None:
    with pytest.raises(
        EngineError, match="speculative_token_tree has branches, and the method ngram"
    ):
        LLM(
            speculative_config={"method": "ngram", "speculative_token_tree": "[(0,), (1,)]"},
            log_level="error",
        )


@pytest.mark.slow
def test_models_with_states_are_refused_by_name(tmp_path: Path) -> None:
    folder = make_checkpoint("Qwen3NextForCausalLM", tmp_path / "model", seed=1)
    config = {
        "method": "draft_model",
        "model": str(folder),
        "speculative_token_tree": "[(0,), (1,)]",
    }
    with pytest.raises(EngineError, match=r"cannot check: .* keeps RecurrentState"):
        LLM(
            str(folder),
            speculative_config=config,
            skip_tokenizer_init=True,
            max_model_len=64,
            log_level="error",
        )


WAYS: dict[str, dict[str, Any]] = {
    "as it is": {},
    "depth 2": {"async_scheduling": True},
    "two ranks": {"tensor_parallel_size": 2},
}


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
def test_whatever_is_asked_of_sampling_keeps_its_meaning(expected: list[Any], way: str) -> None:
    config = {
        "method": "draft_model",
        "model": DEMO,
        "speculative_token_tree": TREE,
        "adaptive": False,
    }
    with open_llm(config, **WAYS[way]) as llm:
        assert run(llm) == expected
        total = counted(llm)
        assert sum(total.right) > total.drafts > 100
        llm.core.scheduler.check()


@pytest.mark.slow
def test_grammars_hold_and_change_no_token() -> None:
    pytest.importorskip("xgrammar")
    names = ("colour", "shade", "hue")
    schema = {
        "type": "object",
        "properties": {n: {"enum": ["red", "green"]} for n in names},
        "required": [*names],
    }
    tree = {
        "method": "draft_model",
        "model": DEMO,
        "speculative_token_tree": TREE,
        "adaptive": False,
    }
    outcomes = []
    for speculative in (None, tree):
        with open_llm(speculative) as llm:
            form = StructuredOutputsParams(json=schema)
            params = [
                SamplingParams(temperature=i, seed=i, max_tokens=60, structured_outputs=form)
                for i in range(2)
            ]
            outputs = llm.generate(
                ['Answer in JSON: {"colour": "red"}'] * 2, params, use_tqdm=False
            )
            outcomes.append([(o.outputs[0].text, o.outputs[0].finish_reason) for o in outputs])
    assert outcomes[0] == outcomes[1]
    assert sum(output.counts["spec_decode_num_accepted_tokens"] for output in outputs) > 10
