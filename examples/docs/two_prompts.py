from core import LLM, SamplingParams
from core.testing.checkpoints import make_checkpoint

folder = make_checkpoint("T5ForConditionalGeneration", "tiny-t5")
prompts = ["the end", {"encoder_prompt": "the end", "decoder_prompt": "in"}]
params = SamplingParams(temperature=0, max_tokens=5, ignore_eos=True)
with LLM(str(folder), dtype="float32", max_model_len=64) as llm:
    for output in llm.generate(prompts, params):
        encoder_ids = output.encoder_prompt_token_ids
        print(encoder_ids, output.prompt_token_ids, len(output.outputs[0].token_ids))
