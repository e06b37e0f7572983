"""Beam search: the likeliest continuations."""

from core import LLM, BeamSearchParams

with LLM("demo:", max_model_len=256, log_level="error") as llm:
    (output,) = llm.beam_search(["The capital of"], BeamSearchParams(beam_width=3, max_tokens=6))
for beam in output.sequences:
    print(round(beam.cum_logprob, 2), repr(beam.text))
