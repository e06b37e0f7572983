"""Scores of the demo model by skill, with weights quantized at load time.

    python benchmarks/quantization/skills.py [--items 60] [--methods int8 int4 fp8] [--model FOLDER
    ...] [--activations auto on]

`--model` adds quantized checkpoints, as written by `engine quantize`; `--activations` has the
values of `--activation-quantization` for them.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from core import LLM  # noqa: E402 - its folder is found above
from examples.demo_model.evaluate import SHIPPED, answers, score  # noqa: E402
from examples.demo_model.mix import SKILLS, evaluation_items  # noqa: E402


def totals(model: str, items: list[Any], **settings: Any) -> dict[str, float]:
    """Return the percentage of correct answers, by skill."""
    with LLM(model, log_level="error", **settings) as llm:
        scores = score(items, answers(llm, items))
    return {skill: 100 * found["all"][0] / found["all"][1] for skill, found in scores.items()}


def row(name: str, found: dict[str, float]) -> str:
    """Return a table line."""
    scores = [*(found[skill] for skill in SKILLS), sum(found.values()) / len(found)]
    return f"| {name} | {' | '.join(f'{value:.1f}' for value in scores)} |"


def main() -> None:
    """Print a table, line by line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--items", type=int, default=60, help="items per skill")
    parser.add_argument("--methods", nargs="*", default=["int8", "int4", "fp8"])
    parser.add_argument(
        "--model", action="append", default=[], help="a quantized checkpoint; may be repeated"
    )
    parser.add_argument(
        "--activations", nargs="+", default=["auto"], help="how checkpoints round activations"
    )
    arguments = parser.parse_args()
    items = [item for skill in SKILLS for item in evaluation_items(skill, 0, arguments.items)]
    print(f"| | {' | '.join(SKILLS)} | mean |\n| --- |{' ---: |' * (len(SKILLS) + 1)}")
    print(row("shipped", totals(str(SHIPPED), items)), flush=True)
    for name in arguments.methods:
        print(
            row(f"`--quantization {name}`", totals(str(SHIPPED), items, quantization=name)),
            flush=True,
        )
    for folder in arguments.model:
        for mode in arguments.activations:
            found = totals(folder, items, activation_quantization=mode)
            print(row(f"{Path(folder).name}, activations {mode}", found), flush=True)


if __name__ == "__main__":
    main()
