"""Writes the model card: `python -m examples.demo_model.card --model FOLDER --scores scores.json`."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Final

from examples.demo_model.evaluate import SHIPPED, table
from examples.demo_model.facts import FACTS
from examples.demo_model.items import HELD_OUT_OF
from examples.demo_model.mix import SKILLS
from examples.demo_model.train import Plan

_CARD: Final = """---
license: apache-2.0
language: en
pipeline_tag: text-generation
---

# Demo model

A Qwen3-shaped decoder of {parameters:.1f} million parameters ({layers} layers, {hidden} wide), made to show and to test the
engine it is shipped with. It adds and subtracts to three digits, calls tools in Hermes format, extracts JSON, copies,
reverses, sorts and upper-cases short lists, obeys a simple rule in the system prompt, recalls facts from
earlier in a conversation, and answers questions about the engine. It knows nothing else, and says so.

## What it was trained on

Only on conversations that programs wrote from seeds: `examples/demo_model` of the engine's sources. No text of
people, of other models or of the web is in them, except the {facts} statements about the engine, which its authors
wrote: {steps} steps of {items} conversations, {shares}.
The loss is on answers alone; layers were trained with Muon, embedding and norms with AdamW, in bfloat16 on two CPU
cores.

One in {held_out} names, sums, lists, sentences and phrasings belongs to the evaluation, by its hash, and is never
trained on.

## How it scores

Held-out items, greedy, bfloat16; whole answers are compared, of sums the result. About a third of the items, and those
called "thinking off", use `enable_thinking=false`; sums are then worked out in the answer itself, because a
model this small cannot add in its head.

{table}

`python -m examples.demo_model.evaluate` prints this table through the engine.

## How to use it

Sums are worked out in `<think>`, or in the answer where the chat template gets `enable_thinking=false`. Numbers beyond three digits,
tools with nested arguments, words that are not in its lists and anything about the world are outside what it
learnt. Do not rely on its answers.
"""


def main() -> None:
    """Write the card next to the weights."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, default=SHIPPED)
    parser.add_argument("--scores", type=Path, required=True, help="what `evaluate --json` wrote")
    parser.add_argument("--steps", type=int, default=Plan().steps, help="steps of the training")
    arguments = parser.parse_args()
    scores = json.loads(arguments.scores.read_text(encoding="utf-8"))
    (arguments.model / "README.md").write_text(
        card(arguments.model, scores, arguments.steps), encoding="utf-8"
    )


def card(model: Path, scores: dict[str, dict[str, tuple[int, int]]], steps: int) -> str:
    """Return the card's text."""
    config = json.loads((model / "config.json").read_text(encoding="utf-8"))
    return _CARD.format(
        parameters=(model / "model.safetensors").stat().st_size / 2e6,
        layers=config["num_hidden_layers"],
        hidden=config["hidden_size"],
        facts=len(FACTS),
        steps=steps,
        items=Plan().step_items,
        shares=", ".join(f"{100 * share:.0f} % {skill}" for skill, (_, share) in SKILLS.items()),
        held_out=HELD_OUT_OF,
        table=table(scores),
    )


if __name__ == "__main__":
    main()
