"""Compares engines: the same prompts and threads, alternating rounds, medians and limits.

Each engine is one process; all but the active one are paused. Every round measures the machine's
read bandwidth and product rate, then runs every task on every engine in random order. A peer that
was far slower than the best in the first round skips that task. Runs disturbed by other processes
are excluded from the medians. Writes results.json, table.md and plot.svg.

Run: python -m benchmarks.peers.compare --models FOLDER --peers FOLDER [--only NAME,NAME] [--bits
16,8,4] [--tasks abcdep] [--isa avx2|avx512]
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from benchmarks.peers import machine
from benchmarks.peers.child import Child, ChildEndedError, unwind_on_terminate
from benchmarks.peers.contenders import (
    CHECKPOINT,
    HELD,
    HERE,
    Contender,
    Setup,
    choose,
    contenders,
)
from benchmarks.peers.limits import Shape
from benchmarks.peers.make_model import write_model
from benchmarks.peers.plot import draw
from benchmarks.peers.results import Results, Run, Start
from benchmarks.peers.table import tables
from benchmarks.peers.work import TASKS, WARM_UP, Task, figures, make_prompts

OTHER_SEEDS = 1_000_000
"""Seed offset for prompts that need only the first token."""
REST_S = 2.0
"""Idle time in seconds before each task."""


@dataclass
class Rival:
    """A running contender."""

    contender: Contender
    child: Child

    def do(self, task: Task, seed: int) -> tuple[dict[str, float], float, float]:
        """Run a task once; return its figures, and the mean cores of it and of others."""
        self.child.resume()
        time.sleep(REST_S)
        first_s = None
        if task.first_alone:
            answer = self.child.call(
                {"prompts": make_prompts(task, seed + OTHER_SEEDS), "num_tokens": 1}
            )
            first_s = answer.content["seconds"]
        answer = self.child.call({"prompts": make_prompts(task, seed), "num_tokens": task.output})
        self.child.pause()
        if (counts := answer.content["counts"]) != [task.output] * task.requests:
            raise SystemExit(
                f"{self.contender.name} made {counts} tokens for task {task.key}, not "
                f"{task.output} each."
            )
        return figures(task, answer.content["seconds"], first_s), answer.cores, answer.others


@dataclass(frozen=True, slots=True)
class Rules:
    """Rules for excluding runs."""

    again_within: float
    """Maximum slowdown against the best for a peer to run again."""
    others: float
    """Maximum mean cores of other processes for a run to count."""


class Comparison:
    """Processes and results of one comparison."""

    def __init__(
        self, setup: Setup, out: Path, stack: ExitStack, results: Results, rules: Rules
    ) -> None:
        """Start the process that measures the machine."""
        self.results = results
        self._setup = setup
        self._out = out
        self._stack = stack
        self._rules = rules
        shape = Shape.read(setup.models / CHECKPOINT)
        script = HERE / "drivers" / "measure_machine.py"
        products = json.dumps(list(shape.products.values()))
        command = [
            sys.executable,
            str(script),
            "--threads",
            str(setup.threads),
            "--products",
            products,
            *(("--isa", setup.isa) if setup.isa else ()),
        ]
        self._machine = stack.enter_context(
            Child("the machine", command, out / "machine.log", setup.held())
        )
        self._machine.hear()
        self._machine.pause()
        self._rivals: list[Rival] = []

    def enter(self, contender: Contender) -> None:
        """Start a contender, or record why it is missing."""
        problem = self._setup.missing(contender)
        results = self.results
        if problem is None:
            log = self._out / f"{contender.name.replace(' ', '_')}.log"
            busy = machine.busy_s()
            child = Child(
                contender.name, self._setup.command(contender), log, self._setup.env(contender)
            )
            self._stack.enter_context(child)
            try:
                start_s = child.hear_s()
                others = (machine.busy_s() - busy - machine.cpu_s(child.family())) / start_s
                start = Start(
                    contender.name, contender.bits, start_s, child.pss_bytes(), max(0.0, others)
                )
                rival = Rival(contender, child)
                rival.do(WARM_UP, 0)
            except ChildEndedError as error:
                problem = str(error)
            else:
                results.starts.append(start)
                self._rivals.append(rival)
                say(f"{contender.name}: first token after {start_s:.1f} s")
        if problem is not None:
            results.missing[contender.name] = problem
            say(f"{contender.name} is not there: {problem}")

    def round(self, number: int, tasks: list[Task], order: random.Random) -> None:
        """Measure the machine, then run every task on every contender."""
        self._machine.resume()
        answer = self._machine.call({})
        self.results.rates.append({**answer.content, "others": answer.others})
        self._machine.pause()
        for task in tasks:
            rivals = [rival for rival in self._rivals if task.key in rival.contender.tasks]
            rivals = [rival for rival in rivals if rival.contender.ours or self._near(rival, task)]
            order.shuffle(rivals)
            for rival in rivals:
                try:
                    found, cores, others = rival.do(task, number)
                except ChildEndedError as error:
                    self._leave(rival, f"{task.key}, round {number + 1}: {error}")
                    continue
                self.results.runs.append(
                    Run(rival.contender.name, task.key, number, found, cores, others)
                )
                figures_text = ", ".join(f"{value:.1f} {name}" for name, value in found.items())
                say(
                    f"round {number + 1}, {task.key}, {rival.contender.name}: {figures_text} "
                    f"(others {others:.2f} cores)"
                )
        for rival in self._rivals:
            self.results.final_pss_bytes[rival.contender.name] = rival.child.pss_bytes()

    def _leave(self, rival: Rival, why: str) -> None:
        """Continue without an ended contender; its results count."""
        self._rivals.remove(rival)
        self.results.missing[rival.contender.name] = why
        say(f"{rival.contender.name} is no longer there: {why}")

    def _near(self, rival: Rival, task: Task) -> bool:
        """Return whether a peer's undisturbed results are close to the best of its bits."""
        alike = {
            other.contender.name
            for other in self._rivals
            if other.contender.bits == rival.contender.bits
        }
        rates = [
            (
                run.contender,
                list(run.figures.values())[-1],
            )  # the last figure of each task is a rate
            for run in self.results.runs
            if run.task == task.key and run.contender in alike and run.others <= self._rules.others
        ]
        own = [rate for name, rate in rates if name == rival.contender.name]
        return not own or max(own) * self._rules.again_within >= max(rate for _, rate in rates)


def say(text: str) -> None:
    """Print a message at once."""
    print(text, flush=True)


def arguments() -> argparse.Namespace:
    """Return the command line arguments."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    Setup.add_arguments(parser, models_required=False)
    parser.add_argument(
        "--only", type=lambda text: text.split(","), default=[], help="beginnings of names"
    )
    parser.add_argument(
        "--bits", type=lambda text: [int(part) for part in text.split(",")], default=[16]
    )
    parser.add_argument(
        "--tasks",
        default="".join(TASKS),
        help="; ".join(f"{t.key}: {t.about}" for t in TASKS.values()),
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--isa", choices=HELD, help="instruction set that all engines are held to")
    parser.add_argument(
        "--again-within", type=float, default=1.5, help="times slower than the best"
    )
    parser.add_argument(
        "--others",
        type=float,
        default=0.3,
        help="maximum cores of other processes during a run that counts",
    )
    parser.add_argument(
        "--engine", type=json.loads, default={}, help="options of this engine, as JSON"
    )
    parser.add_argument(
        "--engine8", type=json.loads, default={"quantization": "int8"}, help="for 8 bits"
    )
    parser.add_argument(
        "--engine4", type=json.loads, default={"quantization": "int4"}, help="for 4 bits"
    )
    parser.add_argument("--out", type=Path, default=Path("peers-results"))
    return parser.parse_args()


def main() -> None:
    """Compare, write and print."""
    given = arguments()
    unwind_on_terminate()
    given.out.mkdir(parents=True, exist_ok=True)
    everyone = contenders({16: given.engine, 8: given.engine8, 4: given.engine4})
    with ExitStack() as stack:
        models = given.models
        if models is None:
            models = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            write_model(models / CHECKPOINT)
        settings = {name: str(value) for name, value in vars(given).items()}
        results = Results(machine.describe(), settings)
        setup = Setup(models, given.peers, given.threads, given.isa)
        rules = Rules(given.again_within, given.others)
        comparison = Comparison(setup, given.out, stack, results, rules)
        for contender in choose(everyone, given.bits, given.only):
            comparison.enter(contender)
        order = random.Random(0)
        for number in range(given.rounds):
            comparison.round(number, [TASKS[key] for key in given.tasks], order)
            results.write(given.out / "results.json")
        shape = Shape.read(models / CHECKPOINT)
    text = tables(results, shape, given.others)
    (given.out / "table.md").write_text(text)
    (given.out / "plot.svg").write_text(draw(results, shape, given.others))
    print(text)


if __name__ == "__main__":
    main()
