"""The metrics of an engine in this process, as objects."""

from core import LLM, SamplingParams

with LLM("demo:", max_model_len=256, disable_log_stats=False, log_level="error") as llm:
    llm.generate(["One", "Two"], SamplingParams(max_tokens=4, ignore_eos=True), use_tqdm=False)
    for metric in llm.get_metrics():
        if metric.name.endswith(("generation_tokens", "time_to_first_token_seconds")):
            print(metric)
