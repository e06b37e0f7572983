"""Compares this engine with llama.cpp on one GGUF file: decode, prefill, 16 streams, start time.

Needs an environment with llama-cpp-python (see `benchmarks/peers/README.md`) and an idle machine:

    python plugins/engine-gguf/measure/compare_llama_cpp.py model.Q4_0.gguf --llama
    PEERS/llama/bin/python

Prints each turn, then the median tokens per second of each engine and the median ratio of adjacent
turns; the bytes per second that one stream reads, with the machine's bandwidth in the same turns;
and the time from process start to the first token. `benchmarks/loading/bench_loading.py` measures
memory.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

from gguf import GGUFReader

ROOT = Path(__file__).parents[3]
sys.path.insert(0, str(ROOT))

from benchmarks.peers.child import Child, unwind_on_terminate  # noqa: E402 - after sys.path is set

DRIVERS = ROOT / "benchmarks" / "peers" / "drivers"
VOCABULARY = 1000
TASKS: Mapping[str, tuple[int, int, int]] = {
    "decode, one stream": (1, 16, 48),
    "a prompt of 512": (1, 512, 1),
    "16 streams": (16, 16, 24),
}
"""Prompts, tokens per prompt, generated tokens."""
Rates = dict[str, dict[str, list[float]]]


def prompts(count: int, length: int, salt: int) -> list[list[int]]:
    """Return prompts that are in no cache."""
    return [
        [(7 * at + 131 * number + 977 * salt) % VOCABULARY + 100 for at in range(length)]
        for number in range(count)
    ]


def rate(child: Child, task: tuple[int, int, int], salt: int) -> float:
    """Return a task's tokens per second: decode of one stream, prefill of a prompt, or all."""
    count, length, num_tokens = task
    content = child.ask(
        {"prompts": prompts(count, length, salt), "num_tokens": num_tokens, "each": count == 1}
    ).content
    if count == 1 and num_tokens > 1:
        return (num_tokens - 1) / float(content["times"][-1] - content["times"][0])
    return count * (length if num_tokens == 1 else num_tokens) / float(content["seconds"])


def imports() -> float:
    """Return the time of a process that only imports the engine's dependencies."""
    began = time.monotonic()
    subprocess.run(
        [
            sys.executable,
            "-c",
            "import torch, core; from core import LLM; import core.models.layers.decoder",
        ],
        check=True,
    )
    return time.monotonic() - began


def token_bytes(model: Path) -> int:
    """Return the bytes read per token of one stream; an untied embedding counts one row."""
    sizes = {tensor.name: int(tensor.n_bytes) for tensor in GGUFReader(model).tensors}
    apart = sizes["token_embd.weight"] if "output.weight" in sizes else 0
    return sum(sizes.values()) - apart


def take_turns(children: Mapping[str, Child], machine: Child, rounds: int) -> tuple[Rates, float]:
    """Return each engine's rates, and the maximum memory bandwidth. The first round warms up."""
    rates: Rates = {task: {name: [] for name in children} for task in TASKS}
    read = 0.0
    for turn in range(rounds + 1):
        machine.resume()
        read = max(read, float(machine.ask({}).content["read_bytes_s"]))
        machine.pause()
        for task, sizes in TASKS.items():
            for name, child in children.items():
                child.resume()
                found = rate(child, sizes, turn + 1)
                child.pause()
                if turn:
                    rates[task][name].append(found)
                print(
                    f"{'round ' + str(turn) if turn else 'warming up'}: {task}: {name}: "
                    f"{found:.1f}",
                    flush=True,
                )
    return rates, read


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", type=Path)
    parser.add_argument(
        "--llama", required=True, help="python of the environment that has llama-cpp-python"
    )
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    unwind_on_terminate()
    common = ["--model", str(arguments.model), "--threads", str(arguments.threads)]
    options = '{"max_model_len": 1024, "max_num_seqs": 16, "enable_prefix_caching": false}'
    commands = {
        "engine": [sys.executable, str(DRIVERS / "run_engine.py"), *common, "--options", options],
        "llama.cpp": [arguments.llama, str(DRIVERS / "run_llama_cpp.py"), *common],
    }
    looks = [
        sys.executable,
        str(DRIVERS / "measure_machine.py"),
        "--threads",
        str(arguments.threads),
        "--products",
        "[[64, 64]]",
    ]
    with tempfile.TemporaryDirectory() as logs:
        children = {}
        started = {}
        machine = Child("machine", looks, Path(logs) / "machine")
        try:
            machine.hear()
            machine.pause()
            for name, command in commands.items():
                children[name] = Child(name, command, Path(logs) / name)
                started[name] = children[name].hear_s()
                children[name].pause()
            rates, read = take_turns(children, machine, arguments.rounds)
        finally:
            for child in (*children.values(), machine):
                child.close()
    print("| task | engine | llama.cpp | ratio |\n| --- | ---: | ---: | ---: |")
    for task, found in rates.items():
        ours, theirs = found.values()
        ratio = statistics.median(a / b for a, b in zip(ours, theirs, strict=True))
        print(
            f"| {task} | {statistics.median(ours):.1f} | {statistics.median(theirs):.1f} | "
            f"{ratio:.2f} |"
        )
    each = token_bytes(arguments.model)
    for name, own in next(iter(rates.values())).items():
        print(
            f"{name}: a token reads {each / 1e6:.0f} MB: {each * statistics.median(own) / 1e9:.1f} "
            f"GB/s of {read / 1e9:.1f}"
        )
    for name, start_s in started.items():
        print(f"{name}: first token {start_s:.2f} s after its process began")
    print(f"of this engine's, imports took {imports():.2f} s")


if __name__ == "__main__":
    main()
