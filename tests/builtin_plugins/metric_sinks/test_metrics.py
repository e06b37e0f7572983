"""Stable metric names; clients cannot create new series."""

from __future__ import annotations

import random
import re

import msgspec
import pytest
from prometheus_client.parser import text_string_to_metric_families

from builtin_plugins.metric_sinks.api import with_label
from builtin_plugins.metric_sinks.prometheus.catalogue import BY_ENGINE, METRICS
from builtin_plugins.metric_sinks.prometheus.custom_buckets import FAMILIES, with_custom_buckets
from builtin_plugins.metric_sinks.prometheus.sink import PrometheusSink
from core.api import ConfigError
from core.api.telemetry import CallStats, HttpStats, RequestStats, StepStats, TokenStats
from core.config import EngineConfig
from core.config.sections import CacheConfig, ParallelConfig
from scripts.reference.metrics import metrics_page

SNAPSHOT = """
cache_config_info gauge
constraint_compile_cpu_seconds counter
constraint_compile_failures counter
constraint_late_masks counter
constraint_mask_failures counter
constraint_wait_seconds histogram
corrupted_requests counter
e2e_request_latency_seconds histogram
generation_tokens counter
http_request_duration_seconds histogram
http_requests counter method path status
inter_token_latency_seconds histogram
iteration_tokens_total histogram
kv_cache_usage_perc gauge
memory_bytes gauge owner process
memory_limit_bytes gauge owner process
num_preemptions counter
num_requests_running gauge
num_requests_waiting gauge
plugin_faults counter plugin process
plugin_seconds counter plugin process
prefix_cache_hits counter
prefix_cache_queries counter
process_memory_bytes gauge process
prompt_tokens counter
prompt_tokens_by_source counter source
prompt_tokens_cached counter
ready gauge
request_cost_computed_tokens counter
request_cost_cpu_seconds counter
request_cost_kv_byte_seconds counter
request_decode_time_seconds histogram
request_generation_tokens histogram
request_inference_time_seconds histogram
request_max_num_generation_tokens histogram
request_params_max_tokens histogram
request_params_n histogram
request_prefill_kv_computed_tokens histogram
request_prefill_time_seconds histogram
request_prompt_tokens histogram
request_queue_time_seconds histogram
request_success counter finished_reason
request_time_per_output_token_seconds histogram
requests_open gauge
restarts counter
server_restarts counter
sink_faults counter sink
spec_decode_num_accepted_tokens counter
spec_decode_num_accepted_tokens_per_pos counter position
spec_decode_num_draft_tokens counter
spec_decode_num_drafts counter
step_time_seconds histogram
time_to_first_token_seconds histogram
tool_calls counter tool
"""
OURS = {
    "http_request_duration_seconds",
    "http_requests",
    "ready",
    "requests_open",
    "restarts",
    "sink_faults",
}
OURS |= {
    "tool_calls",
    "step_time_seconds",
    "memory_bytes",
    "memory_limit_bytes",
    "plugin_faults",
    "plugin_seconds",
    "process_memory_bytes",
    "server_restarts",
}
HEALTH = {
    "status": "ready",
    "open_requests": 3,
    "restarts": 2,
    "sinks": [{"sink": "s", "faults": 4}],
}
HEALTH["memory"] = {
    "owners": {"acme_cache": (5, 10)},
    "engine": [],
    "faults": {"acme": (2, "OSError: gone")},
}
HEALTH["memory"]["seconds"] = {"acme": 1.5}
HEALTH["server_restarts"] = 1
VLLM = """
num_requests_running num_requests_waiting kv_cache_usage_perc prefix_cache_queries
prefix_cache_hits num_preemptions
prompt_tokens generation_tokens request_success request_prompt_tokens
request_generation_tokens iteration_tokens_total
request_max_num_generation_tokens request_params_n request_params_max_tokens
time_to_first_token_seconds
inter_token_latency_seconds request_time_per_output_token_seconds
e2e_request_latency_seconds request_queue_time_seconds
request_inference_time_seconds request_prefill_time_seconds request_decode_time_seconds
request_prefill_kv_computed_tokens cache_config_info corrupted_requests
"""
NOT_HERE = {
    "engine_sleep_state": "reported by the feature, with --enable-sleep-mode",
    "external_prefix_cache_hits": "reported by the feature, with --kv-transfer-config",
    "external_prefix_cache_queries": "reported by the feature, with --kv-transfer-config",
    "kv_block_idle_before_evict_seconds": "reported by the feature, with --kv-cache-metrics",
    "kv_block_lifetime_seconds": "reported by the feature, with --kv-cache-metrics",
    "kv_block_reuse_gap_seconds": "reported by the feature, with --kv-cache-metrics",
    "lora_requests_info": "reported by the feature, with --enable-lora",
    "mm_cache_hits": "reported by the feature, with a model that reads images",
    "mm_cache_queries": "reported by the feature, with a model that reads images",
    "nixl_bytes_transferred": "no transfer of caches between machines",
    "nixl_num_descriptors": "no transfer of caches between machines",
    "nixl_num_failed_notifications": "no transfer of caches between machines",
    "nixl_num_failed_transfers": "no transfer of caches between machines",
    "nixl_post_time_seconds": "no transfer of caches between machines",
    "nixl_xfer_time_seconds": "no transfer of caches between machines",
    "time_per_output_token_seconds": "the former name of inter_token_latency_seconds, which vLLM "
    "has taken out",
}
"""vLLM's metrics that do not exist here, with the reason."""


def make_sink(**options):
    sink = PrometheusSink(EngineConfig(options=options))
    sink.ready(EngineConfig(cache=CacheConfig(num_gpu_blocks_override=7)))
    return sink


def text_of(sink, health=HEALTH):
    return sink.expose(health)[0].decode()


def families_of(sink):
    """Metrics without those of the process: types and labels as a scraper sees them."""
    families = text_string_to_metric_families(text_of(sink))
    return {family.name: family for family in families if not family.name.startswith("process_")}


def value_of(sink, name, **labels):
    """Return the only series with these labels."""
    found = [
        sample.value
        for family in text_string_to_metric_families(text_of(sink))
        for sample in family.samples
        if sample.name == name and labels.items() <= sample.labels.items()
    ]
    assert len(found) == 1, (name, found)
    return found[0]


def exercised(**options):
    """A sink with one of everything recorded."""
    sink = make_sink(**options)
    sink.step(
        StepStats(
            0.1, 3, 2, 0.25, computed_tokens=9, cached_tokens=4, queried_tokens=7, preemptions=1
        )
    )
    sink.tokens(TokenStats(5, 7, 4, [0.2], [0.01, 0.02]))
    observed = {"counts": {"spec_decode_num_accepted_tokens_per_pos/0": 2.0}}
    sizes = {"longest_output": 5, "cached_tokens": 4, "n": 1, "max_tokens": 16}
    sink.request(RequestStats("stop", 7, 5, 1.0, 0.2, 0.1, **sizes, extra_fields=observed))
    sink.http(HttpStats("/v1/models", "GET", 200, 0.001))
    sink.calls(CallStats(known=2, unknown=1))
    return sink


@pytest.mark.parametrize("prefix", ["engine_", "vllm:"])
def test_metric_names_types_and_labels_are_stable(prefix):
    observed = []
    for name, family in families_of(exercised(metrics_prefix=prefix)).items():
        labels = {label for sample in family.samples for label in sample.labels} - {"le"}
        own = sorted(labels - {"model_name", "engine"})
        own_name = name.removeprefix(prefix)
        assert own_name == "cache_config_info" or "model_name" in labels
        assert ("engine" in labels) == (own_name in {spec.name for spec in BY_ENGINE})
        observed.append(" ".join([own_name, family.type, *([] if "info" in name else own)]))
    assert sorted(observed) == SNAPSHOT.split("\n")[1:-1]


def test_vllm_metrics_exist_or_are_explained():
    ours = {spec.name for spec in METRICS}
    assert set(VLLM.split()) <= ours
    assert ours.isdisjoint(NOT_HERE)  # what has come is named no longer
    assert len(VLLM.split()) + len(NOT_HERE) == 42


def test_plugin_faults_are_counted_by_process():
    assert value_of(exercised(), "engine_plugin_faults_total", plugin="acme", process="api") == 2.0


def test_plugin_time_is_counted_by_process():
    assert value_of(exercised(), "engine_plugin_seconds_total", plugin="acme", process="api") == 1.5


def test_counters_and_histograms_have_prometheus_names():
    lines = text_of(exercised(metrics_prefix="vllm:")).splitlines()
    for line in (
        'vllm:num_requests_running{engine="0",model_name="default"} 3.0',
        'vllm:num_requests_waiting{engine="0",model_name="default"} 2.0',
        'vllm:kv_cache_usage_perc{engine="0",model_name="default"} 0.25',
        'vllm:prefix_cache_hits_total{engine="0",model_name="default"} 4.0',
        'vllm:prompt_tokens_total{engine="0",model_name="default"} 7.0',
        'vllm:prompt_tokens_by_source_total{engine="0",model_name="default",'
        'source="local_compute"} 3.0',
        'vllm:request_success_total{engine="0",finished_reason="stop",model_name="default"} 1.0',
        'vllm:iteration_tokens_total_bucket{engine="0",le="16.0",model_name="default"} 1.0',
        'vllm:iteration_tokens_total_bucket{engine="0",le="+Inf",model_name="default"} 1.0',
        'vllm:inter_token_latency_seconds_count{engine="0",model_name="default"} 2.0',
        'vllm:tool_calls_total{model_name="default",tool="known"} 2.0',
        'vllm:tool_calls_total{model_name="default",tool="unknown"} 1.0',
        'vllm:restarts_total{engine="0",model_name="default"} 2.0',
        'vllm:server_restarts_total{model_name="default"} 1.0',
        'vllm:sink_faults_total{model_name="default",sink="s"} 4.0',
    ):
        assert line in lines


def test_buckets_are_cumulative_and_inclusive():
    sink = make_sink()
    for value in (1.0, 1.5, 2.0, 50.0):
        sink.request(RequestStats("stop", 1, 1, value, n=int(value)))
    counted = [
        value_of(sink, "engine_request_params_n_bucket", le=le)
        for le in ("1.0", "2.0", "20.0", "+Inf")
    ]
    assert counted == [2.0, 3.0, 3.0, 4.0]
    assert value_of(sink, "engine_request_params_n_sum") == 54.0


def test_feature_histograms_are_exposed():
    answer_fields = {"process": "engine", "pid": 1, "resident": 1, "heap_free": 0, "owners": {}}
    answer = msgspec.json.encode(
        answer_fields | {"histograms": {"acme_seconds": ((0.5, 2.0), [1, 0, 3], 9.5)}}
    )
    lines = text_of(make_sink(), {**HEALTH, "memory": {"engine": [answer]}}).splitlines()
    for line in (
        'engine_acme_seconds_bucket{engine="0",le="0.5",model_name="default"} 1.0',
        'engine_acme_seconds_bucket{engine="0",le="2.0",model_name="default"} 1.0',
        'engine_acme_seconds_bucket{engine="0",le="+Inf",model_name="default"} 4.0',
        'engine_acme_seconds_count{engine="0",model_name="default"} 4.0',
        'engine_acme_seconds_sum{engine="0",model_name="default"} 9.5',
    ):
        assert line in lines


def test_feature_gauges_are_grouped_by_metric():
    answer_fields = {"process": "engine", "pid": 1, "resident": 1, "heap_free": 0, "owners": {}}
    counted = {
        with_label("acme_total", "tier", "disk"): 2,
        "acme_share": 0.5,
        with_label("acme_total", "tier", "a = b"): 3,
    }
    answer = msgspec.json.encode(answer_fields | {"numbers": counted})
    text = text_of(make_sink(), {**HEALTH, "memory": {"engine": [answer]}})
    for line in (
        'engine_acme_total{engine="0",model_name="default",tier="disk"} 2.0',
        'engine_acme_total{engine="0",model_name="default",tier="a = b"} 3.0',
        'engine_acme_share{engine="0",model_name="default"} 0.5',
    ):
        assert line in text.splitlines()
    assert text.count("# TYPE engine_acme_total counter") == 1


@pytest.mark.parametrize(
    ("prefix", "name"),
    [
        ("engine_", "engine_sleep_state"),
        ("vllm:", "vllm:engine_sleep_state"),
        ("", "engine_sleep_state"),
    ],
)
def test_prefix_that_a_feature_name_has_is_not_doubled(prefix, name):
    answer_fields = {"process": "engine", "pid": 1, "resident": 1, "heap_free": 0, "owners": {}}
    reported = {
        "numbers": {with_label("engine_sleep_state", "sleep_state", "awake"): 1},
        "infos": {"engine_acme_info": {"a": "b"}},
        "histograms": {"engine_acme_seconds": ((0.5,), [1, 0], 0.1)},
    }
    answer = msgspec.json.encode(answer_fields | reported)
    sink = make_sink(metrics_prefix=prefix)
    lines = text_of(sink, {**HEALTH, "memory": {"engine": [answer]}}).splitlines()
    assert f'{name}{{engine="0",model_name="default",sleep_state="awake"}} 1.0' in lines
    assert not any("engine_engine" in line for line in lines)


def sink_of_two():
    sink = PrometheusSink(EngineConfig(parallel=ParallelConfig(data_parallel_size=2)))
    sink.ready(EngineConfig(cache=CacheConfig(num_gpu_blocks_override=7)))
    return sink


def record_on(sink, engine):
    """Record one of everything that an engine counts."""
    sink.step(StepStats(0.1, 3, 2, 0.25, 9, 4, 7, 1, engine))
    sink.tokens(TokenStats(5, 7, 4, [0.2], [0.01, 0.02], engine))
    counts = {"counts": {"spec_decode_num_drafts": 2.0}}
    sink.request(RequestStats("stop", 7, 5, 1.0, 0.2, 0.1, extra_fields=counts, engine=engine))
    sink.request(RequestStats("error", 7, 5, 1.0, engine=engine, is_corrupted=True))


def test_series_of_engines_add_up_to_those_of_one():
    two = sink_of_two()
    one = make_sink()
    for engine in (0, 1, 1):
        record_on(two, engine)
        record_on(one, 0)

    def sums(sink, engines):
        found = {}
        for name, family in families_of(sink).items():
            if name.removeprefix("engine_") in added_up:
                for sample in family.samples:
                    labels = dict(sample.labels)
                    assert labels.pop("engine") in engines
                    key = sample.name, *sorted(labels.items())
                    found[key] = found.get(key, 0) + sample.value
        return found

    added_up = {spec.name for spec in BY_ENGINE if spec.type != "gauge"}
    assert sums(two, {"0", "1"}) == pytest.approx(sums(one, {"0"}))
    for family in families_of(two).values():
        engines = {sample.labels.get("engine") for sample in family.samples}
        assert engines in (set(), {None}, {"0", "1"})


def test_state_of_each_engine_is_a_series():
    states = [{"status": "ready", "restarts": 0}, {"status": "restarting", "restarts": 3}]
    health = HEALTH | {"engines": states}
    lines = text_of(sink_of_two(), health).splitlines()
    for line in (
        'engine_ready{engine="0",model_name="default"} 1.0',
        'engine_ready{engine="1",model_name="default"} 0.0',
        'engine_restarts_total{engine="0",model_name="default"} 0.0',
        'engine_restarts_total{engine="1",model_name="default"} 3.0',
    ):
        assert line in lines
    drained = text_of(sink_of_two(), health | {"status": "draining"}).splitlines()
    assert 'engine_ready{engine="0",model_name="default"} 0.0' in drained


def test_features_of_each_engine_are_series():
    fields = {"process": "engine", "resident": 1, "heap_free": 0, "owners": {}}
    answers = [
        msgspec.json.encode(
            fields
            | {
                "pid": rank,
                "engine": rank,
                "num_blocks": 10 + rank,
                "infos": {"acme_info": {"state": "degraded" if rank else "ready"}},
                "numbers": {"acme_total": 2 + rank},
                "histograms": {"acme_seconds": ((0.5,), [rank, 1], 1.5)},
            }
        )
        for rank in range(2)
    ]
    text = text_of(sink_of_two(), {**HEALTH, "memory": {"engine": answers}})
    for line in (
        'engine_acme_info{engine="0",model_name="default",state="ready"} 1.0',
        'engine_acme_info{engine="1",model_name="default",state="degraded"} 1.0',
        'engine_acme_total{engine="0",model_name="default"} 2.0',
        'engine_acme_total{engine="1",model_name="default"} 3.0',
        'engine_acme_seconds_count{engine="0",model_name="default"} 1.0',
        'engine_acme_seconds_count{engine="1",model_name="default"} 2.0',
    ):
        assert line in text.splitlines()
    blocks = re.findall(r'cache_config_info{.*engine="(\d)".*num_gpu_blocks="(\d+)"', text)
    assert blocks == [("0", "10"), ("1", "11")]


def test_request_intervals_add_up():
    sink = make_sink()
    sink.request(RequestStats("stop", 7, 5, 1.0, 0.25, 0.125, longest_output=4))
    for name, seconds in (
        ("queue", 0.125),
        ("prefill", 0.125),
        ("decode", 0.75),
        ("inference", 0.875),
    ):
        assert value_of(sink, f"engine_request_{name}_time_seconds_sum") == seconds
    assert value_of(sink, "engine_request_time_per_output_token_seconds_sum") == 0.25


def test_missing_intervals_are_not_counted():
    sink = make_sink()
    sink.request(RequestStats("abort", 7, 0, 1.0))
    for name in ("queue", "prefill", "decode", "inference"):
        assert value_of(sink, f"engine_request_{name}_time_seconds_count") == 0
    sink.step(StepStats(0.0, 0, 0, 0.0))  # what an abort has left; no step
    assert value_of(sink, "engine_step_time_seconds_count") == 0


def test_hostile_requests_create_no_new_series():
    sink = exercised()
    draw = random.Random(1)
    for status in (200, 404, 999):
        sink.http(HttpStats("", "GET", status, 0.1))
    sink.http(HttpStats("", "BREW", 404, 0.1))
    sink.request(RequestStats("error", 1, 1, 1.0))
    before = text_of(sink).count("\n")
    for _ in range(10_000):
        text = "".join(draw.choices("ab/é\n\"'}\\", k=12))
        sink.http(
            HttpStats(
                "", draw.choice(["GET", text]), draw.choice([404, draw.randint(600, 10**6)]), 0.1
            )
        )
        sink.request(RequestStats(text, draw.randint(0, 10**6), 1, 1.0, request_id=text))
    assert text_of(sink).count("\n") <= before + 1  # (other, other) may be new


def test_cache_settings_are_labels():
    line = next(
        line
        for line in text_of(make_sink()).splitlines()
        if line.startswith("engine_cache_config_info{")
    )
    for label in (
        'block_size="16"',
        'num_gpu_blocks="7"',
        'num_gpu_blocks_override="None"',
        'enable_prefix_caching="True"',
        'engine="0"',
    ):
        assert label in line
    assert "cache_config_info{" not in text_of(PrometheusSink(EngineConfig()))


@pytest.mark.parametrize("prefix", ["1x_", "a b", 'x"', "é_"])
def test_invalid_metrics_prefix_is_config_error(prefix):
    with pytest.raises(ConfigError, match="--metrics-prefix"):
        make_sink(metrics_prefix=prefix)


def test_ready_gauge_is_zero_for_stalled_engine():
    assert "engine_ready{engine=" in text_of(make_sink())
    line = next(
        line
        for line in text_of(make_sink(), {"status": "dead"}).splitlines()
        if "engine_ready{" in line
    )
    assert line.endswith(" 0.0")


def test_docs_page_lists_every_metric():
    page = metrics_page()
    rows = dict(re.findall(r"^\| `(\w+)`(?: \([^)]*\))? \| (\w+) \|", page, re.MULTILINE))
    assert rows == {spec.name: spec.type for spec in METRICS}


def test_custom_buckets_replace_those_of_a_family() -> None:
    given = {"request_latency": [0.5, 2], "request_tokens": [64]}
    found = {spec.name: spec.buckets for spec in with_custom_buckets(METRICS, given)}
    before = {spec.name: spec.buckets for spec in METRICS}
    changed = {name: found[name] for name in found if found[name] != before[name]}
    assert changed == {
        name: bounds
        for family, bounds in (("request_latency", (0.5, 2.0)), ("request_tokens", (64.0,)))
        for name in FAMILIES[family]
    }
    sink = PrometheusSink(EngineConfig(options={"custom_histogram_buckets": given}))
    assert sink.expose({})


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"request_latencies": [1]}, "did you mean 'request_latency'"),
        ({"request_latency": []}, "request_latency: got .*; expected ascending numbers above 0"),
        ({"request_latency": [2, 1]}, "expected ascending"),
        ({"request_latency": [0, 1]}, "expected ascending"),
        ({"request_latency": [True]}, "expected ascending"),
        ({"request_latency": "1"}, "expected ascending"),
    ],
)
def test_wrong_buckets_are_refused(given: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        PrometheusSink(EngineConfig(options={"custom_histogram_buckets": given}))
