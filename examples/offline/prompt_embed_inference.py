"""A prompt as embeddings instead of tokens."""

import torch

from core import LLM, SamplingParams

greedy = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
with LLM(
    "demo:", enable_prompt_embeds=True, max_model_len=256, dtype="float32", log_level="error"
) as llm:
    ids = llm.get_tokenizer().encode("One two three")
    (embeddings,) = llm.apply_model(lambda model: model.embed(torch.tensor(ids)))
    (expected,) = llm.generate({"prompt_token_ids": ids}, greedy, use_tqdm=False)
    (output,) = llm.generate({"prompt_embeds": embeddings}, greedy, use_tqdm=False)
same = output.outputs[0].token_ids == expected.outputs[0].token_ids
print("same tokens as from the token ids:", same)
