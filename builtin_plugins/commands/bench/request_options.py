"""Options of `engine bench serve` that shape its requests: sampling, adapters, ramp-up."""

from __future__ import annotations

import argparse
import math
import re
from collections.abc import Mapping, Sequence
from random import Random
from typing import Any, Final

from core.api import ConfigError

SAMPLING: Final[Mapping[str, type]] = {
    "temperature": float,
    "top_p": float,
    "top_k": int,
    "min_p": float,
    "frequency_penalty": float,
    "presence_penalty": float,
    "repetition_penalty": float,
    "logprobs": int,
}
"""Fields of requests that are flags, too."""
STRATEGIES: Final = ("linear", "exponential")


def add_request_options(parser: argparse.ArgumentParser) -> None:
    """Add the flags."""
    add = parser.add_argument_group("the requests").add_argument
    for name, kind in SAMPLING.items():
        default = " (default: 0)" if name == "temperature" else ""
        add(
            f"--{name.replace('_', '-')}",
            type=kind,
            metavar="N",
            help=f"`{name}` of every request{default}",
        )
    add(
        "--ignore-eos",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="generate --output-len tokens whatever comes (default: true)",
    )
    add(
        "--lora-modules",
        nargs="+",
        default=[],
        metavar="NAME",
        help="adapters; each request uses one",
    )
    add(
        "--lora-assignment",
        choices=("random", "round-robin"),
        default="random",
        help="which adapter a request uses (default: random)",
    )
    add(
        "--request-id-prefix",
        default="",
        metavar="TEXT",
        help="X-Request-Id of each measured request: this text and its number (default: no id)",
    )
    add(
        "--ramp-up-strategy",
        choices=STRATEGIES,
        help="how the request rate grows over the run",
    )
    add("--ramp-up-start-rps", type=float, metavar="R", help="requests a second at the start")
    add("--ramp-up-end-rps", type=float, metavar="R", help="requests a second at the end")


def check_request_options(args: argparse.Namespace) -> None:
    """Raise `ConfigError` for wrong ids, and for a ramp-up that is not whole or next to a rate."""
    if re.search(r"[^!-~]", args.request_id_prefix):
        raise ConfigError(
            f"--request-id-prefix: got {args.request_id_prefix!r}; expected printable ASCII "
            "without spaces, as headers take it. Change it."
        )
    rates = {"start": args.ramp_up_start_rps, "end": args.ramp_up_end_rps}
    for name, rate in rates.items():
        if args.ramp_up_strategy is None and rate is not None:
            raise ConfigError(
                f"--ramp-up-{name}-rps: got {rate:g} without --ramp-up-strategy. Add that."
            )
        if args.ramp_up_strategy is not None and not (rate and 0 < rate < math.inf):
            raise ConfigError(
                f"--ramp-up-{name}-rps: got {rate}; expected a number greater than 0 next to "
                "--ramp-up-strategy. Set it."
            )
    if args.ramp_up_strategy is not None and not math.isinf(args.request_rate):
        raise ConfigError(
            f"--request-rate: got {args.request_rate:g} next to --ramp-up-strategy; expected one "
            "of them. Remove it."
        )


def request_fields(args: argparse.Namespace) -> dict[str, Any]:
    """Return the fields of every request."""
    given = {name: getattr(args, name) for name in SAMPLING if getattr(args, name) is not None}
    if args.backend == "openai-chat" and "logprobs" in given:
        given["top_logprobs"] = given["logprobs"]
        given["logprobs"] = True
    return {"temperature": 0, **({"ignore_eos": True} if args.ignore_eos else {}), **given}


def choose_models(args: argparse.Namespace, model: str, count: int, rng: Random) -> list[str]:
    """Return the model of each request: the served one, or an adapter."""
    names: Sequence[str] = args.lora_modules
    if not names:
        return [model] * count
    if args.lora_assignment == "round-robin":
        return [names[index % len(names)] for index in range(count)]
    return [rng.choice(names) for _ in range(count)]


def ramp_rates(strategy: str, start: float, end: float, count: int) -> list[float]:
    """Return the request rate at each request."""
    shares = [index / max(count - 1, 1) for index in range(count)]
    if strategy == "linear":
        return [start + (end - start) * share for share in shares]
    return [start * (end / start) ** share for share in shares]
