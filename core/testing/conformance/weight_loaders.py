"""What every weight loader must pass."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors.torch import load_file

from core.contracts.models import ModelSource
from core.errors import EngineError, ModelError
from core.testing.checkpoints import make_checkpoint

if TYPE_CHECKING:
    from core.testing.conformance import Subject


def check_yields_named_tensors_once(subject: Subject) -> None:
    """Names are unique texts, values tensors: the model fills a parameter from each."""
    seen: set[str] = set()
    for name, tensor in _read(subject):
        assert isinstance(name, str), (
            f"{subject.entry.name}: yields the name {name!r}; give a text."
        )
        assert name not in seen, f"{subject.entry.name}: yields {name!r} twice."
        assert isinstance(tensor, torch.Tensor), (
            f"{subject.entry.name}: yields {type(tensor).__name__}, no tensor."
        )
        seen.add(name)


def check_tensors_are_those_of_the_files(subject: Subject) -> None:
    """A loader of safetensors yields each tensor as it is stored."""
    with tempfile.TemporaryDirectory() as folder:
        loader = _open(subject, folder)
        held = load_file(Path(folder) / "model.safetensors")
        try:
            read = {name: tensor.clone() for name, tensor in loader.tensors()}
        except ModelError:
            return
    if held.keys().isdisjoint(read):
        return  # of another format
    assert read.keys() >= held.keys(), (
        f"{subject.entry.name}: leaves out {sorted(held.keys() - read.keys())[:3]}."
    )
    for name, tensor in held.items():
        same = read[name].dtype == tensor.dtype and torch.equal(read[name], tensor)
        assert same, f"{subject.entry.name}: {name!r} is not what the file holds."


def check_reading_again_gives_the_same(subject: Subject) -> None:
    """A restarted worker reads again and must compute the same."""
    first = dict(_read(subject))
    again = dict(_read(subject))
    assert first.keys() == again.keys(), (
        f"{subject.entry.name}: the second reading has other names."
    )
    for name, tensor in first.items():
        assert torch.equal(tensor, again[name]), (
            f"{subject.entry.name}: {name!r} differs on the second reading."
        )


def check_total_bytes_is_a_size(subject: Subject) -> None:
    """The progress bar needs a number; 0 says unknown."""
    with tempfile.TemporaryDirectory() as folder:
        total = _open(subject, folder).total_bytes()
    assert isinstance(total, int), (
        f"{subject.entry.name}: total_bytes is {total!r}; give an integer, 0 if unknown."
    )
    assert total >= 0, f"{subject.entry.name}: total_bytes is {total}; give 0 if unknown."


def check_a_folder_that_is_not_there_is_an_error_of_ours(subject: Subject) -> None:
    """What cannot be read is a `ModelError` naming the file, not a traceback of a library."""
    source = ModelSource("model", "A", None, path="/nonexistent/model")
    try:
        loader: Any = subject.target(source, subject.config)
        list(loader.tensors())
    except EngineError:
        return
    except Exception as error:
        raise AssertionError(
            f"{subject.entry.name}: a missing folder raises {type(error).__name__}; raise "
            "ModelError naming it."
        ) from error


def _read(subject: Subject) -> list[tuple[str, torch.Tensor]]:
    """Return what the loader yields for a tiny checkpoint; nothing when it refuses the format."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            return [(name, tensor.clone()) for name, tensor in _open(subject, folder).tensors()]
        except ModelError:
            return []


def _open(subject: Subject, folder: str) -> Any:
    """Return a loader of a tiny checkpoint, written as safetensors and as .pt, with the expected
    tensors
    if it takes them.
    """
    make_checkpoint("LlamaForCausalLM", folder, num_hidden_layers=1)
    torch.save({"a.weight": torch.ones(3, 4)}, Path(folder) / "model.pt")
    loader: Any = subject.target(
        ModelSource("tiny", "LlamaForCausalLM", None, path=folder), subject.config
    )
    if hasattr(loader, "expect"):
        loader.expect({"a.weight": (3, 4), "a.bias": (3,)})
    return loader
