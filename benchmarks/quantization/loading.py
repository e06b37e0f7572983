"""What loading takes: the most memory a process has until its first token, beside the bytes of the files, and how long it takes.

    python -m benchmarks.quantization.loading model.Q4_K_M.gguf FOLDER ... [--quantization int4] [--rounds 3]

Every figure is of a process of its own that makes an `LLM` and one token; files are in the page cache. Memory is all that the
process has in memory, pages of files that it looks at included (VmHWM). From it is taken what imports alone cost, and, for the
second ratio, what the same engine has with the demo model instead, less that model's own bytes: threads, buffers, tokenizer.
The cache is 16 MiB, because what is taken of it ahead of use grows with the weights (a fourth of their bytes) and is no part of
loading; `--kv-cache-bytes` gives another.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

DEMO = "demo:"
IMPORTS = "imports"
READ_BYTES = 1 << 24
Figures = dict[str, float]


def status(name: str) -> int:
    """Return a figure of /proc/self/status in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{name}:"))


def measure(model: str, cache_bytes: int, threads: int, quantization: str | None) -> Figures:
    """Return the peak of this process, after imports, with the model in place and with its first token."""
    import core.nn.decoder  # noqa: F401 - what every model imports
    from core import LLM, SamplingParams

    found: Figures = {IMPORTS: status("VmHWM")}
    if model == IMPORTS:
        return found
    options = {"max_model_len": 256, "max_num_seqs": 1, "kv_cache_memory_bytes": cache_bytes, "num_threads": threads}
    with LLM(model, log_level="error", quantization=quantization, **options) as llm:
        found["loaded"] = status("VmHWM")
        params = SamplingParams(temperature=0, max_tokens=1, detokenize=False)
        llm.generate([list(range(10, 26))], params, use_tqdm=False)
        found["token"] = status("VmHWM")
        found["mapped"] = status("RssFile")
    return found


def files_of(model: str) -> Iterator[Path]:
    """Yield the files that hold a model's weights."""
    path = Path(model)
    yield from sorted(path.glob("*.safetensors")) if path.is_dir() else [path]


def in_a_process(model: str, arguments: argparse.Namespace) -> Figures:
    """Return the figures of a fresh process, and how many seconds it took."""
    if Path(model).exists():
        for path in files_of(model):
            with path.open("rb") as file:
                while file.read(READ_BYTES):
                    pass
    command = [sys.executable, "-m", "benchmarks.quantization.loading", model, "--child"]
    command += ["--kv-cache-bytes", str(arguments.kv_cache_bytes), "--threads", str(arguments.threads)]
    if arguments.quantization and model not in (DEMO, IMPORTS):
        command += ["--quantization", arguments.quantization]
    began = time.monotonic()
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return {**json.loads(done.stdout.splitlines()[-1]), "seconds": time.monotonic() - began}


def middle(model: str, arguments: argparse.Namespace) -> Figures:
    """Return the medians of several processes."""
    rounds = [in_a_process(model, arguments) for _ in range(arguments.rounds)]
    return {name: statistics.median(figures[name] for figures in rounds) for name in rounds[0]}


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+")
    parser.add_argument("--quantization")
    parser.add_argument("--kv-cache-bytes", type=int, default=16 << 20)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        (model,) = arguments.models
        found = measure(model, arguments.kv_cache_bytes, arguments.threads, arguments.quantization)
        print(json.dumps(found))
        return
    from builtin_plugins.demo.plugin import FOLDER

    imports, demo = middle(IMPORTS, arguments), middle(DEMO, arguments)
    own = demo["token"] - sum(path.stat().st_size for path in files_of(str(FOLDER)))
    print(f"imports: {imports['seconds']:.2f} s, {imports[IMPORTS] / 1e6:.0f} MB; with an engine {own / 1e6:.0f} MB\n")
    print("| model | files, MB | peak, MB | over imports | over the engine | of it still mapped | first token |")
    print("| --- | ---: | ---: | ---: | ---: | ---: | ---: |")
    for model in arguments.models:
        size, found = sum(path.stat().st_size for path in files_of(model)), middle(model, arguments)
        over = [(found["token"] - taken) / size for taken in (imports[IMPORTS], own)]
        print(
            f"| {Path(model).name} | {size / 1e6:.0f} | {found['token'] / 1e6:.0f} | {over[0]:.2f} | {over[1]:.2f} "
            f"| {found['mapped'] / 1e6:.0f} MB | {found['seconds']:.2f} s |",
            flush=True,
        )


if __name__ == "__main__":
    main()
