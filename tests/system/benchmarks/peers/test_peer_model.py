"""The random model that contenders share."""

from tokenizers import Tokenizer

from benchmarks.peers.make_model import SHAPE, spell_out
from core.testing.checkpoints import write_tokenizer


def test_each_token_has_a_text_of_its_own(tmp_path):
    write_tokenizer(tmp_path)
    spell_out(tmp_path / "tokenizer.json")
    tokenizer = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    texts = {tokenizer.id_to_token(token) for token in range(SHAPE["vocab_size"])}
    assert len(texts) == tokenizer.get_vocab_size() == SHAPE["vocab_size"]
    assert tokenizer.decode([1000, 31_999]) == " 1000 31999"
