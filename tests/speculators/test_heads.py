"""Heads that continue the model's hidden states: they change no token, and guess what their weights
say.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import reference_heads
import torch
from mixed_requests import counted
from safetensors.torch import load_file
from torch.nn import functional

from builtin_plugins.speculators.chain import Chain
from builtin_plugins.speculators.draft_model import DraftModel
from builtin_plugins.speculators.medusa import Medusa
from builtin_plugins.speculators.mlp_speculator import MlpSpeculator
from core import LLM, SamplingParams
from core.api import TokenTree
from core.errors import EngineError
from core.testing.checkpoints import make_checkpoint
from tests.speculators.random_heads import (
    CONFIG,
    INNER,
    MTP,
    Head,
    add_layer_ahead,
    change_config,
    write_head,
    write_heads,
)
from tests.speculators.thirty_two import BASE, TREE, WAYS, answers


def guessed_like(llm: LLM, expected: list[Any]) -> None:
    assert answers(llm) == expected
    total = counted(llm)
    assert total.drafts > 100
    assert total.tokens > 2 * total.drafts
    llm.core.scheduler.check()


@pytest.fixture(scope="module")
def with_mtp(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[Path, list[Any]]]:
    """Return a function from architecture to a checkpoint with a layer for further tokens, and its
    answers.
    """
    root = tmp_path_factory.mktemp("mtp")
    known = {}

    def of(architecture: str) -> tuple[Path, list[Any]]:
        if architecture not in known:
            alike = "Qwen2ForCausalLM" if architecture.startswith("MiMo") else architecture
            folder = make_checkpoint(alike, root / architecture, seed=1)
            add_layer_ahead(folder, architecture)
            with LLM(str(folder), **BASE) as llm:
                known[architecture] = folder, answers(llm)
        return known[architecture]

    return of


@pytest.mark.parametrize(
    "way", [pytest.param(w, marks=[] if w == "as it is" else pytest.mark.slow) for w in WAYS]
)
@pytest.mark.parametrize(
    "architecture",
    [pytest.param(m, marks=[] if m.startswith("Deep") else pytest.mark.slow) for m in MTP],
)
def test_a_layer_for_further_tokens_changes_none(
    with_mtp: Callable[[str], tuple[Path, list[Any]]], architecture: str, way: str
) -> None:
    folder, expected = with_mtp(architecture)
    config = {"method": "mtp", "num_speculative_tokens": 3, "adaptive": False}
    with LLM(str(folder), speculative_config=config, **BASE | WAYS[way]) as llm:
        guessed_like(llm, expected)


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
def test_a_layer_for_further_tokens_fills_trees(
    with_mtp: Callable[[str], tuple[Path, list[Any]]], way: str
) -> None:
    folder, expected = with_mtp("DeepseekV3ForCausalLM")
    config = {"method": "mtp", "speculative_token_tree": TREE, "adaptive": False}
    with LLM(str(folder), speculative_config=config, **BASE | WAYS[way]) as llm:
        guessed_like(llm, expected)


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Any]]:
    folder = make_checkpoint(
        "LlamaForCausalLM", tmp_path_factory.mktemp("llama") / "model", seed=1, num_hidden_layers=7
    )
    with LLM(str(folder), **BASE) as llm:
        return folder, answers(llm)


@pytest.fixture(scope="module")
def heads(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Head]:
    return write_heads(tmp_path_factory.mktemp("heads"))


def test_a_checkpoint_of_speculators_is_served_as_the_model_it_guesses_for(
    llama: tuple[Path, list[Any]], heads: Mapping[str, Head]
) -> None:
    (folder, expected), (_, head, _) = llama, heads["speculators"]
    change_config(
        head,
        speculators_config={
            "algorithm": "eagle3",
            "verifier": {"name_or_path": str(folder)},
            "proposal_methods": [],
        },
    )
    with LLM(str(head), **BASE) as llm:
        assert answers(llm) == expected
        assert counted(llm) is not None


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"method": "eagle"}, "needs a `model`"),
        ({"method": "mtp"}, "has no layer for further tokens"),
    ],
)
def test_what_is_missing_is_said(
    llama: tuple[Path, list[Any]], given: dict[str, Any], says: str
) -> None:
    with pytest.raises(EngineError, match=says):
        LLM(str(llama[0]), speculative_config=given, **BASE)


def test_a_head_of_another_model_is_refused(
    llama: tuple[Path, list[Any]], heads: Mapping[str, Head], tmp_path: Path
) -> None:
    _, _, tensors = heads["eagle"]
    head = write_head(tmp_path / "head", CONFIG | {"hidden_size": 32}, tensors)
    with pytest.raises(EngineError, match="a head of another model"):
        LLM(str(llama[0]), speculative_config={"method": "eagle", "model": str(head)}, **BASE)


HEADS = ("eagle", "eagle3", "medusa", "mlp_speculator", "tied")


@pytest.mark.parametrize(
    "way",
    [{}, pytest.param({"tensor_parallel_size": 2}, marks=pytest.mark.slow)],
    ids=["alone", "two ranks"],
)
@pytest.mark.parametrize("name", HEADS)
def test_heads_change_no_token(
    llama: tuple[Path, list[Any]], heads: Mapping[str, Head], name: str, way: dict[str, Any]
) -> None:
    folder, expected = llama
    method, head, _ = heads[name]
    config = {"method": method, "model": str(head), "num_speculative_tokens": 3, "adaptive": False}
    with LLM(str(folder), speculative_config=config, **BASE | way) as llm:
        guessed_like(llm, expected)


@pytest.fixture(scope="module")
def target(llama: tuple[Path, list[Any]]) -> Any:
    return reference_heads.Target(llama[0])


def guesses_of(
    monkeypatch: pytest.MonkeyPatch, kind: Any, folder: Path, config: dict[str, Any]
) -> Iterator[Any]:
    """Yield (known tokens, guesses, their tree) of some requests."""
    seen: list[tuple[list[int], list[int], TokenTree | None]] = []
    drafts = kind.drafts

    def noted(self: Any, rows: Any) -> Any:
        found = drafts(self, rows)
        seen.extend(
            (row.tokens.tolist(), draft, row.tree) for row, draft in zip(rows, found, strict=True)
        )
        return found

    monkeypatch.setattr(kind, "drafts", noted)
    with LLM(
        str(folder),
        speculative_config=config | {"adaptive": False},
        **BASE | {"enable_prefix_caching": False},
    ) as llm:
        params = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True, detokenize=False)
        llm.generate(
            [{"prompt_token_ids": [3 * i + 1, *range(5, 9 + 4 * i)]} for i in range(4)],
            params,
            use_tqdm=False,
        )
    assert len(seen) > 20
    assert sum(len(draft) >= 2 for _, draft, _ in seen) > 15
    return iter(seen[::5])


@pytest.mark.parametrize("name", ["eagle", "eagle3"])
def test_chains_guess_what_the_published_formulas_do(
    llama: tuple[Path, list[Any]],
    heads: Mapping[str, Head],
    target: Any,
    name: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    method, head, tensors = heads[name]
    config = {"method": method, "model": str(head), "num_speculative_tokens": 3}
    for tokens, draft, _ in guesses_of(monkeypatch, Chain, llama[0], config):
        states = target.states(tokens[:-1])
        if name == "eagle":
            hidden = states[-1]
        else:
            hidden = torch.nn.functional.linear(
                torch.cat([states[i] for i in (2, 3, 4)], -1), tensors["fc.weight"]
            )
        step = getattr(reference_heads, name)
        assert draft == reference_heads.chained(
            step, target, tokens, hidden, [0] * len(draft), tensors
        )


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(n, marks=[] if n == "eagle" else pytest.mark.slow)
        for n in ("draft_model", "eagle", "eagle3", "medusa")
    ],
)
def test_trees_hold_what_the_formulas_find_likely(
    llama: tuple[Path, list[Any]],
    heads: Mapping[str, Head],
    target: Any,
    name: str,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    """Each node is of its rank among what may follow the nodes before it."""
    kind: Any = {"medusa": Medusa, "draft_model": DraftModel}.get(name, Chain)
    if name == "draft_model":
        small = make_checkpoint("LlamaForCausalLM", tmp_path / "small", seed=2)
        target = reference_heads.Target(small)
        _, head, tensors = Head(name, small, {})
    else:
        _, head, tensors = heads[name]

    def wanted(tokens: list[int], ranks: tuple[int, ...]) -> int:
        if name == "draft_model":
            return reference_heads.model_itself(target, tokens, ranks)[-1]
        states = target.states(tokens[:-1])
        if name == "medusa":
            return reference_heads.medusa(states[-1][-1], tensors, ranks)[-1]
        hidden = states[-1]
        if name == "eagle3":
            hidden = torch.nn.functional.linear(
                torch.cat([states[i] for i in (2, 3, 4)], -1), tensors["fc.weight"]
            )
        return reference_heads.chained(
            getattr(reference_heads, name), target, tokens, hidden, ranks, tensors
        )[-1]

    nodes = [(0,), (1,), (2,), (0, 0), (0, 1), (1, 0), (0, 0, 0), (0, 1, 0), (0, 1, 1), (1, 0, 0)]
    config = {"method": name, "model": str(head), "speculative_token_tree": str(nodes)}
    filled = 0
    for tokens, draft, tree in guesses_of(monkeypatch, kind, llama[0], config):
        filled += tree is not None
        shape = tree or TokenTree.chain(len(draft))
        assert draft == [wanted(tokens, node) for node in shape.nodes]
    assert filled > 2


def test_mimo_guesses_what_its_own_code_does(
    with_mtp: Callable[[str], tuple[Path, list[Any]]],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    folder, _ = with_mtp("MiMoForCausalLM")
    plain = make_checkpoint("Qwen2ForCausalLM", tmp_path / "plain", seed=1)
    target = reference_heads.Target(plain)
    tensors = load_file(folder / "model.safetensors")
    tensors.pop("lm_head.weight", None)
    config = {"method": "mimo_mtp", "num_speculative_tokens": 3}
    for tokens, draft, _ in guesses_of(monkeypatch, Chain, folder, config):
        hidden = target.states(tokens[:-1])[-1]
        wanted = reference_heads.chained(
            reference_heads.mimo, target, tokens, hidden, [0] * len(draft), tensors
        )
        assert draft == wanted


def test_heads_of_medusa_may_share_that_of_the_model(
    llama: tuple[Path, list[Any]],
    heads: Mapping[str, Head],
    target: Any,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    """They have two layers each, the second without a bias."""
    _, _, tensors = heads["medusa"]
    own = {name: tensor for name, tensor in tensors.items() if ".0.linear" in name}
    own |= {f"{i}.1.linear.weight": tensors[f"{i}.0.linear.weight"].flip(0) for i in range(3)}
    head = write_head(tmp_path / "head", {"model_type": "medusa"}, own)
    config = {"method": "medusa", "model": str(head), "num_speculative_tokens": 3}
    for tokens, draft, _ in guesses_of(monkeypatch, Medusa, llama[0], config):
        hidden = target.states(tokens[:-1])[-1][-1]
        wanted = []
        for i in range(3):
            x = hidden + functional.silu(
                functional.linear(hidden, own[f"{i}.0.linear.weight"], own[f"{i}.0.linear.bias"])
            )
            x = x + functional.silu(functional.linear(x, own[f"{i}.1.linear.weight"]))
            wanted.append(int(functional.linear(x, target.head).argmax()))
        assert draft == wanted[: len(draft)]


@pytest.mark.parametrize("name", ["medusa", "mlp_speculator", "tied"])
def test_heads_without_a_cache_guess_what_the_published_formulas_do(
    llama: tuple[Path, list[Any]],
    heads: Mapping[str, Head],
    target: Any,
    name: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    method, head, tensors = heads[name]
    kind = Medusa if name == "medusa" else MlpSpeculator
    config = {"method": method, "model": str(head), "num_speculative_tokens": 5}
    for tokens, draft, _ in guesses_of(monkeypatch, kind, llama[0], config):
        hidden = target.states(tokens[:-1])[-1][-1]
        if name == "medusa":
            wanted = reference_heads.medusa(hidden, tensors, [0] * 3)
        else:
            tied = name == "tied"
            wanted = reference_heads.mlp_speculator(
                hidden, tokens[-1], tensors, 3, INNER, tied=tied
            )
        assert draft == wanted[: len(draft)]
