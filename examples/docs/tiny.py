from core.testing.checkpoints import make_checkpoint

make_checkpoint("BertModel", "tiny-bert")
make_checkpoint("Qwen3ForCausalLM", "tiny-qwen")
