"""Decode speed of one stream with quantized weights, relative to the checkpoint's own.

Run on an idle machine, with the model of `benchmarks/peers/make_model.py` or any other:

    python -m benchmarks.quantization.decode MODELS/qwen3-0.6b [--methods int8 int4] [--threads 2]
    [--rounds 5]

Prints tokens per second after the first one for each round, then each method's median, and the
median of its ratios to the checkpoint's own weights.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from pathlib import Path

from benchmarks.peers.child import Child, unwind_on_terminate

DRIVER = Path(__file__).parents[1] / "peers" / "drivers" / "run_engine.py"
PLAIN = "plain"
PROMPT_TOKENS = 16
NEW_TOKENS = 64


def rate(child: Child, salt: int) -> float:
    """Return the tokens per second of one stream after the first token."""
    prompt = [(7 * at + 977 * salt) % 1000 + 100 for at in range(PROMPT_TOKENS)]
    content = child.call({"prompts": [prompt], "num_tokens": NEW_TOKENS, "each": True}).content
    return (NEW_TOKENS - 1) / float(content["times"][-1] - content["times"][0])


def start(name: str, model: Path, threads: int, logs: Path) -> Child:
    """Return an engine process, paused."""
    options = {"max_model_len": 1024, "max_num_seqs": 16, "enable_prefix_caching": False}
    if name != PLAIN:
        options["quantization"] = name
    command = [sys.executable, str(DRIVER), "--model", str(model), "--threads", str(threads)]
    child = Child(name, [*command, "--options", json.dumps(options)], logs / name)
    child.hear_s()
    child.pause()
    return child


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", type=Path)
    parser.add_argument("--methods", nargs="*", default=["int8", "int4"])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    unwind_on_terminate()
    names = [PLAIN, *arguments.methods]
    rates: dict[str, list[float]] = {name: [] for name in names}
    children: dict[str, Child] = {}
    with tempfile.TemporaryDirectory() as logs:
        try:
            for name in names:
                children[name] = start(name, arguments.model, arguments.threads, Path(logs))
            for turn in range(arguments.rounds + 1):  # the first run is a warmup
                for name, child in children.items():
                    child.resume()
                    found = rate(child, turn)
                    child.pause()
                    if turn:
                        rates[name].append(found)
                    print(
                        f"{f'round {turn}' if turn else 'warming up'}: {name}: {found:.1f}",
                        flush=True,
                    )
        finally:
            for child in children.values():
                child.close()
    print("| weights | tokens a second | ratio |\n| --- | ---: | ---: |")
    for name, own in rates.items():
        ratio = statistics.median(a / b for a, b in zip(own, rates[PLAIN], strict=True))
        print(f"| {name} | {statistics.median(own):.1f} | {ratio:.2f} |")


if __name__ == "__main__":
    main()
