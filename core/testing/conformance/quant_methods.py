"""What every quantization method must pass."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from core.model_spec.parallel import ParallelGroup
from core.model_spec.quant_method import QuantMethod
from core.models.layers.linear import Linear, Slice
from core.models.layers.weights import WeightMap
from core.plugin.entry import construct
from core.testing.conformance.examples import stated
from core.testing.one_sequence import plain_context

if TYPE_CHECKING:
    from core.testing.conformance import Subject

CONTRACT = QuantMethod


def check_name_is_the_entry_s(subject: Subject) -> None:
    """`--quantization NAME` and the checkpoint's `quant_method` find it by one name."""
    name = _make(subject).name
    assert name == subject.entry.name, (
        f"{subject.entry.name}: the method calls itself {name!r}; use one name."
    )


def check_every_layer_gets_its_own_method(subject: Subject) -> None:
    """A method keeps what belongs to one layer, so two layers never share one."""
    method = _make(subject)
    first = method.linear("model.layers.0.a")
    second = method.linear("model.layers.0.b")
    assert first is not second, (
        f"{subject.entry.name}: linear() returns one object twice; return a fresh one."
    )


def check_suffixes_are_named(subject: Subject) -> None:
    """The engine expects exactly these tensors of a layer in the checkpoint."""
    suffixes = _make(subject).linear("model.layers.0.a").suffixes
    good = (
        isinstance(suffixes, tuple)
        and suffixes
        and all(isinstance(suffix, str) for suffix in suffixes)
    )
    assert good, f"{subject.entry.name}: suffixes are {suffixes!r}; give a tuple of texts."
    assert "bias" not in suffixes, (
        f"{subject.entry.name}: the layer itself keeps `bias`; leave it out."
    )


def check_fused_slices_multiply_like_their_weights(subject: Subject) -> None:
    """A method that reads plain weights gives their product, slice by slice, with and without
    tokens.
    """
    if _make(subject).linear("a").suffixes != ("weight",):
        return
    weights = WeightMap()
    generator = torch.Generator().manual_seed(0)
    context = replace(plain_context(), quant=_make(subject))
    layer = Linear(
        context, weights, "a", 64, [Slice("gate", 32, "a.gate"), Slice("up", 96, "a.up")]
    )
    gate = torch.randn(32, 64, generator=generator)
    up = torch.randn(96, 64, generator=generator)
    weights.load([("a.gate.weight", gate), ("a.up.weight", up)])
    for num_tokens in (0, 1, 5):
        x = torch.randn(num_tokens, 64, generator=generator)
        expected = x @ torch.cat((gate, up)).T
        found = layer(x)
        assert found.shape == expected.shape, (
            f"{subject.entry.name}: the product has shape {tuple(found.shape)}."
        )
        error = (found - expected).norm() / expected.norm().clamp(min=1e-6)
        limit = _max_error(subject)
        assert error <= limit, (
            f"{subject.entry.name}: the product is off by {error:.2%} of its size, more than "
            f"{limit:.2%}."
        )


def check_ranks_load_their_parts_of_whole_tensors(subject: Subject) -> None:
    """Two ranks that split rows or columns compute together what one computes alone.

    Of a method that reads other tensors than plain weights this is checked where its linear method
    has `example(weight)`, which returns the tensors by suffix that a checkpoint has of a weight
    [out, in].
    """
    method = _make(subject).linear("a")
    example = getattr(method, "example", None)
    if example is None and method.suffixes != ("weight",):
        return
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(256, 256, generator=generator)
    x = torch.randn(5, 256, generator=generator)
    tensors = {"weight": weight} if example is None else example(weight)
    expected = x @ weight.T
    for split in ("", "rows", "columns"):
        found = []
        for rank in range(2 if split else 1):
            group = ParallelGroup(2 if split else 1, rank)
            weights = WeightMap()
            layer = Linear(
                replace(plain_context(group), quant=_make(subject)),
                weights,
                "a",
                256,
                _HALVES,
                split=split,
            )
            weights.load((f"a.{suffix}", tensor) for suffix, tensor in tensors.items())
            found.append(layer(x[:, group.own(256)] if split == "columns" else x))
        if split == "rows":  # the ranks' rows of the first slice, then those of the second
            halves = [out.chunk(2, -1) for out in found]
            together = torch.cat([halves[0][0], halves[1][0], halves[0][1], halves[1][1]], -1)
        else:
            together = torch.stack(found).sum(0)
        error = (together - expected).norm() / expected.norm()
        limit = _max_error(subject)
        where = f"split by {split or 'nothing'}"
        assert error <= limit, (
            f"{subject.entry.name}: {where}, the product is off by {error:.2%}, more than "
            f"{limit:.2%}."
        )


def check_it_decides_in_words_that_are_known(subject: Subject) -> None:
    """What it decides for experts, embedding and head is None or has what the contract names."""
    needed = {
        "experts": "create load apply",
        "embedding": "create load apply embed",
        "head": "create load apply",
    }
    method = _make(subject)
    for kind, names in needed.items():
        made = getattr(method, kind, lambda prefix: None)("model.x")
        lacking = [
            name
            for name in (*names.split(), "finish", "suffixes")
            if made is not None and not hasattr(made, name)
        ]
        assert not lacking, (
            f"{subject.entry.name}: {kind}() returns an object without {', '.join(lacking)}."
        )


_HALVES = [Slice("first", 128), Slice("second", 128)]


def check_states_how_far_it_may_be_off(subject: Subject) -> None:
    """`MAX_ERROR` is the bound of the product's error, relative to its size, for weights drawn
    from a bell curve.
    """
    limit = stated(subject, "MAX_ERROR")
    method = _make(subject).linear("a")
    if method.suffixes != ("weight",) and not hasattr(method, "example"):
        return  # its products are not computed here
    good = subject.builtin or (isinstance(limit, float) and 0 <= limit < 0.5)
    assert good, (
        f"{subject.entry.name}: define MAX_ERROR = 0.01 next to it, the relative error that "
        "products may be "
        "off by."
    )


def _max_error(subject: Subject) -> float:
    limit = stated(subject, "MAX_ERROR")
    return 0.1 if limit is None else limit


def _make(subject: Subject) -> Any:
    """Make the method from the entry's example of a quantization config, if it has one."""
    target: Any = subject.target
    return construct(target, getattr(target, "example_config", None), subject.config)
