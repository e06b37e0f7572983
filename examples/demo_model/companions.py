"""What goes with the demo model: `python -m examples.demo_model.companions --out build/demo`.

Two LoRA adapters, quantized checkpoints in two layouts, outputs for suffix decoding, and the
acceptance rate of a draft model made by `train --draft`. Prints the accuracy or gain of each.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from safetensors.torch import save_file

from core import LLM
from examples.demo_model.adapters import VOICES, merge_adapter, train_adapter, voiced_items
from examples.demo_model.chat import completion
from examples.demo_model.draft import acceptance
from examples.demo_model.evaluate import SHIPPED, Scores, answers, score
from examples.demo_model.items import Item
from examples.demo_model.mix import SKILLS, evaluation_items
from examples.demo_model.outputs import COUNT, save_outputs
from examples.demo_model.quantize import LAYOUTS, copy_settings, plain_checkpoint, quantize


def main() -> None:
    """Make and measure the selected companions."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--model", type=Path, default=SHIPPED, help="folder of the model, default the shipped one"
    )
    parser.add_argument(
        "--out", type=Path, default=Path("build/demo"), help="folder they are written into"
    )
    parser.add_argument(
        "--draft", type=Path, help="folder of a draft model made by `train --draft`"
    )
    parser.add_argument("--items", type=int, default=200, help="evaluation items per skill")
    parser.add_argument("--adapter-steps", type=int, default=300)
    parser.add_argument(
        "--only", choices=("adapters", "quantized", "draft", "outputs"), action="append"
    )
    arguments = parser.parse_args()
    selected = arguments.only or [
        "adapters",
        "quantized",
        "outputs",
        *(["draft"] if arguments.draft else []),
    ]
    items = [item for skill in SKILLS for item in evaluation_items(skill, 0, arguments.items)]
    plain = _answers(arguments.model, items) if set(selected) & {"quantized", "draft"} else []
    if "quantized" in selected:
        _quantized(arguments.model, arguments.out, items, plain)
    if "draft" in selected:
        _draft(arguments.model, arguments.draft, items, plain)
    if "outputs" in selected:
        print(
            f"\noutputs: {save_outputs(arguments.model, arguments.out / 'outputs', COUNT)} tokens"
        )
    if "adapters" in selected:
        for voice in VOICES:
            _adapter(arguments.model, arguments.out / voice, voice, arguments.adapter_steps)


def _quantized(model: Path, out: Path, items: list[Item], plain: list[str]) -> None:
    print(
        f"\n| checkpoint | right | of {len(items)} | points lost, by skill |\n| --- | ---: | ---: "
        "| --- |"
    )
    before = score(items, plain)
    print(f"| bfloat16 | {_all_right(before)} | {100 * _all_right(before) / len(items):.1f} % | |")
    for bits in (8, 4):
        for layout in LAYOUTS:
            folder = out / f"int{bits}-{layout}"
            quantize(model, folder, layout, bits)
            plain_checkpoint(folder, out / "dequantized")
            after = score(items, _answers(out / "dequantized", items))
            lost = ", ".join(f"{skill} {_lost(before, after, skill):.1f}" for skill in SKILLS)
            print(
                f"| {folder.name} | {_all_right(after)} | "
                f"{100 * _all_right(after) / len(items):.1f} % | {lost} |"
            )


def _draft(model: Path, draft: Path, items: list[Item], plain: list[str]) -> None:
    counts = acceptance(model, draft, items, plain)
    total = tuple(sum(pair[i] for pair in counts.values()) for i in (0, 1))
    print("\n| skill | accepted | drafted | per cent |\n| --- | ---: | ---: | ---: |")
    for name, (accepted, drafted) in [*counts.items(), ("all", total)]:
        print(f"| {name} | {accepted} | {drafted} | {100 * accepted / drafted:.1f} |")


def _adapter(model: Path, out: Path, voice: str, steps: int) -> None:
    train_adapter(model, out, voice, steps)
    merged = out.parent / f"{voice}-merged"
    merged.mkdir(exist_ok=True)
    copy_settings(model, merged)
    save_file(merge_adapter(model, out), merged / "model.safetensors", metadata={"format": "pt"})
    items = voiced_items(voice, "evaluation", 200, evaluation=True)
    texts = _answers(merged, items)
    good = sum(
        _spoken(text) == _spoken(completion(item)) for item, text in zip(items, texts, strict=True)
    )
    print(f"\nadapter {voice}: {good} of {len(items)} held-out answers match its voice exactly")


def _spoken(text: str) -> str:
    return text.split("</think>")[-1].strip()


def _answers(model: Path, items: list[Item]) -> list[str]:
    with LLM(str(model)) as llm:
        return answers(llm, items, progress=True)


def _all_right(scores: Scores) -> int:
    return sum(lines["all"][0] for lines in scores.values())


def _lost(before: Scores, after: Scores, skill: str) -> float:
    right_before, count = before[skill]["all"]
    return 100 * (right_before - after[skill]["all"][0]) / count


if __name__ == "__main__":
    main()
