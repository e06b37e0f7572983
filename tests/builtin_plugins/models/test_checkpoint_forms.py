"""Checkpoints in the forms that training and conversion tools leave: read as transformers does."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from core.errors import ModelError
from core.model_spec.parallel import Pipeline
from core.testing.one_sequence import Session

Tensors = dict[str, torch.Tensor]
IDS = list(range(20, 44))
TOLERANCE = 1e-3
FIRST = "model-00001-of-00002.safetensors"
SECOND = "model-00002-of-00002.safetensors"

TIED = ("Qwen3ForCausalLM", "GPT2LMHeadModel", "GemmaForCausalLM")
UNTIED = ("LlamaForCausalLM", "MixtralForCausalLM", "GPTNeoXForCausalLM")
EMBEDDINGS = ("model.embed_tokens.weight", "transformer.wte.weight", "gpt_neox.embed_in.weight")


@pytest.fixture
def folder_of(checkpoint: Callable[[str], Path], tmp_path: Path) -> Callable[[str], Path]:
    """Return a function from architecture to a checkpoint that a test may change."""

    def copy(architecture: str) -> Path:
        return Path(shutil.copytree(checkpoint(architecture), tmp_path / architecture))

    return copy


@pytest.fixture
def our_logits(open_model: Callable[..., Any]) -> Callable[[Path], torch.Tensor]:
    """Return a function from a checkpoint to the engine's logits."""
    return lambda folder: Session(open_model(folder)).step(IDS)


def check(folder: Path, ours: Callable[[Path], Any], by_transformers: Callable[[Path], Any]) -> Any:
    expected = by_transformers(folder)(torch.tensor([IDS])).logits[0].log_softmax(-1)
    found = ours(folder)
    torch.testing.assert_close(found, expected, rtol=0, atol=TOLERANCE)
    return found


def change(folder: Path, edit: Callable[[Tensors], Tensors]) -> None:
    tensors = load_file(folder / "model.safetensors")
    changed = edit({name: tensor.clone() for name, tensor in tensors.items()})
    save_file(changed, folder / "model.safetensors", metadata={"format": "pt"})


def tie(folder: Path) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "tie_word_embeddings": True}))


def embedding_of(tensors: Tensors) -> torch.Tensor:
    return next(tensors[name] for name in EMBEDDINGS if name in tensors)


@pytest.mark.parametrize("architecture", [*TIED, *UNTIED[:2]])
@pytest.mark.parametrize("differs", [True, False])
def test_head_next_to_tied_embeddings_is_tied_only_if_equal(
    architecture: str,
    differs: bool,
    folder_of: Callable[[str], Path],
    our_logits: Callable[[Path], torch.Tensor],
    by_transformers: Callable[[Path], Any],
) -> None:
    folder = folder_of(architecture)
    tie(folder)

    def with_head(tensors: Tensors) -> Tensors:
        head = embedding_of(tensors).clone()
        return {**tensors, "lm_head.weight": head.flip(0).contiguous() if differs else head}

    change(folder, with_head)
    check(folder, our_logits, by_transformers)


def with_head_only(tensors: Tensors) -> Tensors:
    others = {name: tensor for name, tensor in tensors.items() if name not in EMBEDDINGS}
    return {**others, "lm_head.weight": embedding_of(tensors)}


@pytest.mark.parametrize("architecture", [*TIED, *UNTIED[:2]])
def test_tied_head_without_an_embedding_is_the_embedding_too(
    architecture: str,
    folder_of: Callable[[str], Path],
    our_logits: Callable[[Path], torch.Tensor],
    by_transformers: Callable[[Path], Any],
) -> None:
    folder = folder_of(architecture)
    tie(folder)
    change(folder, with_head_only)
    check(folder, our_logits, by_transformers)


def test_head_without_an_embedding_is_an_error_unless_tied(
    folder_of: Callable[[str], Path], our_logits: Callable[[Path], torch.Tensor]
) -> None:
    folder = folder_of("LlamaForCausalLM")
    change(folder, with_head_only)
    with pytest.raises(ModelError, match=r"1 missing tensors: model\.embed_tokens"):
        our_logits(folder)


@pytest.mark.parametrize("rank", [0, 1])
def test_every_pipeline_stage_reads_a_tied_head_without_an_embedding(
    rank: int, folder_of: Callable[[str], Path], open_model: Callable[..., Any]
) -> None:
    folder = folder_of("Qwen3ForCausalLM")
    change(folder, with_head_only)
    model = open_model(folder, pipeline=Pipeline(2, rank))
    stored = load_file(folder / "model.safetensors")["lm_head.weight"]
    rows, width = stored.shape
    found = model.embed(torch.arange(rows)) if rank == 0 else model.head(torch.eye(width)).T
    torch.testing.assert_close(found, stored, rtol=0, atol=1e-6)


@pytest.mark.parametrize("architecture", [*TIED, *UNTIED])
def test_names_may_lack_the_base_models_prefix(
    architecture: str,
    folder_of: Callable[[str], Path],
    our_logits: Callable[[Path], torch.Tensor],
    by_transformers: Callable[[Path], Any],
) -> None:
    folder = folder_of(architecture)
    prefixes = ("model.", "transformer.", "gpt_neox.")

    def without(tensors: Tensors) -> Tensors:
        heads = {name for name in tensors if not name.startswith(prefixes)}
        return {
            name if name in heads else name.partition(".")[2]: tensor
            for name, tensor in tensors.items()
        }

    change(folder, without)
    check(folder, our_logits, by_transformers)


@pytest.mark.parametrize("architecture", [TIED[0], UNTIED[0]])
def test_value_head_of_training_is_ignored(
    architecture: str,
    folder_of: Callable[[str], Path],
    our_logits: Callable[[Path], torch.Tensor],
    by_transformers: Callable[[Path], Any],
) -> None:
    folder = folder_of(architecture)
    extra = {"v_head.summary.weight": torch.ones(1, 8), "v_head.summary.bias": torch.ones(1)}
    change(folder, lambda tensors: {**tensors, **extra})
    check(folder, our_logits, by_transformers)


def shard(folder: Path, stale: Callable[[Tensors, Path], None]) -> None:
    """Write two files with an index, in which `stale` then changes something."""
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    names = sorted(tensors)
    half = len(names) // 2
    located = {}
    for file, part in ((FIRST, names[:half]), (SECOND, names[half:])):
        located |= dict.fromkeys(part, file)
        own = {name: tensors[name].clone() for name in part}
        save_file(own, folder / file, metadata={"format": "pt"})
    index = {"metadata": {"total_size": 1}, "weight_map": located}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    stale(tensors, folder)


def stale_copy(tensors: Tensors, file: Path, name: str) -> None:
    held = {each: tensor.clone() for each, tensor in load_file(file).items()}
    save_file({**held, name: torch.zeros_like(tensors[name])}, file, metadata={"format": "pt"})


@pytest.mark.parametrize("file", [FIRST, SECOND])
def test_index_decides_between_two_copies_of_a_tensor(
    file: str, folder_of: Callable[[str], Path], our_logits: Callable[[Path], torch.Tensor]
) -> None:
    folder = folder_of("LlamaForCausalLM")
    expected = our_logits(folder)

    def stale(tensors: Tensors, folder: Path) -> None:
        names = sorted(tensors)
        stale_copy(tensors, folder / file, names[-1] if file == FIRST else names[0])

    shard(folder, stale)
    assert torch.equal(our_logits(folder), expected)


def test_tensor_in_another_file_than_the_index_names_is_found(
    folder_of: Callable[[str], Path],
    our_logits: Callable[[Path], torch.Tensor],
    by_transformers: Callable[[Path], Any],
) -> None:
    folder = folder_of("LlamaForCausalLM")

    def swapped(tensors: Tensors, folder: Path) -> None:
        path = folder / "model.safetensors.index.json"
        index = json.loads(path.read_text())
        other = {FIRST: SECOND, SECOND: FIRST}
        index["weight_map"] = {name: other[file] for name, file in index["weight_map"].items()}
        path.write_text(json.dumps(index))

    shard(folder, swapped)
    check(folder, our_logits, by_transformers)


@pytest.mark.parametrize(
    "file", ["config.json", "generation_config.json", "model.safetensors.index.json"]
)
def test_byte_order_mark_of_a_json_file_is_skipped(
    file: str, folder_of: Callable[[str], Path], our_logits: Callable[[Path], torch.Tensor]
) -> None:
    folder = folder_of("LlamaForCausalLM")
    expected = our_logits(folder)
    shard(folder, lambda tensors, folder: None)
    path = folder / file
    path.write_bytes(b"\xef\xbb\xbf" + (path.read_bytes() if path.exists() else b"{}"))
    assert torch.equal(our_logits(folder), expected)
