"""Prompts with one beginning: it is computed once."""

from core import LLM, SamplingParams

table = "Name, age, city. Ada, 36, London. Alan, 41, Manchester. Grace, 85, New York. " * 8
questions = ["How old is Ada?", "Where does Alan live?"]
with LLM("demo:", max_model_len=1024, log_level="error") as llm:
    greedy = SamplingParams(temperature=0, max_tokens=8)
    for question in questions:
        (output,) = llm.generate(table + question, greedy, use_tqdm=False)
        length = len(output.prompt_token_ids or ())
        print(f"{output.num_cached_tokens} of {length} prompt tokens were cached")
