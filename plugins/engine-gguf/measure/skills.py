"""Scores the demo model as GGUF files of several types: how many points each type costs.

    python plugins/engine-gguf/measure/skills.py [--items 60] [--types Q8_0 Q4_0]

Q4_K_M files need llama.cpp's quantizer: give one that it made with --file.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path
from typing import Any

import gguf
from gguf.quants import quantize

ROOT = Path(__file__).parents[3]
sys.path[:0] = [str(ROOT), str(Path(__file__).parents[1] / "tests")]

from gguf_files import Converter  # noqa: E402

from core import LLM  # noqa: E402 - after sys.path is set
from examples.demo_model.evaluate import SHIPPED, answers, score  # noqa: E402
from examples.demo_model.mix import SKILLS, evaluation_items  # noqa: E402


class RoundingConverter(Converter):
    """Weights rounded by the gguf library, not random ones."""

    def _put(self, name: str, tensor: Any) -> Any:
        kind = "F32" if tensor.ndim < 2 else self._kinds(name)
        self.tensors.append((name, quantize(tensor, gguf.GGMLQuantizationType[kind]), kind))
        return tensor


def totals(model: str, items: list[Any], **settings: Any) -> dict[str, float]:
    """Return the percentage of correct answers, by skill."""
    with LLM(model, log_level="error", **settings) as llm:
        scores = score(items, answers(llm, items))
    return {skill: 100 * found["all"][0] / found["all"][1] for skill, found in scores.items()}


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--items", type=int, default=60, help="items per skill")
    parser.add_argument("--types", nargs="*", default=["Q8_0", "Q4_0"])
    parser.add_argument(
        "--file", action="append", default=[], help="a GGUF file of the demo model; may be repeated"
    )
    arguments = parser.parse_args()
    items = [item for skill in SKILLS for item in evaluation_items(skill, 0, arguments.items)]
    with tempfile.TemporaryDirectory() as folder:
        files = {kind: Path(folder) / f"{kind}.gguf" for kind in arguments.types}
        for kind, path in files.items():
            RoundingConverter(SHIPPED, lambda name, kind=kind: kind).convert(path)  # type: ignore[misc]
        files |= {Path(name).stem: Path(name) for name in arguments.file}
        rows = {"shipped": totals(str(SHIPPED), items)}
        rows |= {
            name: totals(str(path), items, tokenizer=str(SHIPPED)) for name, path in files.items()
        }
    print(f"| | {' | '.join(SKILLS)} | mean |\n| --- |{' ---: |' * (len(SKILLS) + 1)}")
    for name, found in rows.items():
        columns = [*(found[skill] for skill in SKILLS), sum(found.values()) / len(found)]
        print(f"| {name} | {' | '.join(f'{value:.1f}' for value in columns)} |")


if __name__ == "__main__":
    main()
