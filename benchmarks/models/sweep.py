"""Random configs of every served model type against transformers, in float32.

Run: `python -m benchmarks.models.sweep [NAME...] [--seeds 3] [--first 0] [--part 0/4]
[--minimize]`.

For each type and seed: `core.testing.random_configs` changes its tiny config, transformers saves a
model with random weights, and the engine runs the folder: causal models in chunks and with a warm
prefix cache, encoder-decoders, and pooling models. Tokens must be equal, log-probabilities and
embeddings within 0.001. Prints a line for each config that differs or is refused, with the changed
fields, and the totals. `--minimize` leaves out the changes that an outcome does not need.
"""

from __future__ import annotations

import argparse
import json
import random
import tempfile
import warnings
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers

from benchmarks.models.references import comparison_of
from builtin_plugins.commands.models.command import read_table
from core.errors import EngineError
from core.testing.checkpoints import ARCHITECTURES, make_checkpoint, tiny_config
from core.testing.published.catalog import PUBLISHED
from core.testing.random_configs import Changes, draw_changes, merge
from core.testing.shrunken import causal_types
from core.testing.tiny_encoder_decoders import ENCODER_DECODERS
from core.testing.tiny_encoders import POOLED

ATTEMPTS = 6
"""Configs to draw of a type until transformers runs one; each has fewer changes."""


@dataclass(frozen=True)
class Outcome:
    """What one config gave."""

    kind: str
    """"equal", "differs", "refused", "not made" (by transformers) or "tied"."""
    detail: str = ""


def names() -> list[str]:
    """Return all served types and architectures."""
    refused = {name for name, row in read_table().items() if row.get("reason")}
    types = {name for name, owner in causal_types().items() if owner not in refused}
    return sorted({*types, *ARCHITECTURES, *ENCODER_DECODERS, *POOLED} - set(PUBLISHED))


def try_config(architecture: str, changes: Changes, seed: int) -> Outcome:
    """Make one config's model, and compare it."""
    compared = comparison_of(architecture)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        try:
            make_checkpoint(architecture, folder, seed=seed, **changes)
            cases = compared.cases(folder, architecture)
        except Exception as error:  # noqa: BLE001 - a config that transformers cannot run
            return Outcome("not made", f"{type(error).__name__}: {error}"[:200])
        if not cases:
            return Outcome("tied")
        try:
            difference = compared.difference(folder, cases)
        except EngineError as error:
            return Outcome("refused", " ".join(str(error).split())[:300])
        return Outcome("differs", difference) if difference else Outcome("equal")


def draw_outcome(architecture: str, seed: int) -> tuple[Outcome, list[Changes]]:
    """Draw configs until transformers runs one; return its outcome and changes."""
    try:
        tiny_config(architecture)
    except Exception as error:  # noqa: BLE001 - a type without a tiny form
        return Outcome("not made", str(error)[:200]), []
    draw = random.Random(f"{architecture} {seed}")
    for attempt in range(ATTEMPTS):
        groups = draw_changes(architecture, draw)
        groups = groups[: max(1, len(groups) >> attempt)]
        outcome = try_config(architecture, merge(groups), seed)
        if outcome.kind != "not made":
            break
    return outcome, groups


def minimize(architecture: str, groups: list[Changes], seed: int, kind: str) -> list[Changes]:
    """Return the changes without those that the same outcome does not need."""
    for group in list(groups):
        fewer = [each for each in groups if each is not group]
        if try_config(architecture, merge(fewer), seed).kind == kind:
            groups = fewer
    return groups


def sweep(chosen: Sequence[str], seeds: range, *, minimizes: bool = False) -> Counter[str]:
    """Print what differs; return the number of configs by outcome."""
    counts: Counter[str] = Counter()
    for name in chosen:
        for seed in seeds:
            outcome, groups = draw_outcome(name, seed)
            counts[outcome.kind] += 1
            if minimizes and outcome.kind in ("differs", "refused"):
                groups = minimize(name, groups, seed, outcome.kind)
            if outcome.kind != "equal":
                changes = json.dumps(merge(groups), default=str)
                print(f"{name} {seed} {outcome.kind}: {outcome.detail} {changes}", flush=True)
        print(f"{name}: {dict(counts)}", flush=True)
    return counts


def main() -> None:
    warnings.filterwarnings("ignore")
    log: Any = transformers.utils.logging
    log.set_verbosity_error()
    log.disable_progress_bar()
    torch.set_num_threads(1)
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="model types or architectures; default: all")
    parser.add_argument("--seeds", type=int, default=3, help="number of configs of each")
    parser.add_argument("--first", type=int, default=0, help="first seed")
    parser.add_argument("--part", default="0/1", help="I/N: every N-th name from the I-th on")
    parser.add_argument("--minimize", action="store_true")
    options = parser.parse_args()
    part, number = map(int, options.part.split("/"))
    seeds = range(options.first, options.first + options.seeds)
    sweep(options.names or names()[part::number], seeds, minimizes=options.minimize)


if __name__ == "__main__":
    main()
