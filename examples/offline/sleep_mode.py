"""An idle engine returns its memory, and is as before when it is woken."""

from core import LLM, SamplingParams

greedy = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
with LLM("demo:", enable_sleep_mode=True, max_model_len=256, log_level="error") as llm:
    (before,) = llm.generate("One two three", greedy, use_tqdm=False)
    for level in (1, 2):
        llm.sleep(level=level)
        llm.wake_up()
        (after,) = llm.generate("One two three", greedy, use_tqdm=False)
        same = after.outputs[0].token_ids == before.outputs[0].token_ids
        print(f"same tokens after level {level}:", same)
