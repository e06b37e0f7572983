"""Draft trees: shape, filling, choice of nodes, and unchanged tokens."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
import torch

from builtin_plugins.features.speculation.draft_length import DraftLengthController
from builtin_plugins.features.speculation.subtrees import (
    PRIOR_ACCEPTANCE_RATE,
    likeliest_subtrees,
    node_exponents,
)
from builtin_plugins.features.speculation.tree_worker import _Paths
from builtin_plugins.speculators.api import DraftRow, TokenTree
from builtin_plugins.speculators.draft_trees import fill_trees
from core import LLM, SamplingParams
from core.api.sampling import StructuredOutputsParams
from core.errors import EngineError
from core.step import NewRow
from core.testing.checkpoints import make_checkpoint
from core.testing.invariants import check_scheduler
from tests.builtin_plugins.speculators.large_batch import TREE
from tests.builtin_plugins.speculators.mixed_requests import counted, open_llm, run

DEMO = str(Path(__file__).parents[3] / "builtin_plugins" / "model_sources" / "demo" / "model")
SMALL = TokenTree.of([(0,), (1,), (0, 0), (0, 1), (1, 0), (0, 1, 0)])


def random_tree(draw: Random, count: int) -> TokenTree:
    nodes: list[tuple[int, ...]] = [()]
    for _ in range(count):
        parent = draw.choice(nodes)
        nodes.append((*parent, sum(node[:-1] == parent for node in nodes if node)))
    return TokenTree.of(nodes[1:])


def test_tree_nodes_are_ordered_depth_first() -> None:
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
            own = [node for node in path if node not in seen]
            assert path[len(path) - len(own) :] == own
            seen += own
        assert seen == list(range(1, len(tree) + 1)), (
            "the new nodes of a path follow those of earlier paths"
        )


def test_likeliest_nodes_form_nested_trees() -> None:
    draw = Random(2)
    for _ in range(20):
        trees = likeliest_subtrees(random_tree(draw, 12))
        assert [len(tree) for tree in trees] == list(range(13))
        assert all({*small.nodes} < {*large.nodes} for small, large in pairwise(trees))
        depths, num_siblings = node_exponents(trees)
        rate = PRIOR_ACCEPTANCE_RATE
        chances = rate**depths * (1 - rate) ** num_siblings
        assert (np.diff(chances) <= 1e-12).all()


def test_tree_is_filled_level_by_level() -> None:
    """The fake model predicts the last token + 1; less likely ones are 10 higher each."""
    owner = NewRow(0, "r", [], 1, SamplingParams(), 0, (), [])
    rows = [DraftRow(0, owner, np.array([5]), 6, SMALL), DraftRow(1, owner, np.array([7]), 2)]
    levels: list[Any] = []

    def first_level(count: int) -> list[list[int]]:
        return [[int(row.tokens[-1]) + 1 + 10 * rank for rank in range(count)] for row in rows]

    def next_level(level: list[Any], tokens: list[list[int]], count: int) -> list[list[int]]:
        levels.append(sorted((node.row, node.node) for node in level))
        return [
            [tokens[node.row][node.node - 1] + 1 + 10 * rank for rank in range(count)]
            for node in level
        ]

    assert fill_trees(rows, first_level, next_level) == [[6, 7, 17, 18, 16, 17], [8, 9]]
    assert levels == [[(0, 1), (0, 5), (1, 1)], [(0, 3)]], "leaves are not computed"


def test_sampled_path_is_accepted() -> None:
    paths = _Paths(SMALL, "cpu")
    draft = torch.tensor([10, 11, 12, 13, 20, 21, 99])

    def longest(*sampled: int) -> tuple[list[int], int, int]:
        best, length = paths.longest(draft, torch.tensor(sampled))
        accepted = paths.nodes[best][: int(length)].tolist()
        return accepted, int(length), int(paths.num_verified[best, length])

    assert longest(9, 0, 0, 0, 0, 0, 0) == ([], 0, 2)
    assert longest(10, 9, 0, 13, 0, 0, 0) == ([1], 1, 3), (
        "a match after a rejected token does not count"
    )
    assert longest(10, 12, 0, 13, 0, 0, 0) == ([1, 3, 4], 3, 4)
    assert longest(20, 0, 0, 0, 0, 21, 0) == ([5, 6], 2, 3)


def test_controller_chooses_likeliest_nodes() -> None:
    trees = likeliest_subtrees(TokenTree.of([(0,), (1,), (2,), (0, 0), (0, 0, 0), (0, 1)]))
    depths, num_siblings = node_exponents(trees)
    controller = DraftLengthController(8, 6, depths=depths, num_siblings=num_siblings)
    for size in (2, 4, 14):
        for _ in range(4):
            controller.costs.add_decode_step(size, 1.0 + 0.1 * size)
    for _ in range(10):
        controller.add_verified(np.array([0, 1]), np.array([3, 3]), np.array([3, 0]))
    sure, unsure = controller.choose(np.arange(2), np.full(2, 6)).tolist()
    assert sure > unsure
    assert sure < 6, "siblings of nearly certain tokens do not pay"


def test_unprofitable_branches_fall_back_to_a_chain() -> None:
    """The three likeliest nodes of this tree are a chain; more nodes are branches."""
    depths, num_siblings = node_exponents(
        likeliest_subtrees(TokenTree.of([(0,), (1,), (2,), (0, 0), (0, 1), (1, 0), (0, 0, 0)]))
    )
    for branched_s, low, high in ((3.0, 1, 3), (1.3, 4, 7)):
        controller = DraftLengthController(1, 7, depths=depths, num_siblings=num_siblings)
        for size in range(1, 9):
            for _ in range(4):
                controller.costs.add_decode_step(
                    size, 1.0 + 0.01 * size if size <= 4 else branched_s
                )
        for _ in range(10):
            controller.add_verified(np.array([0]), np.array([2]), np.array([1]))
        assert low <= int(controller.choose(np.arange(1), np.full(1, 7))[0]) <= high


def test_methods_without_tree_support_are_rejected() -> None:
    with pytest.raises(
        EngineError, match="speculative_token_tree: got a tree with branches; the method ngram"
    ):
        LLM(
            speculative_config={"method": "ngram", "speculative_token_tree": "[(0,), (1,)]"},
            log_level="error",
        )


@pytest.mark.slow
def test_trees_reject_recurrent_models(tmp_path: Path) -> None:
    folder = make_checkpoint("Qwen3NextForCausalLM", tmp_path / "model", seed=1)
    config = {
        "method": "draft_model",
        "model": str(folder),
        "speculative_token_tree": "[(0,), (1,)]",
    }
    with pytest.raises(EngineError, match=r"cannot verify it, because .* has a RecurrentState"):
        LLM(
            str(folder),
            speculative_config=config,
            skip_tokenizer_init=True,
            max_model_len=64,
            log_level="error",
        )


VARIANTS: dict[str, dict[str, Any]] = {
    "default": {},
    "depth 2": {"async_scheduling": True},
    "two ranks": {"tensor_parallel_size": 2},
}


@pytest.mark.slow
@pytest.mark.parametrize("variant", VARIANTS)
def test_trees_keep_sampling_parameters(expected: list[Any], variant: str) -> None:
    config = {
        "method": "draft_model",
        "model": DEMO,
        "speculative_token_tree": TREE,
        "adaptive": False,
    }
    with open_llm(config, **VARIANTS[variant]) as llm:
        assert run(llm) == expected
        total = counted(llm)
        assert sum(total.accepted_per_position) > total.num_steps > 100
        check_scheduler(llm.core.scheduler)


@pytest.mark.slow
def test_grammars_hold_with_trees() -> None:
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
