"""Reset of the prefix cache: refused while a request runs, done between requests."""

from core import EngineArgs, LLMEngine, SamplingParams

engine = LLMEngine.from_engine_args(EngineArgs(model="demo:", max_model_len=256, log_level="error"))
prompt = "The quick brown fox jumps over the lazy dog. " * 3
for _ in range(2):
    engine.add_request("again", prompt, SamplingParams(temperature=0, max_tokens=4))
    engine.step()
    print("reset while it runs:", engine.reset_prefix_cache())
    while engine.has_unfinished_requests():
        outputs = engine.step()
    print("cached prompt tokens:", outputs[-1].num_cached_tokens)
    print("reset afterwards:", engine.reset_prefix_cache())
engine.shutdown()
