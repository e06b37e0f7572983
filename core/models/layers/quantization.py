"""Chooses the quantization method of a model: what its checkpoint states, unless the user says
otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from core.contracts.construct import construct
from core.errors import ModelError, did_you_mean
from core.models.layers.weights import WeightMap

if TYPE_CHECKING:
    import torch

    from core.config import EngineConfig
    from core.contracts import ModelSource, QuantMethod
    from core.model_spec.names import WeightNames
    from core.plugin import Registered, Registry

PLAIN = "none"
"""The method of checkpoints that state none."""
PLAIN_WEIGHTS = "plain weights"
"""What an entry gives that keeps those weights for a device that another method leaves as they are.
"""


def quant_method(config: EngineConfig, source: ModelSource, registry: Registry) -> QuantMethod:
    """Return the method.

    Raises `ModelError` for one that is not loaded or does not read what the checkpoint states.
    """
    stated = source.quantization
    asked = config.model.quantization
    by_name = {
        registered.entry.name: registered for registered in registry.entries("quant_methods")
    }
    meant = _meant(stated, None, by_name)
    name = _meant(asked, meant, by_name) or meant or PLAIN
    if name not in by_name:
        who = "--quantization" if asked else "the checkpoint"
        raise ModelError(
            f"{who} names the quantization method {name!r}, which no loaded plugin has"
            f"{did_you_mean(name, by_name) or '.'} Known: {', '.join(sorted(by_name))}. Install a "
            "plugin that brings it "
            "(hook engine_quant_methods), or take a checkpoint without quantization."
        )
    chosen = by_name[name]
    made = registry.load(chosen)
    facts = getattr(source.hf_config, "quantization_config", None)
    is_another = bool(stated) and meant != name
    contradiction = ModelError(
        f"--quantization {asked} does not read this checkpoint, whose weights are stored as "
        f"{stated!r:.80} by its own "
        "account. Leave --quantization out, or take a checkpoint that is not quantized."
    )
    try:
        with registry.blame(chosen):
            method: QuantMethod = construct(made, facts, config)
    except ModelError as error:  # of facts that are another method's it says nothing of use
        if is_another and stated not in getattr(made, "reads", ()):
            raise contradiction from error
        if asked and asked != name:  # it knows itself by one name
            raise ModelError(
                str(error).replace(f"--quantization {name} ", f"--quantization {asked} ")
            ) from error
        raise
    if is_another and stated not in getattr(method, "reads", ()):
        raise contradiction
    return method


def tell_stored(
    method: QuantMethod, names: WeightNames, tensors: Iterable[tuple[str, torch.Tensor]]
) -> None:
    """Tell a method of which type each tensor of the checkpoint is, under the name that it has in
    the model.
    """
    stored_as: Callable[[Mapping[str, torch.dtype]], None] | None = getattr(
        method, "stored_as", None
    )
    if stored_as is not None:
        renamed = WeightMap(rename=names.rename).renamed
        stored_as({renamed(name): tensor.dtype for name, tensor in tensors})


def _meant(name: str | None, stated: str | None, by_name: Mapping[str, Registered]) -> str | None:
    """Return the entry that is meant by a name, which may be another one of what it reads.

    Other names are in what an entry gives; of several that share one, the checkpoint's is meant.
    """
    if name is None or name in by_name:
        return name
    others = [own for own, registered in by_name.items() if name in registered.entry.gives]
    return stated if stated in others else next(iter(sorted(others)), name)


def plain_weights(
    config: EngineConfig, registry: Registry, facts: Mapping[str, Any]
) -> QuantMethod | None:
    """Return the best method that gives "plain weights" and fits `facts` (device, dtype, what the
    platform adds), if any.
    """
    for candidate in registry.rank("quant_methods", facts):
        if PLAIN_WEIGHTS in candidate.registered.entry.gives and not candidate.reason:
            made = registry.load(candidate.registered)
            with registry.blame(candidate.registered):
                method: QuantMethod = construct(made, None, config)
            return method
    return None
