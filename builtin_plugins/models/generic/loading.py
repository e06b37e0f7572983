"""Loads our loaders' tensors into a transformers model with its renames, fusions and ties.

Missing and unexpected tensors are errors, as for every model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from typing import Any, Final

import torch
from transformers.utils import logging

from core.api import ModelError

MAX_NAMED: Final = 6
"""Maximum number of tensors named in an error."""


def fill(
    model_class: Any,
    config: Any,
    tensors: Iterable[tuple[str, torch.Tensor]],
    dtype: torch.dtype,
    is_absent: Callable[[str], bool] = lambda name: False,
) -> Any:
    """Return the model with the checkpoint's weights, in eval mode.

    Tensors that already have `dtype` are not copied. Raises `ModelError` with the missing,
    unexpected and misshapen tensors; those that are absent on purpose are not missing.
    """
    state = dict(tensors)
    integer_tensors = [name for name, tensor in state.items() if not tensor.is_floating_point()]
    if integer_tensors:
        raise ModelError(
            f"tensors stored as integers need a quantization method: {_some(integer_tensors)}."
        )
    try:
        with quiet():
            model, report = model_class.from_pretrained(
                None,
                config=config,
                state_dict=state,
                dtype=dtype,
                output_loading_info=True,
                ignore_mismatched_sizes=True,
                experts_implementation="eager",
            )
    except Exception as error:
        raise ModelError(
            f"transformers cannot build or load {model_class.__name__}: {error}"
        ) from error
    found = {
        "missing tensors": [name for name in report["missing_keys"] if not is_absent(name)],
        "unexpected tensors": report["unexpected_keys"],
        "tensors of the wrong shape": report["mismatched_keys"],
    }
    faults = [
        f"{len(names)} {title}: {_some(sorted(map(_name, names)))}"
        for title, names in found.items()
        if names
    ]
    if report["error_msgs"]:
        faults.append("; ".join(map(str, report["error_msgs"])))
    if faults:
        raise ModelError(
            "the checkpoint does not fit the model its config.json describes\n  "
            + "\n  ".join(faults)
            + "\n  Check that config.json and weights belong together and that the download is "
            "complete."
        )
    return model


def weight_shapes(model_class: Any, config: Any) -> Mapping[str, tuple[int, ...]]:
    """Return name and shape of every tensor but those tied to another."""
    model = without_memory(model_class, config, torch.float32)
    tied = set(model.all_tied_weights_keys)
    return {
        name: tuple(tensor.shape) for name, tensor in model.state_dict().items() if name not in tied
    }


def without_memory(model_class: Any, config: Any, dtype: torch.dtype) -> Any:
    """Return the model on the meta device; its experts do not depend on values."""
    with torch.device("meta"), quiet():
        model = model_class._from_config(
            deepcopy(config), dtype=dtype, experts_implementation="batched_mm"
        ).eval()
        model.tie_weights()
    return model


@contextmanager
def quiet() -> Iterator[None]:
    """Silence transformers' progress bars and reports; errors are raised."""
    log: Any = logging
    level = log.get_verbosity()
    bars = log.is_progress_bar_enabled()
    log.set_verbosity_error()
    log.disable_progress_bar()
    try:
        yield
    finally:
        log.set_verbosity(level)
        if bars:
            log.enable_progress_bar()


def _name(fault: Any) -> str:
    """Return a tensor as reported: its name, or its name with found and expected shape."""
    if isinstance(fault, str):
        return fault
    name, found, expected = fault
    return f"{name}: expected {list(expected)}, found {list(found)}"


def _some(names: list[str]) -> str:
    more = f" and {len(names) - MAX_NAMED} more" if len(names) > MAX_NAMED else ""
    return "; ".join(names[:MAX_NAMED]) + more
