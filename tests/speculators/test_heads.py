"""Heads that continue the model's hidden states: they change no token, and guess what their weights say."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import reference_heads
import torch
from mixed_requests import counted
from safetensors.torch import load_file

from builtin_plugins.speculators.chain import Chain
from builtin_plugins.speculators.medusa import Medusa
from builtin_plugins.speculators.mlp_speculator import MlpSpeculator
from core import LLM, SamplingParams
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
from tests.speculators.thirty_two import BASE, WAYS, answers


def guessed_like(llm: LLM, expected: list[Any]) -> None:
    assert answers(llm) == expected
    total = counted(llm)
    assert total.drafts > 100
    assert total.tokens > 2 * total.drafts
    llm.core.scheduler.check()


@pytest.fixture(scope="module")
def with_mtp(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[Path, list[Any]]]:
    """Return a function from architecture to a checkpoint with a layer for further tokens, and its answers."""
    root, known = tmp_path_factory.mktemp("mtp"), {}

    def of(architecture: str) -> tuple[Path, list[Any]]:
        if architecture not in known:
            alike = "Qwen2ForCausalLM" if architecture.startswith("MiMo") else architecture
            folder = make_checkpoint(alike, root / architecture, seed=1)
            add_layer_ahead(folder, architecture)
            with LLM(str(folder), **BASE) as llm:
                known[architecture] = folder, answers(llm)
        return known[architecture]

    return of


@pytest.mark.parametrize("way", [pytest.param(w, marks=[] if w == "as it is" else pytest.mark.slow) for w in WAYS])
@pytest.mark.parametrize(
    "architecture", [pytest.param(m, marks=[] if m.startswith("Deep") else pytest.mark.slow) for m in MTP]
)
def test_a_layer_for_further_tokens_changes_none(
    with_mtp: Callable[[str], tuple[Path, list[Any]]], architecture: str, way: str
) -> None:
    folder, expected = with_mtp(architecture)
    config = {"method": "mtp", "num_speculative_tokens": 3, "adaptive": False}
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
        speculators_config={"algorithm": "eagle3", "verifier": {"name_or_path": str(folder)}, "proposal_methods": []},
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
def test_what_is_missing_is_said(llama: tuple[Path, list[Any]], given: dict[str, Any], says: str) -> None:
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
    "way", [{}, pytest.param({"tensor_parallel_size": 2}, marks=pytest.mark.slow)], ids=["alone", "two ranks"]
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


def guesses_of(monkeypatch: pytest.MonkeyPatch, kind: Any, folder: Path, config: dict[str, Any]) -> Iterator[Any]:
    """Yield (known tokens, guesses) of some requests."""
    seen: list[tuple[list[int], list[int]]] = []
    drafts = kind.drafts

    def noted(self: Any, rows: Any) -> Any:
        found = drafts(self, rows)
        seen.extend((row.tokens.tolist(), draft) for row, draft in zip(rows, found, strict=True))
        return found

    monkeypatch.setattr(kind, "drafts", noted)
    with LLM(
        str(folder), speculative_config=config | {"adaptive": False}, **BASE | {"enable_prefix_caching": False}
    ) as llm:
        params = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True, detokenize=False)
        llm.generate(
            [{"prompt_token_ids": [3 * i + 1, *range(5, 9 + 4 * i)]} for i in range(4)], params, use_tqdm=False
        )
    assert len(seen) > 20
    assert sum(len(draft) >= 2 for _, draft in seen) > 15
    return iter(seen[::5])


@pytest.mark.parametrize("name", ["eagle", "eagle3"])
def test_chains_guess_what_the_published_formulas_do(
    llama: tuple[Path, list[Any]], heads: Mapping[str, Head], target: Any, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    method, head, tensors = heads[name]
    config = {"method": method, "model": str(head), "num_speculative_tokens": 3}
    for tokens, draft in guesses_of(monkeypatch, Chain, llama[0], config):
        states = target.states(tokens[:-1])
        if name == "eagle":
            hidden = states[-1]
        else:
            hidden = torch.nn.functional.linear(torch.cat([states[i] for i in (2, 3, 4)], -1), tensors["fc.weight"])
        step = getattr(reference_heads, name)
        assert draft == reference_heads.chained(step, target, tokens, hidden, len(draft), tensors)


def test_mimo_guesses_what_its_own_code_does(
    with_mtp: Callable[[str], tuple[Path, list[Any]]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    folder, _ = with_mtp("MiMoForCausalLM")
    plain = make_checkpoint("Qwen2ForCausalLM", tmp_path / "plain", seed=1)
    target, tensors = reference_heads.Target(plain), load_file(folder / "model.safetensors")
    tensors.pop("lm_head.weight", None)
    config = {"method": "mimo_mtp", "num_speculative_tokens": 3}
    for tokens, draft in guesses_of(monkeypatch, Chain, folder, config):
        hidden = target.states(tokens[:-1])[-1]
        wanted = reference_heads.chained(reference_heads.mimo, target, tokens, hidden, len(draft), tensors)
        assert draft == wanted


@pytest.mark.parametrize("name", ["medusa", "mlp_speculator", "tied"])
def test_heads_without_a_cache_guess_what_the_published_formulas_do(
    llama: tuple[Path, list[Any]], heads: Mapping[str, Head], target: Any, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    method, head, tensors = heads[name]
    kind = Medusa if name == "medusa" else MlpSpeculator
    config = {"method": method, "model": str(head), "num_speculative_tokens": 5}
    for tokens, draft in guesses_of(monkeypatch, kind, llama[0], config):
        hidden = target.states(tokens[:-1])[-1][-1]
        if name == "medusa":
            wanted = reference_heads.medusa(hidden, tensors, 3)
        else:
            tied = name == "tied"
            wanted = reference_heads.mlp_speculator(hidden, tokens[-1], tensors, 3, INNER, tied=tied)
        assert draft == wanted[: len(draft)]
