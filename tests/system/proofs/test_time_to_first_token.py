"""The proof of a quick start: a tiny model's first token comes soon after what torch and
transformers take alone.
"""

from __future__ import annotations

import resource
import subprocess
import sys
from pathlib import Path

from core.testing.checkpoints import make_checkpoint

MAX_ROUNDS = 3
LIMIT = 1.5
"""Times `import torch, transformers`; about 1.0 is measured, of the clock as well
(benchmarks/startup).
"""
GENERATE = "import sys; from core.cli.main import main; sys.exit(main())"


def cpu_seconds(*arguments: str) -> float:
    """Return what a Python process and its children compute; the clock would count the neighbours'
    work too.
    """
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run((sys.executable, "-c", *arguments), check=True, capture_output=True, timeout=120)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def test_first_token_within_one_and_a_half_times_the_imports(tmp_path: Path) -> None:
    model = str(make_checkpoint("LlamaForCausalLM", tmp_path))
    command = (
        GENERATE,
        "generate",
        model,
        "--prompt",
        "hello",
        "--max-tokens",
        "1",
        "--ignore-eos",
    )
    pairs: list[tuple[float, float]] = []
    while not pairs or (
        pairs[-1][1] > LIMIT * pairs[-1][0] and len(pairs) < MAX_ROUNDS
    ):  # neighbours cost caches
        pairs.append((cpu_seconds("import torch, transformers"), cpu_seconds(*command)))
    imports, first = pairs[-1]
    assert first <= LIMIT * imports, f"first token and imports alone took, in seconds: {pairs}"
