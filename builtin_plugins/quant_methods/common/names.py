"""Other names of a layer in a checkpoint's config: tools read them off a model in transformers' memory."""

from __future__ import annotations

import re
from typing import Final

EXPERT: Final = re.compile(r"(.*\.experts\.\d+)\.w([123])")
MATRICES: Final = {"1": "gate_proj", "2": "down_proj", "3": "up_proj"}
MIXTURE: Final = ".block_sparse_moe."


def spellings(prefix: str) -> tuple[str, ...]:
    """Return a layer's name here, and those that transformers 5 has for it where that calls a mixture's parts otherwise.

    Some tools (llm-compressor) turn back the name of the mixture, not those of an expert's matrices.
    """
    found = EXPERT.fullmatch(prefix)
    loaded = prefix if found is None else f"{found[1]}.{MATRICES[found[2]]}"
    return tuple(dict.fromkeys((prefix, loaded, loaded.replace(MIXTURE, ".mlp."))))
