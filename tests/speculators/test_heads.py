"""Heads that continue the model's hidden states: they change no token, and guess what their weights say."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from random import Random
from typing import Any

import pytest
import reference_heads
import torch
from mixed_requests import counted
from safetensors.torch import load_file, save_file

from builtin_plugins.speculators.chain import Chain
from builtin_plugins.speculators.medusa import Medusa
from builtin_plugins.speculators.mlp_speculator import MlpSpeculator
from core import LLM, SamplingParams
from core.errors import EngineError
from core.testing.checkpoints import VOCAB, make_checkpoint
from tests.speculators.thirty_two import BASE, WAYS


def answers(llm: LLM, rounds: int = 2) -> list[tuple[int, ...]]:
    """Return greedy tokens of 32 requests, some of which begin alike; the second time they are found in the cache."""
    draw = Random(3)
    shared = [draw.randrange(VOCAB - 3) for _ in range(40)]
    prompts = [
        shared[: 8 * (i % 6)] + [draw.randrange(VOCAB - 3) for _ in range(2 + draw.randrange(30))] for i in range(32)
    ]
    params = [
        SamplingParams(temperature=0, max_tokens=4 + draw.randrange(30), ignore_eos=True, detokenize=False)
        for _ in prompts
    ]
    jobs = [{"prompt_token_ids": prompt} for prompt in prompts]
    outputs = [o for _ in range(rounds) for o in llm.generate(jobs, params, use_tqdm=False)]
    assert not any(o.error for o in outputs), [o.error for o in outputs if o.error]
    return [tuple(o.outputs[0].token_ids) for o in outputs]


def change_config(folder: Path, **fields: Any) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | fields))


def add_tensors(folder: Path, shapes: Mapping[str, tuple[int, ...]], **values: torch.Tensor) -> None:
    """Add random tensors to a checkpoint; norms are near one."""
    file = folder / "model.safetensors"
    generator = torch.Generator().manual_seed(5)
    made = {
        name: torch.randn(shape, generator=generator) * 0.2 + (len(shape) == 1 and "norm" in name)
        for name, shape in shapes.items()
    }
    save_file({**load_file(file), **made, **values}, file, metadata={"format": "pt"})


def guessed_like(llm: LLM, expected: list[Any]) -> None:
    assert answers(llm) == expected
    total = counted(llm)
    assert total.drafts > 100
    assert total.tokens > 2 * total.drafts
    llm.core.scheduler.check()


def mtp_shapes(folder: Path) -> Mapping[str, tuple[int, ...]]:
    """Return what the layer for further tokens of a checkpoint wants."""
    found: dict[str, tuple[int, ...]] = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            "builtin_plugins.speculators.heads.Heads._fill", lambda self, weights, *_: found.update(weights.shapes())
        )
        with LLM(str(folder), speculative_config={"method": "mtp"}, **BASE):
            pass
    return found


MTP = {
    "DeepseekV3ForCausalLM": {"num_nextn_predict_layers": 1},
    "Glm4MoeForCausalLM": {"num_nextn_predict_layers": 1},
    "Qwen3NextForCausalLM": {},
    "Ernie4_5_MoeForCausalLM": {"num_nextn_predict_layers": 1},
    "MiMoForCausalLM": {"num_nextn_predict_layers": 1, "architectures": ["MiMoForCausalLM"]},
}


@pytest.fixture(scope="module")
def with_mtp(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[Path, list[Any]]]:
    """Return a function from architecture to a checkpoint with a layer for further tokens, and its answers."""
    root, known = tmp_path_factory.mktemp("mtp"), {}

    def of(architecture: str) -> tuple[Path, list[Any]]:
        if architecture not in known:
            alike = "Qwen2ForCausalLM" if architecture.startswith("MiMo") else architecture
            folder = make_checkpoint(alike, root / architecture, seed=1)
            change_config(folder, **MTP[architecture])
            add_tensors(folder, mtp_shapes(folder))
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


HIDDEN, WIDE = 64, 96
LAYER = {
    "self_attn.q_proj.weight": (64, HIDDEN),
    "self_attn.k_proj.weight": (32, HIDDEN),
    "self_attn.v_proj.weight": (32, HIDDEN),
    "self_attn.o_proj.weight": (HIDDEN, 64),
    "mlp.gate_proj.weight": (WIDE, HIDDEN),
    "mlp.up_proj.weight": (WIDE, HIDDEN),
    "mlp.down_proj.weight": (HIDDEN, WIDE),
    "post_attention_layernorm.weight": (HIDDEN,),
}
CONFIG = {
    "architectures": ["AnyHead"],
    "model_type": "llama",
    "vocab_size": VOCAB,
    "hidden_size": HIDDEN,
    "intermediate_size": WIDE,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "num_hidden_layers": 1,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "max_position_embeddings": 512,
}
FEWER = 50


def reads_both(name: str, shape: tuple[int, ...]) -> tuple[int, ...]:
    return (shape[0], 2 * HIDDEN) if name.split(".")[1][:1] in "qkv" and "attn" in name else shape


EAGLE = {"fc.weight": (HIDDEN, 2 * HIDDEN), **{f"layers.0.{name}": shape for name, shape in LAYER.items()}}
EAGLE3 = {
    "fc.weight": (HIDDEN, 3 * HIDDEN),
    "norm.weight": (HIDDEN,),
    "midlayer.input_layernorm.weight": (HIDDEN,),
    "midlayer.hidden_norm.weight": (HIDDEN,),
    "lm_head.weight": (FEWER, HIDDEN),
    **{f"midlayer.{name}": reads_both(name, shape) for name, shape in LAYER.items()},
}
MEDUSA = {
    **{f"{i}.0.linear.weight": (HIDDEN, HIDDEN) for i in range(3)},
    **{f"{i}.0.linear.bias": (HIDDEN,) for i in range(3)},
    **{f"{i}.1.weight": (VOCAB, HIDDEN) for i in range(3)},
}
INNER = 48


def mlp_shapes(*, tied: bool) -> dict[str, tuple[int, ...]]:
    steps, products = (1, 2) if tied else (3, 3)
    named = {f"proj.{i}.weight": (INNER, INNER if i else HIDDEN) for i in range(products)}
    for i in range(steps):
        named |= {f"emb.{i}.weight": (VOCAB, INNER), f"head.{i}.weight": (VOCAB, INNER)}
        named |= {f"ln.{i}.weight": (INNER,), f"ln.{i}.bias": (INNER,)}
    return {f"speculator.{name}": shape for name, shape in named.items()}


def random_tensors(shapes: Mapping[str, tuple[int, ...]]) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(5)
    return {
        name: torch.randn(shape, generator=generator) * 0.2 + (len(shape) == 1 and ("norm" in name or "ln" in name))
        for name, shape in shapes.items()
    }


def write_head(folder: Path, config: Mapping[str, Any], tensors: Mapping[str, torch.Tensor]) -> Path:
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    save_file(dict(tensors), folder / "model.safetensors", metadata={"format": "pt"})
    return folder


MLP_CONFIG = {"n_predict": 3, "vocab_size": VOCAB, "emb_dim": HIDDEN, "inner_dim": INNER, "scale_input": True}


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Any]]:
    folder = make_checkpoint(
        "LlamaForCausalLM", tmp_path_factory.mktemp("llama") / "model", seed=1, num_hidden_layers=7
    )
    with LLM(str(folder), **BASE) as llm:
        return folder, answers(llm)


@pytest.fixture(scope="module")
def heads(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, tuple[str, Path, Mapping[str, torch.Tensor]]]:
    """Return heads by name: their method, folder and tensors."""
    root = tmp_path_factory.mktemp("heads")
    distances = torch.arange(FEWER) % 3 + torch.arange(FEWER)  # to every second token or so
    third = {"speculators_model_type": "eagle3", "transformer_layer_config": CONFIG, "draft_vocab_size": FEWER}
    made = {
        "eagle": ("eagle", CONFIG, random_tensors(EAGLE)),
        "eagle3": ("eagle3", CONFIG, {**random_tensors(EAGLE3), "d2t": distances}),
        "speculators": ("", {"speculators_config": {"algorithm": "eagle3"}, **third}, {**random_tensors(EAGLE3), "d2t": distances}),
        "medusa": ("medusa", {"model_type": "medusa", "medusa_num_heads": 3}, random_tensors(MEDUSA)),
        "mlp_speculator": ("mlp_speculator", {"model_type": "mlp_speculator", **MLP_CONFIG}, random_tensors(mlp_shapes(tied=False))),
        "tied": ("mlp_speculator", {**MLP_CONFIG, "tie_weights": True}, random_tensors(mlp_shapes(tied=True))),
    }  # fmt: skip
    return {
        name: (method, write_head(root / name, config, tensors), tensors)
        for name, (method, config, tensors) in made.items()
    }


def test_a_checkpoint_of_speculators_is_served_as_the_model_it_guesses_for(
    llama: tuple[Path, list[Any]], heads: Mapping[str, Any]
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
    llama: tuple[Path, list[Any]], heads: Mapping[str, Any], tmp_path: Path
) -> None:
    _, _, tensors = heads["eagle"]
    head = write_head(tmp_path / "head", CONFIG | {"hidden_size": 32}, tensors)
    with pytest.raises(EngineError, match="a head of another model"):
        LLM(str(llama[0]), speculative_config={"method": "eagle", "model": str(head)}, **BASE)


HEADS = ("eagle", "eagle3", "medusa", "mlp_speculator", "tied")


@pytest.mark.parametrize("way", [pytest.param(w, marks=[] if w == "as it is" else pytest.mark.slow) for w in WAYS])
@pytest.mark.parametrize("name", HEADS)
def test_heads_change_no_token(llama: tuple[Path, list[Any]], heads: Mapping[str, Any], name: str, way: str) -> None:
    folder, expected = llama
    method, head, _ = heads[name]
    config = {"method": method, "model": str(head), "num_speculative_tokens": 3, "adaptive": False}
    with LLM(str(folder), speculative_config=config, **BASE | WAYS[way]) as llm:
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
    with LLM(str(folder), speculative_config=config | {"adaptive": False}, **BASE, enable_prefix_caching=False) as llm:
        params = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True, detokenize=False)
        llm.generate(
            [{"prompt_token_ids": [3 * i + 1, *range(5, 9 + 4 * i)]} for i in range(4)], params, use_tqdm=False
        )
    assert len(seen) > 20
    assert sum(len(draft) >= 2 for _, draft in seen) > 15
    return iter(seen[::5])


@pytest.mark.parametrize("name", ["eagle", "eagle3"])
def test_chains_guess_what_the_published_formulas_do(
    llama: tuple[Path, list[Any]], heads: Mapping[str, Any], target: Any, name: str, monkeypatch: pytest.MonkeyPatch
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
    llama: tuple[Path, list[Any]], heads: Mapping[str, Any], target: Any, name: str, monkeypatch: pytest.MonkeyPatch
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
