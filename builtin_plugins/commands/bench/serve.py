"""`engine bench serve`: load test of a running server over HTTP."""

from __future__ import annotations

import asyncio
import json
import math
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any, Final

import msgspec

from builtin_plugins.commands.bench.figures import METRICS, details, figures, measurements
from builtin_plugins.commands.bench.http_stream import HttpClient, HttpError
from builtin_plugins.commands.bench.openai_api import (
    ENDPOINTS,
    Api,
    Outcome,
    Run,
    arrival_times,
    run_load,
)
from builtin_plugins.commands.bench.plot import plot_distributions
from builtin_plugins.commands.bench.prompt_source import (
    PromptSource,
    Tokens,
    Words,
    tokens_from_file,
)
from builtin_plugins.commands.bench.report import (
    add_output,
    bar,
    check_counts,
    check_output,
    conditions,
    print_table,
    seconds,
    warn_if_busy,
    write_json,
)
from builtin_plugins.commands.bench.request_options import (
    add_request_options,
    check_request_options,
    choose_models,
    ramp_rates,
    request_fields,
)
from builtin_plugins.commands.bench.workload import Sample, add_dataset, check_dataset, make_samples
from core.api import ConfigError, EngineError
from core.api.config import read_environment

if TYPE_CHECKING:
    import argparse

    from core.api import CommandContext

POLL_S: Final = 0.5
BUSY_CLIENT: Final = 0.8
"""Share of a core above which this client may be the bottleneck."""
MAX_ERRORS: Final = 3
GOALS: Final = ("ttft", "tpot", "e2el")


class ServeLoad:
    """Client of any OpenAI-compatible server; it has no engine options."""

    help = "Measure latency and throughput of a running server."
    takes_engine_options = False

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Add server, load, dataset and report flags."""
        _add_server(parser)
        _add_load(parser)
        add_request_options(parser)
        add_dataset(parser, num_prompts=100)
        _add_report(parser)
        add_output(parser)

    def run(self, context: CommandContext) -> int:
        """Measure and report; return 1 if every request failed."""
        return 0 if self.measure(context.args)["completed"] else 1

    def measure(self, args: argparse.Namespace) -> dict[str, Any]:
        """Measure, report, and return the result."""
        _check(args)
        goals = _goals(args.goodput)
        percents = _percents(args.metric_percentiles)
        extra = _object("--extra-body", args.extra_body)
        metadata = _pairs("--metadata", args.metadata)
        check_dataset(args)
        check_output(args)
        where = conditions()
        run, api = asyncio.run(_measure(args, extra))
        result = {
            "date": where["date"],
            "backend": args.backend,
            **({"label": args.label} if args.label else {}),
            "model_id": api.model,
            "tokenizer_id": args.tokenizer,
            "num_prompts": args.num_prompts,
            "request_rate": "inf" if math.isinf(args.request_rate) else args.request_rate,
            "burstiness": args.burstiness,
            "max_concurrency": args.max_concurrency,
            **metadata,
            **figures(run, args.percentile_metrics.split(","), percents, goals),
            "conditions": where,
        }
        if args.save_detailed:
            result |= details(run.outcomes)
        _show(result, args.percentile_metrics.split(","), percents, run)
        write_json(args.output_json, result)
        if args.save_result or args.save_detailed:
            print(f"Saved as {_save(args, result)}")
        if args.plot is not None:
            measured = measurements([outcome for outcome in run.outcomes if not outcome.error])
            panels = {METRICS[name]: values for name, values in measured.items()}
            plot_distributions(
                args.plot, f"{result['completed']} requests to {api.model}", panels, "milliseconds"
            )
        return result


def _add_server(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("the server").add_argument
    add(
        "--backend",
        choices=list(ENDPOINTS),
        default="openai",
        help="completions or chat (default: openai)",
    )
    address = "address without path, such as http://127.0.0.1:8000"
    add("--base-url", "--url", metavar="URL", help=address)
    add("--host", default="127.0.0.1", help="without --base-url (default: 127.0.0.1)")
    add("--port", type=int, default=8000, metavar="N", help="with --host (default: 8000)")
    add("--endpoint", metavar="PATH", help="default: /v1/completions or /v1/chat/completions")
    add("--model", metavar="NAME", help="default: the first model that the server lists")
    add(
        "--tokenizer",
        metavar="NAME",
        help="folder or hub id; default: the server's own, at /tokenize",
    )
    add("--api-key", metavar="KEY", help="default: ENGINE_API_KEY")
    add(
        "--extra-body",
        metavar="JSON",
        help="fields added to every request; temperature is 0 unless set here",
    )
    add("--header", nargs="+", default=[], metavar="KEY=VALUE", help="headers of every request")
    add(
        "--served-model-name",
        metavar="NAME",
        help="name of the model in requests, where --model is not",
    )
    add(
        "--profile",
        action="store_true",
        help="profile the server meanwhile (its --profiler-config names the folder)",
    )


def _add_load(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("load").add_argument
    add(
        "--request-rate",
        type=float,
        default=math.inf,
        metavar="R",
        help="requests a second (default: inf, at once)",
    )
    add(
        "--burstiness",
        type=float,
        default=1.0,
        metavar="B",
        help="1: Poisson; below 1: bursts (default: 1)",
    )
    add(
        "--max-concurrency",
        type=int,
        metavar="N",
        help="maximum open requests (default: no limit)",
    )
    add(
        "--num-warmups",
        type=int,
        default=1,
        metavar="N",
        help="requests before the measured ones (default: 1)",
    )
    add(
        "--seed", type=int, default=0, metavar="N", help="seed of prompts and arrivals (default: 0)"
    )
    add(
        "--ready-check-timeout-sec",
        type=float,
        default=0,
        metavar="S",
        help="seconds to wait for the server (default: 0)",
    )
    add(
        "--request-timeout-sec",
        type=float,
        default=3600,
        metavar="S",
        help="timeout of a request (default: 3600)",
    )


def _add_report(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("metrics to report").add_argument
    names = ",".join(METRICS)
    add(
        "--percentile-metrics",
        default=names,
        metavar="NAMES",
        help=f"metrics with percentiles (default: {names})",
    )
    add(
        "--metric-percentiles",
        default="90,99",
        metavar="P,P",
        help="percentiles (default: 90,99)",
    )
    goal = "METRIC:MS: count requests within all bounds, such as ttft:300 tpot:30"
    add("--goodput", nargs="+", default=[], metavar="GOAL", help=goal)
    add(
        "--save-result",
        action="store_true",
        help="save the JSON with date and settings as name",
    )
    add(
        "--save-detailed",
        action="store_true",
        help="also save times and texts of every request",
    )
    add(
        "--result-dir",
        default=".",
        metavar="DIR",
        help="folder of saved results (default: current folder)",
    )
    add("--result-filename", metavar="NAME", help="name of the saved file")
    add("--metadata", nargs="+", default=[], metavar="KEY=VALUE", help="added to the result")
    add("--label", metavar="TEXT", help="name of the run in the result")
    add("--disable-tqdm", action="store_true", help="no progress bar")


def _check(args: argparse.Namespace) -> None:
    check_request_options(args)
    check_counts(args, num_prompts=1, input_len=1, num_warmups=0, max_concurrency=1)
    for flag, value in (("request-rate", args.request_rate), ("burstiness", args.burstiness)):
        if not value > 0:
            raise ConfigError(f"--{flag} {value:g} is invalid; expected a number greater than 0.")
    for name in args.percentile_metrics.split(","):
        if name not in METRICS:
            raise ConfigError(
                f"--percentile-metrics: unknown metric {name!r}; there are: {', '.join(METRICS)}."
            )
    if not Path(args.result_dir).is_dir():
        raise ConfigError(f"--result-dir {args.result_dir}: there is no such folder.")


def _goals(texts: list[str]) -> dict[str, float]:
    goals = {}
    for text in texts:
        name, _, value = text.partition(":")
        try:
            goals[name] = float(value)
        except ValueError as error:
            raise ConfigError(
                f"--goodput {text}: give METRIC:MILLISECONDS, such as ttft:300."
            ) from error
        if name not in GOALS:
            raise ConfigError(
                f"--goodput {text}: unknown metric {name!r}; there are: {', '.join(GOALS)}."
            )
    return goals


def _percents(text: str) -> list[float]:
    try:
        percents = [float(part) for part in text.split(",")]
    except ValueError as error:
        raise ConfigError(
            f"--metric-percentiles {text}: give numbers, such as 50,90,99."
        ) from error
    if not all(0 <= percent <= 100 for percent in percents):
        raise ConfigError(f"--metric-percentiles {text}: a percentile is from 0 to 100.")
    return percents


def _object(flag: str, text: str | None) -> dict[str, Any]:
    try:
        value = json.loads(text) if text else {}
    except ValueError as error:
        raise ConfigError(f"{flag} {text}: not JSON: {error}.") from error
    if not isinstance(value, dict):
        raise ConfigError(f"{flag} {text}: give a JSON object, such as '{{\"top_p\": 0.9}}'.")
    return value


def _pairs(flag: str, texts: list[str]) -> dict[str, str]:
    for text in texts:
        if "=" not in text:
            raise ConfigError(f"{flag} {text}: give KEY=VALUE.")
    return dict(text.split("=", 1) for text in texts)


async def _measure(args: argparse.Namespace, extra: Mapping[str, Any]) -> tuple[Run, Api]:
    """Connect, warm up, and run the load."""
    key = args.api_key or read_environment().get("ENGINE_API_KEY")
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    headers |= _pairs("--header", args.header)
    url = args.base_url or f"http://{args.host}:{args.port}"
    client = HttpClient(url, headers, args.request_timeout_sec)
    try:
        model = (
            args.served_model_name
            or args.model
            or await _find_model(client, url, args.ready_check_timeout_sec)
        )
        endpoint = args.endpoint or ENDPOINTS[args.backend]
        api = Api(client, args.backend, endpoint, model, request_fields(args) | dict(extra))
        units = await _units(args, client, model)
        rng = Random(args.seed)
        # Tokenizer calls block, so they must not run in the event loop that
        # executes them.
        samples = await asyncio.to_thread(make_samples, args, units, rng)
        await _warm_up(api, samples, args, url)
        due_s = arrival_times(_rates(args, len(samples)), args.burstiness, rng)
        models = choose_models(args, model, len(samples), rng)
        with bar(len(samples), "Requests", "req", disable=args.disable_tqdm) as progress:
            if args.profile:
                await _call(client, "/start_profile")
            run = await run_load(
                api,
                samples,
                due_s,
                models,
                max_concurrency=args.max_concurrency,
                keep_text=args.save_detailed,
                done=lambda: progress.update(1),
                id_prefix=args.request_id_prefix,
            )
            if args.profile:
                await _call(client, "/stop_profile")
    finally:
        await client.close()
    return run, api


def _rates(args: argparse.Namespace, count: int) -> list[float]:
    """Return the request rate at each request."""
    if args.ramp_up_strategy is None:
        return [args.request_rate] * count
    return ramp_rates(args.ramp_up_strategy, args.ramp_up_start_rps, args.ramp_up_end_rps, count)


async def _call(client: HttpClient, path: str) -> None:
    """Call a route without a body. Raises `EngineError` if the server refuses."""
    try:
        await client.call("POST", path)
    except HttpError as error:
        raise EngineError(f"--profile: {path}: {error}") from error


async def _find_model(client: HttpClient, url: str, timeout_s: float) -> str:
    """Return the first model of the server; waits for the server.

    Raises `EngineError` on a timeout.
    """
    until_s = time.monotonic() + timeout_s
    while True:
        try:
            answer = json.loads(await client.call("GET", "/v1/models"))
            name: str = answer["data"][0]["id"]
        except HttpError as error:
            raise EngineError(f"{url}/v1/models: {error} Name the model with --model.") from error
        except (ValueError, LookupError, TypeError) as error:
            raise EngineError(f"{url}/v1/models lists no model. Set --model.") from error
        except OSError as error:
            if time.monotonic() < until_s:
                await asyncio.sleep(POLL_S)
                continue
            waited = f" for {timeout_s:g} s" if timeout_s else ""
            raise EngineError(
                f"nothing answers at {url}{waited}: {error.strerror or error}. Start a server with "
                "`engine serve "
                "MODEL`, say where it is with --base-url, or wait for it with "
                "--ready-check-timeout-sec."
            ) from error
        else:
            return name


async def _units(args: argparse.Namespace, client: HttpClient, model: str) -> PromptSource:
    """Return the source of random prompts: exact tokens if a tokenizer is available."""
    as_text = args.backend == "openai-chat"
    if args.tokenizer is not None:
        return tokens_from_file(args.tokenizer, as_text=as_text)
    loop = asyncio.get_running_loop()

    def call(path: str, **fields: Any) -> Any:
        body = msgspec.json.encode({"model": model, **fields})
        return json.loads(
            asyncio.run_coroutine_threadsafe(client.call("POST", path, body), loop).result()
        )

    def encode(text: str) -> list[int]:
        ids: list[int] = call("/tokenize", prompt=text, add_special_tokens=False)["tokens"]
        return ids

    def decode(ids: list[int]) -> str:
        text: str = call("/detokenize", tokens=ids)["prompt"]
        return text

    try:
        await asyncio.to_thread(encode, "word")
    except (HttpError, OSError, ValueError, LookupError, TypeError):
        print(
            "This server has no /tokenize: prompts have one word per requested token. "
            "Set --tokenizer for exact lengths."
        )
        return Words()
    return Tokens(encode, decode, as_text=as_text)


async def _warm_up(api: Api, samples: list[Sample], args: argparse.Namespace, url: str) -> None:
    """Send a few short requests.

    Raises `EngineError` with the server's message if one fails.
    """
    for sample in samples[: args.num_warmups]:
        outcome = await api.send(replace(sample, output_tokens=min(8, sample.output_tokens)), 0.0)
        if outcome.error:
            raise EngineError(f"the first request to {url}{api.endpoint} failed: {outcome.error}")


def _show(result: Mapping[str, Any], chosen: list[str], percents: list[float], run: Run) -> None:
    rows = [
        ("completed requests", f"{result['completed']:,}"),
        ("failed requests", f"{result['failed']:,}"),
        ("time", seconds(result["duration"])),
        ("prompt tokens", f"{result['total_input_tokens']:,}"),
        ("generated tokens", f"{result['total_output_tokens']:,}"),
        ("requests a second", f"{result['request_throughput']:.2f}"),
        ("generated tokens a second", f"{result['output_throughput']:,.1f}"),
        ("tokens a second, prompts included", f"{result['total_token_throughput']:,.1f}"),
        ("peak generated tokens per second", f"{result['max_output_tokens_per_s']:,.0f}"),
        ("peak open requests", f"{result['max_concurrent_requests']:,}"),
        ("CPU use of this client", f"{result['client_cpu_share']:.0%}"),
    ]
    if result["request_goodput"] is not None:
        rows.insert(6, ("requests within the goals", f"{result['request_goodput']:.2f}"))
    print_table(f"Serving of {result['model_id']}", rows)
    for name in chosen:
        columns = ("mean", "median", *(f"p{percent:g}" for percent in percents))
        figures_of = ((kind, f"{result[f'{kind}_{name}_ms']:.2f} ms") for kind in columns)
        print_table(f"{METRICS[name]} ({name})", figures_of)
    _warn(result, run.outcomes)


def _warn(result: Mapping[str, Any], outcomes: list[Outcome]) -> None:
    errors = list(dict.fromkeys(outcome.error for outcome in outcomes if outcome.error))
    for error in errors[:MAX_ERRORS]:
        print(f"Failed: {error}")
    if result["client_cpu_share"] > BUSY_CLIENT:
        print("This client was busy and may be the bottleneck: reduce the load, or run several.")
    warn_if_busy(result["conditions"])


def _save(args: argparse.Namespace, result: Mapping[str, Any]) -> Path:
    name = args.result_filename
    if name is None:
        limit = "" if args.max_concurrency is None else f"-concurrency{args.max_concurrency}"
        model = Path(result["model_id"]).name.replace(":", "")
        date = time.strftime("%Y%m%d-%H%M%S")
        name = f"{args.backend}-{args.request_rate:g}qps{limit}-{model}-{date}.json"
    path: Path = Path(args.result_dir) / name
    write_json(str(path), result)
    return path
