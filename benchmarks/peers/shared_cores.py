"""Decode throughput of engines that share the cores with busy loops.

One stream decodes alone, then with one, two and four busy processes. With as many threads as cores,
the fair share is the rate alone times threads / (threads + loops). Step times are inter-token times
without the first. Engines alternate; all but one are paused. Writes shared_cores.json and
shared_cores.md.

Run: python -m benchmarks.peers.shared_cores --models FOLDER --peers FOLDER [--only NAME,NAME]
[--rounds N]
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Final

from benchmarks.peers import machine
from benchmarks.peers.child import Child, unwind_on_terminate
from benchmarks.peers.contenders import Setup, choose, contenders
from benchmarks.peers.work import Task, make_prompts

LOOPS: Final = (0, 1, 2, 4)
BUSY: Final = (sys.executable, "-S", "-c", "while True: pass")


@dataclass(frozen=True, slots=True)
class Shared:
    """One decoded stream with a number of loops."""

    contender: str
    loops: int
    round: int
    steps_s: Sequence[float]
    others: float
    """Mean cores used by neither the engine nor the loops."""


def fair_share(threads: int, cores: int, loops: int) -> float:
    """Return the fraction of its rate that an engine has with equal time per thread."""
    return min(1.0, cores / (threads + loops)) / min(1.0, cores / threads)


@contextmanager
def busy_loops(count: int) -> Iterator[list[int]]:
    """Keep a number of processes busy; yields their pids."""
    loops = [subprocess.Popen(BUSY) for _ in range(count)]
    try:
        yield [loop.pid for loop in loops]
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


def decode(child: Child, task: Task, loops: int, number: int) -> Shared:
    """Decode one stream during busy loops."""
    child.resume()
    with busy_loops(loops) as pids:
        loops_s = machine.cpu_s(pids)
        request = {"prompts": make_prompts(task, number), "num_tokens": task.output, "each": True}
        answer = child.call(request)
        loops_s = machine.cpu_s(pids) - loops_s
    child.pause()
    times = answer.content["times"]
    if len(times) != task.output:
        raise SystemExit(f"{child.name} made {len(times)} tokens, not {task.output}.")
    steps_s = [after - before for before, after in pairwise(times)]
    return Shared(
        child.name, loops, number, steps_s, max(0.0, answer.others - loops_s / answer.elapsed_s)
    )


def table(runs: Sequence[Shared], threads: int, cores: int, others: float) -> str:
    """Return medians of undisturbed rounds as markdown."""
    text = (
        "| | loops | tokens/s | of its rate alone | of its fair share | p99 step / median step |\n"
    )
    text += "| --- | ---: | ---: | ---: | ---: | ---: |\n"
    for name in dict.fromkeys(run.contender for run in runs):
        alone = 0.0
        for loops in sorted({run.loops for run in runs}):
            every_run = [run for run in runs if (run.contender, run.loops) == (name, loops)]
            mine = [run.steps_s for run in every_run if run.others <= others] or [
                run.steps_s for run in every_run
            ]
            rate = statistics.median(len(steps) / sum(steps) for steps in mine)
            alone = alone or rate
            every = sorted(step for steps in mine for step in steps)
            uneven = every[int(0.99 * (len(every) - 1))] / statistics.median(every)
            fraction = rate / alone
            fair = fair_share(threads, cores, loops)
            cells = f"{rate:.1f} | {fraction:.0%} | {fraction / fair:.0%} | {uneven:.1f}"
            text += f"| {name} | {loops} | {cells} |\n"
    return text


def main() -> None:
    """Measure, write and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    Setup.add_arguments(parser)
    parser.add_argument("--only", type=lambda text: text.split(","), default=["engine", "openvino"])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument(
        "--others",
        type=float,
        default=0.3,
        help="maximum cores of other processes during a run that counts",
    )
    parser.add_argument(
        "--engine", type=json.loads, default={}, help="options of this engine as JSON"
    )
    parser.add_argument("--out", type=Path, default=Path("peers-results"))
    given = parser.parse_args()
    unwind_on_terminate()
    given.out.mkdir(parents=True, exist_ok=True)
    setup = Setup(given.models, given.peers, given.threads)
    order = random.Random(0)
    task = Task("s", "one stream", 1, 64, given.tokens)
    runs: list[Shared] = []
    with ExitStack() as stack:
        children = []
        for contender in choose(contenders({16: given.engine}), [16], given.only):
            if problem := setup.missing(contender):
                print(f"{contender.name} is not there: {problem}", flush=True)
                continue
            log = given.out / f"shared_{contender.name}.log"
            child = Child(contender.name, setup.command(contender), log, setup.env(contender))
            children.append(stack.enter_context(child))
            child.hear()
            decode(child, task, 0, 1000)  # warmup
        for number in range(given.rounds):
            for loops in LOOPS:
                order.shuffle(children)
                for child in children:
                    runs.append(decode(child, task, loops, number))
                    rate = len(runs[-1].steps_s) / sum(runs[-1].steps_s)
                    print(
                        f"round {number + 1}, {loops} loops, {child.name}: {rate:.1f} tokens/s "
                        f"(others {runs[-1].others:.2f})",
                        flush=True,
                    )
            (given.out / "shared_cores.json").write_text(
                json.dumps([asdict(run) for run in runs]) + "\n"
            )
    text = table(runs, given.threads, machine.describe()["cores"], given.others)
    (given.out / "shared_cores.md").write_text(text)
    print(text)


if __name__ == "__main__":
    main()
