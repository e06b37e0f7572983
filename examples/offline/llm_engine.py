"""`LLMEngine`: requests are added while others run; each call of `step` is one forward pass."""

from core import EngineArgs, LLMEngine, SamplingParams

args = EngineArgs(model="demo:", max_model_len=256, log_level="error")
engine = LLMEngine.from_engine_args(args)
waiting = [
    ("first", "A robot may not", SamplingParams(temperature=0, max_tokens=8)),
    ("second", "To be or not", SamplingParams(n=2, temperature=1, max_tokens=8, seed=1)),
    ("third", "It is only with", SamplingParams(temperature=0, max_tokens=4, logprobs=1)),
]
while waiting or engine.has_unfinished_requests():
    if waiting:
        request_id, prompt, params = waiting.pop(0)
        engine.add_request(request_id, prompt, params)
    for output in engine.step():
        if output.finished:
            print(output.request_id, [each.text for each in output.outputs])
engine.shutdown()
