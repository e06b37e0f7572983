"""Metric names are an interface: dashboards depend on them."""

from __future__ import annotations

from builtin_plugins.metric_sinks.prometheus.sink import PrometheusSink
from core.api import RequestStats, StepStats
from core.config import EngineConfig

NAMES = {
    "engine_e2e_request_latency_seconds",
    "engine_generation_tokens_total",
    "engine_kv_cache_usage_perc",
    "engine_num_preemptions_total",
    "engine_num_requests_running",
    "engine_num_requests_waiting",
    "engine_prefix_cache_hits_total",
    "engine_prefix_cache_queries_total",
    "engine_prompt_tokens_total",
    "engine_request_generation_tokens",
    "engine_request_prompt_tokens",
    "engine_request_queue_time_seconds",
    "engine_request_success_total",
    "engine_step_time_seconds",
    "engine_time_per_output_token_seconds",
    "engine_time_to_first_token_seconds",
}


def _text(sink):
    return sink.expose()[0].decode()


def test_names_are_these():
    lines = _text(PrometheusSink(EngineConfig())).splitlines()
    named = {line.split()[2] for line in lines if line.startswith("# TYPE")}
    assert {name for name in named if not name.endswith("_created")} == NAMES


def test_step_and_request_are_counted():
    sink = PrometheusSink(EngineConfig())
    sink.step(StepStats(0.1, 3, 2, 0.25, 7, 5, 4, 7, 1, {"stop": 1}))
    sink.request(RequestStats("stop", 7, 5, 1.0, 0.2))
    sink.request(RequestStats("stop", 7, 0, 1.0, None))
    sink.request(RequestStats("unheard of", 7, 0, 1.0, None))
    text = _text(sink)
    for line in (
        'engine_num_requests_running{model_name="scripted:"} 3.0',
        'engine_num_requests_waiting{model_name="scripted:"} 2.0',
        'engine_kv_cache_usage_perc{model_name="scripted:"} 0.25',
        'engine_prompt_tokens_total{model_name="scripted:"} 7.0',
        'engine_prefix_cache_hits_total{model_name="scripted:"} 4.0',
        'engine_num_preemptions_total{model_name="scripted:"} 1.0',
        'engine_request_success_total{finished_reason="stop",model_name="scripted:"} 2.0',
        'engine_request_success_total{finished_reason="error",model_name="scripted:"} 1.0',
        'engine_time_to_first_token_seconds_count{model_name="scripted:"} 1.0',
        'engine_time_per_output_token_seconds_sum{model_name="scripted:"} 0.2',
    ):
        assert line in text


def test_state_after_an_abort_counts_as_no_step():
    sink = PrometheusSink(EngineConfig())
    sink.step(StepStats(0.1, 3, 0, 0.25))
    sink.step(StepStats(0.0, 0, 0, 0.0, finished={"abort": 3}))
    text = _text(sink)
    assert 'engine_num_requests_running{model_name="scripted:"} 0.0' in text
    assert 'engine_step_time_seconds_count{model_name="scripted:"} 1.0' in text
