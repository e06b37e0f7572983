"""Scores a model on held-out items, through this engine: `python -m examples.demo_model.evaluate
--model FOLDER`.
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from builtin_plugins.output_parsers.api import OutputParser, ParseRequest, known_formats
from core import LLM, SamplingParams
from core.api.plugins import load_plan, make_plan
from examples.demo_model.chat import completion
from examples.demo_model.grading import right
from examples.demo_model.items import Item
from examples.demo_model.mix import SKILLS, evaluation_items

SHIPPED: Final = Path(__file__).parents[2] / "builtin_plugins" / "model_sources" / "demo" / "model"
TARGETS: Final = {
    ("arithmetic", "all"): 95,
    ("tools", "all"): 95,
    ("json", "all"): 95,
    ("lists", "all"): 90,
    ("rules", "all"): 90,
    ("recall", "all"): 90,
}
"""Target percentages, by skill and line of the table."""
_MAX_TOKENS: Final = 320
Scores = dict[str, dict[str, tuple[int, int]]]
"""Right and all items, by skill and line of the table."""


def main() -> None:
    """Print the table and, with --show, wrong answers."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--model", default=str(SHIPPED), help="folder of the model, default the shipped one"
    )
    parser.add_argument("--items", type=int, default=1000, help="items per skill")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--dtype", default="auto")
    parser.add_argument(
        "--skill", choices=list(SKILLS), action="append", help="only these; may be repeated"
    )
    parser.add_argument("--json", type=Path, help="write the scores here, too")
    parser.add_argument(
        "--through-parsers", action="store_true", help="grade what a chat client sees, not raw text"
    )
    parser.add_argument(
        "--show", type=int, default=0, help="print so many wrong answers of each skill"
    )
    arguments = parser.parse_args()
    items = [
        item
        for skill in arguments.skill or SKILLS
        for item in evaluation_items(skill, arguments.seed, arguments.items)
    ]
    with LLM(arguments.model, dtype=arguments.dtype) as llm:
        texts = answers(llm, items, progress=True)
    if arguments.through_parsers:
        texts = [as_seen(item, text) for item, text in zip(items, texts, strict=True)]
    scores = score(items, texts)
    print(table(scores))
    if arguments.json:
        arguments.json.write_text(json.dumps(scores, indent=2) + "\n", encoding="utf-8")
    _show_wrong(items, texts, arguments.show)


def answers(llm: LLM, items: Iterable[Item], progress: bool = False) -> list[str]:
    """Return the raw text of each greedy answer."""
    prompts: list[Any] = [llm.preprocess_chat(item.messages, **options(item))[0] for item in items]
    sampling = SamplingParams(temperature=0, max_tokens=_MAX_TOKENS)
    return [output.outputs[0].text for output in llm.generate(prompts, sampling, use_tqdm=progress)]


def as_seen(item: Item, text: str) -> str:
    """Return the answer rebuilt from a client's reasoning, content and tool calls."""
    request = ParseRequest(item.tools, options(item)["chat_template_kwargs"] or {})
    registry = load_plan(make_plan())
    tools = known_formats(registry, "tool_parsers")["hermes"] if item.tools else None
    reasoning = known_formats(registry, "reasoning_parsers")["think"]
    seen = OutputParser(request, tools=tools, reasoning=reasoning).whole(text)
    calls = [{"name": call.name, "arguments": json.loads(call.arguments)} for call in seen.calls]
    return completion(replace(item, answer=seen.content, reasoning=seen.reasoning, calls=calls))


def options(item: Item) -> dict[str, Any]:
    """Return the fields of a chat request in addition to its messages."""
    return {
        "tools": item.tools or None,
        "chat_template_kwargs": None if item.thinking else {"enable_thinking": False},
    }


def score(items: Iterable[Item], texts: Iterable[str]) -> Scores:
    """Return right and all answers of each line."""
    counts: dict[str, dict[str, list[int]]] = defaultdict(lambda: defaultdict(lambda: [0, 0]))
    for item, text in zip(items, texts, strict=True):
        for line in {"all", item.variant or "all"}:
            counts[item.skill][line][0] += right(item, text)
            counts[item.skill][line][1] += 1
    return {
        skill: {line: (pair[0], pair[1]) for line, pair in sorted(lines.items())}
        for skill, lines in counts.items()
    }


def table(scores: Mapping[str, Mapping[str, tuple[int, int]]]) -> str:
    """Return the scores as a Markdown table."""
    rows = [
        "| skill | | right | of | per cent | target |",
        "| --- | --- | ---: | ---: | ---: | ---: |",
    ]
    for skill, lines in scores.items():
        for line, (good, count) in sorted(
            lines.items(), key=lambda pair: (pair[0] != "all", pair[0])
        ):
            share = f"{100 * good / count:.1f}"
            target = TARGETS.get((skill, line), "")
            rows.append(
                f"| {skill if line == 'all' else ''} | {line} | {good} | {count} | {share} | "
                f"{target} |"
            )
    return "\n".join(rows)


def _show_wrong(items: list[Item], texts: list[str], count: int) -> None:
    num_printed: dict[str, int] = defaultdict(int)
    for item, text in zip(items, texts, strict=True):
        if not right(item, text) and num_printed[item.skill] < count:
            num_printed[item.skill] += 1
            print(f"\n--- {item.skill} {item.variant}: {item.messages[-1]['content']!r}")
            print(f"expected {item.calls or item.answer!r}\ngot      {text!r}")


if __name__ == "__main__":
    main()
