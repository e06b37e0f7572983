"""Heads over the target's hidden states: unchanged tokens, and drafts as in the reference."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch.nn import functional

from builtin_plugins.speculators.api import TokenTree
from builtin_plugins.speculators.chain import ChainSpeculator
from builtin_plugins.speculators.draft_model import DraftModel
from builtin_plugins.speculators.medusa import Medusa
from builtin_plugins.speculators.mlp_speculator import MlpSpeculator
from core import LLM, SamplingParams
from core.errors import EngineError
from core.testing.checkpoints import make_checkpoint
from core.testing.invariants import check_scheduler
from tests.builtin_plugins.speculators import reference_heads
from tests.builtin_plugins.speculators.large_batch import BASE, TREE, VARIANTS, answers
from tests.builtin_plugins.speculators.mixed_requests import counted
from tests.builtin_plugins.speculators.random_heads import (
    CONFIG,
    INNER,
    MTP,
    Head,
    add_mtp_layer,
    change_config,
    write_head,
    write_heads,
)


def check_speculation(llm: LLM, expected: list[Any]) -> None:
    assert answers(llm) == expected
    total = counted(llm)
    assert total.num_steps > 100
    assert total.num_draft_tokens > 2 * total.num_steps
    check_scheduler(llm.core.scheduler)


@pytest.fixture(scope="module")
def with_mtp(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[Path, list[Any]]]:
    """Return a function from an architecture to a checkpoint with an MTP layer, and its tokens."""
    root = tmp_path_factory.mktemp("mtp")
    known = {}

    def make(architecture: str) -> tuple[Path, list[Any]]:
        if architecture not in known:
            alike = "Qwen2ForCausalLM" if architecture.startswith("MiMo") else architecture
            folder = make_checkpoint(alike, root / architecture, seed=1)
            add_mtp_layer(folder, architecture)
            with LLM(str(folder), **BASE) as llm:
                known[architecture] = folder, answers(llm)
        return known[architecture]

    return make


@pytest.mark.parametrize(
    "variant", [pytest.param(w, marks=[] if w == "default" else pytest.mark.slow) for w in VARIANTS]
)
@pytest.mark.parametrize(
    "architecture",
    [pytest.param(m, marks=[] if m.startswith("DeepseekV3F") else pytest.mark.slow) for m in MTP],
)
def test_mtp_changes_no_tokens(
    with_mtp: Callable[[str], tuple[Path, list[Any]]], architecture: str, variant: str
) -> None:
    folder, expected = with_mtp(architecture)
    config = {"method": "mtp", "num_speculative_tokens": 3, "adaptive": False}
    with LLM(str(folder), speculative_config=config, **BASE | VARIANTS[variant]) as llm:
        check_speculation(llm, expected)


@pytest.mark.slow
@pytest.mark.parametrize("variant", VARIANTS)
def test_mtp_fills_trees(with_mtp: Callable[[str], tuple[Path, list[Any]]], variant: str) -> None:
    folder, expected = with_mtp("DeepseekV3ForCausalLM")
    config = {"method": "mtp", "speculative_token_tree": TREE, "adaptive": False}
    with LLM(str(folder), speculative_config=config, **BASE | VARIANTS[variant]) as llm:
        check_speculation(llm, expected)


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


def test_speculators_checkpoint_serves_its_verifier(
    llama: tuple[Path, list[Any]], heads: Mapping[str, Head]
) -> None:
    folder, expected = llama
    _, head, _ = heads["speculators"]
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
    ("given", "message"),
    [
        ({"method": "eagle"}, "needs a `model`"),
        ({"method": "mtp"}, "which has no MTP layer"),
    ],
)
def test_missing_head_files_are_rejected(
    llama: tuple[Path, list[Any]], given: dict[str, Any], message: str
) -> None:
    with pytest.raises(EngineError, match=message):
        LLM(str(llama[0]), speculative_config=given, **BASE)


def test_head_of_another_model_is_rejected(
    llama: tuple[Path, list[Any]], heads: Mapping[str, Head], tmp_path: Path
) -> None:
    _, _, tensors = heads["eagle"]
    head = write_head(tmp_path / "head", CONFIG | {"hidden_size": 32}, tensors)
    with pytest.raises(EngineError, match="Use a head of this model"):
        LLM(str(llama[0]), speculative_config={"method": "eagle", "model": str(head)}, **BASE)


HEADS = ("eagle", "eagle3", "medusa", "mlp_speculator", "tied")


@pytest.mark.parametrize(
    "options",
    [{}, pytest.param({"tensor_parallel_size": 2}, marks=pytest.mark.slow)],
    ids=["one rank", "two ranks"],
)
@pytest.mark.parametrize("name", HEADS)
def test_heads_change_no_tokens(
    llama: tuple[Path, list[Any]], heads: Mapping[str, Head], name: str, options: dict[str, Any]
) -> None:
    folder, expected = llama
    method, head, _ = heads[name]
    config = {"method": method, "model": str(head), "num_speculative_tokens": 3, "adaptive": False}
    with LLM(str(folder), speculative_config=config, **BASE | options) as llm:
        check_speculation(llm, expected)


@pytest.fixture(scope="module")
def target(llama: tuple[Path, list[Any]]) -> Any:
    return reference_heads.Target(llama[0])


def drafts_of(
    monkeypatch: pytest.MonkeyPatch, kind: Any, folder: Path, config: dict[str, Any]
) -> Iterator[Any]:
    """Yield (known tokens, draft, tree) of some requests."""
    seen: list[tuple[list[int], list[int], TokenTree | None]] = []
    propose = kind.propose

    def recorded(self: Any, rows: Any) -> Any:
        found = propose(self, rows)
        seen.extend(
            (row.tokens.tolist(), draft, row.tree) for row, draft in zip(rows, found, strict=True)
        )
        return found

    monkeypatch.setattr(kind, "propose", recorded)
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
def test_chain_heads_match_reference(
    llama: tuple[Path, list[Any]],
    heads: Mapping[str, Head],
    target: Any,
    name: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    method, head, tensors = heads[name]
    config = {"method": method, "model": str(head), "num_speculative_tokens": 3}
    for tokens, draft, _ in drafts_of(monkeypatch, ChainSpeculator, llama[0], config):
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
def test_tree_heads_match_reference(
    llama: tuple[Path, list[Any]],
    heads: Mapping[str, Head],
    target: Any,
    name: str,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    """Each node is the token of its rank after the preceding nodes."""
    kind: Any = {"medusa": Medusa, "draft_model": DraftModel}.get(name, ChainSpeculator)
    if name == "draft_model":
        small = make_checkpoint("LlamaForCausalLM", tmp_path / "small", seed=2)
        target = reference_heads.Target(small)
        _, head, tensors = Head(name, small, {})
    else:
        _, head, tensors = heads[name]

    def expected(tokens: list[int], ranks: tuple[int, ...]) -> int:
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
    for tokens, draft, tree in drafts_of(monkeypatch, kind, llama[0], config):
        filled += tree is not None
        shape = tree or TokenTree.chain(len(draft))
        assert draft == [expected(tokens, node) for node in shape.nodes]
    assert filled > 2


def test_mimo_mtp_matches_reference(
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
    for tokens, draft, _ in drafts_of(monkeypatch, ChainSpeculator, folder, config):
        hidden = target.states(tokens[:-1])[-1]
        expected = reference_heads.chained(
            reference_heads.mimo, target, tokens, hidden, [0] * len(draft), tensors
        )
        assert draft == expected


def test_medusa_heads_may_share_the_target_head(
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
    for tokens, draft, _ in drafts_of(monkeypatch, Medusa, llama[0], config):
        hidden = target.states(tokens[:-1])[-1][-1]
        expected = []
        for i in range(3):
            x = hidden + functional.silu(
                functional.linear(hidden, own[f"{i}.0.linear.weight"], own[f"{i}.0.linear.bias"])
            )
            x = x + functional.silu(functional.linear(x, own[f"{i}.1.linear.weight"]))
            expected.append(int(functional.linear(x, target.head).argmax()))
        assert draft == expected[: len(draft)]


@pytest.mark.parametrize("name", ["medusa", "mlp_speculator", "tied"])
def test_cacheless_heads_match_reference(
    llama: tuple[Path, list[Any]],
    heads: Mapping[str, Head],
    target: Any,
    name: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    method, head, tensors = heads[name]
    kind = Medusa if name == "medusa" else MlpSpeculator
    config = {"method": method, "model": str(head), "num_speculative_tokens": 5}
    for tokens, draft, _ in drafts_of(monkeypatch, kind, llama[0], config):
        hidden = target.states(tokens[:-1])[-1][-1]
        if name == "medusa":
            expected = reference_heads.medusa(hidden, tensors, [0] * 3)
        else:
            tied = name == "tied"
            expected = reference_heads.mlp_speculator(
                hidden, tokens[-1], tensors, 3, INNER, tied=tied
            )
        assert draft == expected[: len(draft)]
