"""Matches layers against the names and patterns of a quantization config.

Tools read names off a loaded model. A name may be the checkpoint's or the one that a transformers
model has in memory. Independent of formats.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from fnmatch import translate
from typing import Final

from builtin_plugins.model_sources.api import Pattern

EXPERT: Final = re.compile(r"(.*\.experts)\.(\d+)\.(\w+)")
MIXTRAL_NAMES: Final = {"w1": "gate_proj", "w2": "down_proj", "w3": "up_proj"}
MIXTRAL_MOE: Final = ".block_sparse_moe."
HEADS: Final = ("embed_out", "output_projection", "proj_out")
"""Names of heads in checkpoints that transformers 5 loads as `HEAD`."""
HEAD: Final = "lm_head"
FUSED_NAMES: Final = {
    **dict.fromkeys(("q_proj", "k_proj", "v_proj"), "qkv_proj"),
    **dict.fromkeys(("gate_proj", "up_proj"), "gate_up_proj"),
    **dict.fromkeys(("q_a_proj", "kv_a_proj_with_mqa"), "fused_qkv_a_proj"),
}
"""Names of fused layers of other engines, and of stacked experts in memory."""
ROOT: Final = re.compile(r"(?:(?:model|language_model|text_model|backbone|transformer)\.)+")
"""Prefix of a decoder's layers. Vision towers have other names after it."""
ROOTS: Final = {
    "model.language_model.": "language_model",
    "language_model.model.": "language_model",
    "backbone.": "backbone",
}
"""Prefixes of the same layers in multimodal and renamed checkpoints, with their marks."""
REGEX_PREFIX: Final = "re:"
WILDCARDS: Final = "*?["
REGEX_CHARS: Final = "*+?[(|\\^$"
"""A name with one of these characters is a pattern, for tools that read every name as a pattern."""
NEGATIVE_LOOKAROUND: Final = ("(?!", "(?<!")
DOT_OR_END: Final = r"(?:(?<=\.)|(?=\.|$))"

Matcher = Callable[[str], bool]
Reader = Callable[[str], Matcher | None]
"""Returns a matcher for a pattern; None: the text is a name."""


def name_variants(prefix: str) -> tuple[str, ...]:
    """Return a layer's name, and the other names that transformers 5 has for it.

    Some tools (llm-compressor) rename only the MoE module back, not the matrices of an expert.
    """
    if prefix in HEADS:
        return prefix, HEAD
    found = EXPERT.fullmatch(prefix)
    if found and found[3] in MIXTRAL_NAMES:
        loaded = f"{found[1]}.{found[2]}.{MIXTRAL_NAMES[found[3]]}"
    else:
        loaded = prefix
    return tuple(dict.fromkeys((prefix, loaded, loaded.replace(MIXTRAL_MOE, ".mlp."))))


def read_regex(text: str) -> Matcher | None:
    """Read a `re:` pattern as compressed-tensors does: it matches the beginning of a name."""
    return Pattern(text.removeprefix(REGEX_PREFIX)).match if text.startswith(REGEX_PREFIX) else None


def read_glob(text: str) -> Matcher | None:
    """Read wildcards as NVIDIA's and AMD's tools do: they match a whole name."""
    if text.startswith(REGEX_PREFIX) or not any(sign in text for sign in WILDCARDS):
        return read_regex(text)
    begin = text.removesuffix("*")
    if not any(sign in begin for sign in WILDCARDS):
        return lambda name: name.startswith(begin)
    whole = re.compile(translate(text))
    return lambda name: whole.match(name) is not None


def read_transformers_name(text: str) -> Matcher | None:
    """Read a name as transformers does: a regular expression up to a dot or the end of a name."""
    if text.startswith((REGEX_PREFIX, "*")) or not any(sign in text for sign in REGEX_CHARS):
        return read_glob(text)
    return Pattern(f"(?:{text}){DOT_OR_END}").match


class NameList:
    """Texts of a config, each of which names one or several layers.

    `reading`: reads patterns. `anywhere`: a name may be any part of a layer's name, like `mlp` or
    `q_proj`. Otherwise it is the layer's name or that of a module that contains it.
    """

    def __init__(
        self, texts: Collection[str], reading: Reader = read_regex, *, anywhere: bool = False
    ) -> None:
        self._anywhere = anywhere
        self._names: dict[str, str] = {}
        self._patterns: list[tuple[str, Matcher, bool]] = []
        for text in texts:
            fits = reading(text)
            if fits is None:
                self._names.setdefault(_below_root(text.removesuffix(".weight")), text)
            else:
                self._patterns.append(
                    (text, fits, any(sign in text for sign in NEGATIVE_LOOKAROUND))
                )
        self._lengths = sorted({name.count(".") + 1 for name in self._names}, reverse=True)
        self._roots = [
            root for root, mark in ROOTS.items() if any(mark in text for text, *_ in self._patterns)
        ]
        self._positions = {text: position for position, text in enumerate(texts)}

    def find(self, prefix: str) -> str | None:
        """Return the text that names a layer: the longest name, else the first pattern."""
        named = self.find_name(prefix)
        return self.find_pattern(prefix) if named is None else named

    def find_first(self, prefix: str) -> str | None:
        """Return the name or the pattern, whichever is listed first."""
        found = [
            text for text in (self.find_name(prefix), self.find_pattern(prefix)) if text is not None
        ]
        return min(found, key=self._positions.__getitem__, default=None)

    def find_name(self, prefix: str) -> str | None:
        """Return the longest name of a layer or of a module that contains it."""
        if not self._names:
            return None
        variants = [_below_root(own).split(".") for own in _all_names(prefix)]
        for length in self._lengths:
            for parts in variants:
                for start in range(len(parts) - length + 1 if self._anywhere else 1):
                    text = self._names.get(".".join(parts[start : start + length]))
                    if text is not None:
                        return text
        return None

    def find_pattern(self, prefix: str) -> str | None:
        """Return the first pattern that matches a layer's name.

        A negative pattern must match all variants of the name.
        """
        if not self._patterns:
            return None
        variants = name_variants(prefix)
        others = [
            f"{root}{_below_root(own)}"
            for root in self._roots
            for own in variants
            if ROOT.match(own)
        ]
        tried = (*variants, *others)
        for text, fits, is_negative in self._patterns:
            if is_negative:
                if all(map(fits, variants)):
                    return text
                continue
            for own in tried:
                if fits(own):
                    return text
        return None


def _all_names(prefix: str) -> tuple[str, ...]:
    """Return the name variants of a layer, and the names of its fused layer and stacked experts."""
    variants = name_variants(prefix)
    parted = [own.rpartition(".") for own in variants]
    fused = [f"{holder}.{FUSED_NAMES[last]}" for holder, _, last in parted if last in FUSED_NAMES]
    experts = [EXPERT.fullmatch(own) for own in (*variants, *fused)]
    return tuple(
        dict.fromkeys(
            (*variants, *fused, *(f"{found[1]}.{found[3]}" for found in experts if found))
        )
    )


def _below_root(name: str) -> str:
    root = ROOT.match(name)
    return name if root is None else name[root.end() :]
