"""Facts that `Entry.when` may name, and whether an entry fits them."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from types import MappingProxyType
from typing import Any, Final

from importlib_metadata import PackageNotFoundError, version
from packaging.requirements import InvalidRequirement, Requirement

from core.plugin.entry import Entry

OF_PLATFORMS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "device": "device of the platform, such as `cpu`",
        "machine": "processor architecture, such as `x86_64`",
        "isa": "set of instruction sets, such as `avx2`; one of the required ones must be in it",
        "triton": "GPUs: true if Triton, which compiles kernels, can be imported",
        "kind": "GPUs: name of the platform, such as `cuda`",
        "capability": "NVIDIA GPUs: ten times the compute capability, such as 90",
        "float8": "NVIDIA GPUs: true if FP8 matrix products are supported",
    }
)
"""Facts of the builtin platforms; `Platform.facts` of a plugin may
have more.
"""
OF_MODELS: Final[Mapping[str, str]] = MappingProxyType(
    {"dtype": "dtype of the model: `float32`, `bfloat16`, `float16`"}
)
OF_ATTENTION: Final[Mapping[str, str]] = MappingProxyType(
    {
        "head_size": "list of the model's head sizes; one of the required ones must be in it",
        "window": "true if a layer has a sliding window",
        "chunk": "true if a layer has chunked attention",
        "softcap": "true if a layer's scores have a softcap",
        "alibi": "true if a layer has ALiBi slopes",
        "sinks": "true if a layer has attention sinks",
        "distance_bias": "true if a layer has a relative bias",
        "latent": "true if a layer caches latents (MLA)",
        "kv_dtype": "`--kv-cache-dtype`; `auto`: the model's dtype",
        "cross": "true if a layer has cross-attention",
    }
)
FACTS: Final[Mapping[str, Mapping[str, str]]] = MappingProxyType(
    {
        "op_impls": {**OF_PLATFORMS, **OF_MODELS},
        "quant_methods": {**OF_PLATFORMS, **OF_MODELS},
        "attention_backends": {**OF_PLATFORMS, **OF_MODELS, **OF_ATTENTION},
    }
)
"""Meaning of each fact, by kind; other kinds are chosen without facts.

Of quantization methods only those that give "plain weights" are chosen by facts.
"""


def why_not(entry: Entry, facts: Mapping[str, Any]) -> str | None:
    """Return why the entry does not fit these facts, or None if it fits.

    An unknown fact does not fit.
    """
    for name, required in entry.when.items():
        needs = f"needs {name} {format_fact(required)}"
        if name not in facts:
            return f"{needs}, which is not known here"
        if not _matches(required, facts[name]):
            return f"{needs}, here it is {format_fact(facts[name], ', ')}"
    return missing_requirement(entry)


def missing_requirement(entry: Entry) -> str | None:
    """Return the distribution that an entry lacks, with the command to
    install it, or None.
    """
    for written in entry.requires:
        try:
            requirement = Requirement(written)
            found = version(requirement.name)
        except InvalidRequirement:
            return f"requires {written!r}, which is no requirement that can be read"
        except PackageNotFoundError:
            return f"needs {written}, which is not installed (pip install '{written}')"
        if not requirement.specifier.contains(found, prereleases=True):
            return f"needs {written}, but {found} is installed (pip install '{written}')"
    return None


def format_fact(value: Any, separator: str = " or ") -> str:
    """Return a fact, or an entry's requirement, as text."""
    if isinstance(value, range):
        if not value:
            return "never"
        step = f" by {value.step}" if value.step != 1 else ""
        return f"{value.start} to {value[-1]}{step}"
    if _is_collection(value):
        return separator.join(sorted(map(str, value)))
    return str(value)


def _matches(required: Any, fact: Any) -> bool:
    """Return whether one of the fact's values equals `required` or
    is in it.
    """
    values = set(fact) if _is_collection(fact) else {fact}
    if _is_collection(required):
        return any(value in required for value in values)
    return any(value == required for value in values)


def _is_collection(value: Any) -> bool:
    return isinstance(value, Collection) and not isinstance(value, (str, bytes))
