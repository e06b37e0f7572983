"""The ways by which a file reaches the engine; each raises what its user sees.

Imported before the processes are forked, with everything that a load imports: it must start no
thread.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import builtin_plugins
from core import LLM, SamplingParams

for module in pkgutil.walk_packages(builtin_plugins.__path__, "builtin_plugins."):
    if not module.name.startswith("builtin_plugins.commands"):
        importlib.import_module(module.name)

ENGINE: Final = {
    "max_model_len": 64,
    "num_gpu_blocks_override": 16,
    "max_num_seqs": 4,
    "num_threads": 1,
    "log_level": "error",
}
PROMPT: Final = "a" * 40 + " the 1234567890 b\n\n  c"
GREEDY: Final = SamplingParams(max_tokens=2, temperature=0.0)


def offline(folder: Path, options: Mapping[str, Any]) -> None:
    """Load a checkpoint, complete a text and answer a message."""
    llm = LLM(str(folder), **{**ENGINE, **options})
    try:
        (output,) = llm.generate([PROMPT], GREEDY)
        assert output.outputs[0].finish_reason is not None
        (answer,) = llm.chat([{"role": "user", "content": PROMPT[-16:]}], GREEDY)
        assert answer.outputs[0].finish_reason is not None
    finally:
        llm.shutdown()
