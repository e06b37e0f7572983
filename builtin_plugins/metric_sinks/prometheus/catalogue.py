"""All metrics: name, type, labels, buckets and meaning. Dashboards depend on the names.

Metrics that vLLM has too have its names and labels.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

Type = Literal["counter", "gauge", "histogram"]

SHORT_S: Final = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75),
    *(1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0),
)
BETWEEN_S: Final = (
    *(0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75),
    *(1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0),
)
LONG_S: Final = (
    *(0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0),
    *(120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0),
)
STEP_S: Final = (
    *(0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1),
    *(0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 60.0),
)
TOKENS: Final = (*(float(digit * 10**power) for power in range(6) for digit in (1, 2, 5)), 1e6)
STEP_TOKENS: Final = (1.0, *(float(2**power) for power in range(3, 15)))
SEQUENCES: Final = (1.0, 2.0, 5.0, 10.0, 20.0)

FINISH_REASONS: Final = ("stop", "length", "abort", "error")
SOURCES: Final = ("local_compute", "local_cache_hit", "external_kv_transfer")


@dataclass(frozen=True, slots=True)
class MetricSpec:
    """One metric. Every one has the label `model_name`, and those in `labels`."""

    name: str
    """Name without prefix; on the page a counter ends with `_total`."""
    type: Type
    text: str
    buckets: tuple[float, ...] = ()
    labels: tuple[str, ...] = ()


def _seconds(name: str, text: str, buckets: tuple[float, ...] = LONG_S) -> MetricSpec:
    return MetricSpec(name, "histogram", text, buckets)


ENGINE: Final = (
    MetricSpec("num_requests_running", "gauge", "Sequences in the engine's batch."),
    MetricSpec("num_requests_waiting", "gauge", "Sequences waiting for a row of the batch."),
    MetricSpec("kv_cache_usage_perc", "gauge", "Used share of KV blocks; 1 is all of them."),
    MetricSpec("prefix_cache_queries", "counter", "Tokens looked up in the prefix cache."),
    MetricSpec("prefix_cache_hits", "counter", "Tokens found in the prefix cache."),
    MetricSpec("num_preemptions", "counter", "Preemptions of running sequences."),
    MetricSpec("iteration_tokens_total", "histogram", "Positions computed in a step.", STEP_TOKENS),
    _seconds("step_time_seconds", "Time of a step.", STEP_S),
)
"""Metrics of each step."""
TOKEN: Final = (
    MetricSpec(
        "prompt_tokens",
        "counter",
        "Prompt tokens of requests that got their first token, including cached ones.",
    ),
    MetricSpec(
        "prompt_tokens_by_source",
        "counter",
        "The same, by where they came from.",
        labels=("source",),
    ),
    MetricSpec("prompt_tokens_cached", "counter", "The same, those that came from a cache."),
    MetricSpec("generation_tokens", "counter", "Tokens given to requests."),
    _seconds("time_to_first_token_seconds", "Arrival to first token.", SHORT_S),
    _seconds("inter_token_latency_seconds", "Token to next token of a sequence.", BETWEEN_S),
)
"""Metrics of each delivery of tokens."""
REQUEST: Final = (
    MetricSpec(
        "request_success",
        "counter",
        "Requests that have ended, by reason.",
        labels=("finished_reason",),
    ),
    MetricSpec(
        "corrupted_requests",
        "counter",
        "Requests that failed as their logits were NaN or infinite.",
    ),
    MetricSpec("request_prompt_tokens", "histogram", "Prompt tokens of a request.", TOKENS),
    MetricSpec(
        "request_generation_tokens",
        "histogram",
        "Tokens a request got, over all its sequences.",
        TOKENS,
    ),
    MetricSpec(
        "request_max_num_generation_tokens",
        "histogram",
        "Tokens of a request's longest sequence.",
        TOKENS,
    ),
    MetricSpec(
        "request_prefill_kv_computed_tokens",
        "histogram",
        "Prompt tokens of a request not cached.",
        TOKENS,
    ),
    MetricSpec("request_params_n", "histogram", "Sequences per request.", SEQUENCES),
    MetricSpec(
        "request_params_max_tokens", "histogram", "`max_tokens` of a request that set it.", TOKENS
    ),
    _seconds(
        "request_time_per_output_token_seconds",
        "Mean time per token of a request after its first.",
        BETWEEN_S,
    ),
    _seconds("e2e_request_latency_seconds", "Arrival to last token."),
    _seconds("request_queue_time_seconds", "Arrival to the first step."),
    _seconds("request_inference_time_seconds", "First step to last token."),
    _seconds("request_prefill_time_seconds", "First step to first token."),
    _seconds("request_decode_time_seconds", "First token to last token."),
)
"""Metrics of each ended request."""
FEATURES: Final = (
    MetricSpec(
        "constraint_late_masks",
        "counter",
        "Steps that went without the mask of a constrained request.",
    ),
    MetricSpec(
        "constraint_mask_failures",
        "counter",
        "Requests ended for the work of one mask, or of all of an output.",
    ),
    MetricSpec(
        "constraint_compile_failures",
        "counter",
        "Requests refused for what their constraint takes to compile.",
    ),
    MetricSpec("constraint_compile_cpu_seconds", "counter", "CPU time of compiling constraints."),
    _seconds("constraint_wait_seconds", "A constrained request's turn to its first mask.", SHORT_S),
    MetricSpec(
        "spec_decode_num_drafts", "counter", "Steps with draft tokens, counted per sequence."
    ),
    MetricSpec("spec_decode_num_draft_tokens", "counter", "Draft tokens."),
    MetricSpec("spec_decode_num_accepted_tokens", "counter", "Accepted draft tokens."),
    MetricSpec(
        "spec_decode_num_accepted_tokens_per_pos",
        "counter",
        "Accepted draft tokens, by position in the draft.",
        labels=("position",),
    ),
    MetricSpec(
        "request_cost_cpu_seconds", "counter", "Processor time of steps, with --request-costs."
    ),
    MetricSpec(
        "request_cost_kv_byte_seconds",
        "counter",
        "Bytes of KV cache times the seconds for which requests held them, with --request-costs.",
    ),
    MetricSpec(
        "request_cost_computed_tokens", "counter", "Positions computed, with --request-costs."
    ),
)
"""Metrics of features for each ended request; a count with a label is named `name/label`."""
ENGINE_STATE: Final = (
    MetricSpec(
        "cache_config_info", "gauge", "Always 1; the labels are the settings of the KV cache."
    ),
    MetricSpec("ready", "gauge", "1 while requests are computed, else 0."),
    MetricSpec("restarts", "counter", "Times the engine's process was started again."),
)
"""Metrics of the current state of an engine, read at a scrape."""
BY_ENGINE: Final = (*ENGINE, *TOKEN, *REQUEST, *FEATURES, *ENGINE_STATE)
"""Metrics with the label `engine`: the rank of the engine."""
HTTP: Final = (
    MetricSpec(
        "http_requests", "counter", "HTTP requests answered.", labels=("path", "method", "status")
    ),
    _seconds("http_request_duration_seconds", "HTTP request to the end of its answer.", SHORT_S),
)  # fmt: skip
"""Metrics of each HTTP request."""
KNOWN: Final = ("known", "unknown")
CALLS: Final = (
    MetricSpec(
        "tool_calls",
        "counter",
        "Tool calls in answers, by whether the request has the tool.",
        labels=("tool",),
    ),
)
"""Metrics of each answer with tool calls."""
SERVER_STATE: Final = (
    MetricSpec("requests_open", "gauge", "Requests accepted and not ended."),
    MetricSpec(
        "server_restarts", "counter", "Times the API process was started again by its parent."
    ),
    MetricSpec("sink_faults", "counter", "Exceptions of metric sinks.", labels=("sink",)),
)
"""Metrics of the current state of the server, read at a scrape."""
PLUGINS: Final = (
    MetricSpec(
        "plugin_faults", "counter", "Exceptions in a plugin's code.", labels=("plugin", "process")
    ),
    MetricSpec(
        "plugin_seconds",
        "counter",
        "Time that calls of a plugin's code took.",
        labels=("plugin", "process"),
    ),
)
"""Faults and time of plugins, read at a scrape."""
MEMORY: Final = (
    MetricSpec("memory_bytes", "gauge", "Memory by owner.", labels=("process", "owner")),
    MetricSpec(
        "memory_limit_bytes", "gauge", "Maximum memory of an owner.", labels=("process", "owner")
    ),
    MetricSpec(
        "process_memory_bytes", "gauge", "Resident memory of a process.", labels=("process",)
    ),
)
"""Memory by process and owner, read at a scrape."""
BY_SERVER: Final = (*HTTP, *CALLS, *SERVER_STATE, *PLUGINS, *MEMORY)
"""Metrics without the label `engine`."""
METRICS: Final = (*BY_ENGINE, *BY_SERVER)
