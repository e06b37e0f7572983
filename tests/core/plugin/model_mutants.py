"""Mutants of the template plugins of models: parsers, tokenizers, weights, ops and attention."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

Change = tuple[str, str, str]
"""Defect, old text, new text."""

MODEL_MUTANTS: Final[Mapping[str, tuple[Change, ...]]] = {
    "tool_parsers": (
        (
            "never finds a call",
            'reader.content_until_call("<call>")',
            'reader.content_until_call("<never>")',
        ),
        ("finds the first call only", "while (yield", "if (yield"),
        ("loses arguments", "reader.add_call(name, arguments)", "reader.add_call(name, {})"),
        ("cuts names", "reader.add_call(name, arguments)", "reader.add_call(name[1:], arguments)"),
        (
            "reports every call twice",
            "reader.add_call(name, arguments)",
            "reader.add_call(name, arguments); reader.add_call(name, arguments)",
        ),
        (
            "drops text before calls",
            'reader.content_until_call("<call>")',
            'reader.skip_to("<call>")',
        ),
        (
            "lacks an argument",
            "read(reader: OutputReader, request: ParseRequest)",
            "read(reader: OutputReader)",
        ),
    ),
    "reasoning_parsers": (
        (
            "never begins reasoning",
            'reader.skip_optional("<thought>")',
            'reader.skip_optional("<never>")',
        ),
        ("always reasons", "if opened:", "if True:"),
        (
            "never ends reasoning",
            'reader.reasoning_until("</thought>")',
            'reader.reasoning_until("</never>")',
        ),
        (
            "stops at the start tag",
            'reader.reasoning_until("</thought>")',
            'reader.reasoning_until("<thought>")',
        ),
        (
            "lacks an argument",
            "read(reader: OutputReader, request: ParseRequest)",
            "read(reader: OutputReader)",
        ),
    ),
    "quant_methods": (
        ("scales are too small for the largest", "/ 127\n", "/ 160\n"),
        ("rounds to four bits", "(own / scale).round()", "((own / scale / 16).round() * 16)"),
        ("forgets the scales", "* scale.T", ""),
        (
            "fills the first rows only",
            'get_buffer("weight")[rows] =',
            'get_buffer("weight")[: len(own)] =',
        ),
        (
            "loads the whole tensor on every rank",
            "part.plain(tensor.float())",
            "[(slice(None), tensor.float())]",
        ),
        (
            "shares a method between layers",
            "return EightBits()",
            "return self.__dict__.setdefault('one', EightBits())",
        ),
        ("has another name", 'name = "acme"', 'name = "other"'),
        ("requires a bias", '("weight",)', '("weight", "bias")'),
        ("multiplies by the transposed", "x @ weight", "x.flip(-1) @ weight"),
    ),
    "logits_processors": (
        ("does nothing", 'logits[i, self._tokens[row]] = float("-inf")', "pass"),
        ("allows only the banned tokens", '= float("-inf")', "= 100.0"),
        (
            "bans the first row's tokens everywhere",
            "self._tokens[row]] =",
            "self._tokens[rows.rows[0]]] =",
        ),
        ("makes NaN", '= float("-inf")', '= float("nan")'),
        (
            "reads back",
            "for i, row in enumerate(rows.rows):",
            "for i, row in enumerate(rows.row_index.tolist()):",
        ),
        ("returns half precision", "return logits", "return logits.half()"),
        (
            "declares argmax_invariant",
            "argmax_invariant = False",
            "argmax_invariant = True",
        ),
        ("names an unknown field", "params: tuple[str, ...] = ()", 'params = ("no_such",)'),
        ("sorts rows by index", "logits[i, self", "logits[len(rows.rows) - 1 - i, self"),
    ),
    "input_processors": (
        ("has no tokens", "IMAGE * 4, 4,", '"", 0,'),
        ("leaves an item out", "expand_text(prompt, items, ", "prompt if True else (items, "),
        ("has no identity", 'self.identity = "acme 1"', 'self.identity = ""'),
        ("has a number as identity", 'self.identity = "acme 1"', "self.identity = 1"),
        (
            "adds noise",
            "torch.from_numpy(np.stack(quarters))",
            "torch.rand(4, 3)",
        ),
        ("names its tensors at random", '{"colours": colours}', "{str(id(colours)): colours}"),
    ),
    "poolers": (
        ("takes the first only", "(hidden[:1] + hidden[-1:]) / 2", "hidden[:1]"),
        ("takes the sum", ") / 2", ")"),
        ("loses a dimension", "(hidden[:1] + hidden[-1:]) / 2", "hidden.mean(0)"),
        (
            "does not declare needs_whole_prompt",
            "needs_whole_prompt = True",
            "needs_whole_prompt = False",
        ),
        ("reads back", "/ 2", "/ 2 + 0 * hidden.sum().item()"),
        ("gives many vectors", "(hidden[:1] + hidden[-1:]) / 2", "hidden"),
        ("does not declare per_token", "per_token = False", "per_tokens = False"),
    ),
    "tokenizers": (
        ("has ids beyond its vocabulary", "vocab_size = 257", "vocab_size = 120"),
        ("loses spaces", "list(part.encode())", 'list(part.replace(" ", "").encode())'),
        ("shifts ids", "list(part.encode())", "[b + 1 for b in part.encode()]"),
        ("does not know its end token in texts", "text.split(END)", "[text]"),
        (
            "shows special tokens",
            'b"" if skip_special_tokens else END',
            "END if skip_special_tokens else END",
        ),
        (
            "ends with a token that is not special",
            "special_ids = frozenset({END_ID})",
            "special_ids = frozenset()",
        ),
        ("raises for half a character", 'text.decode(errors="replace")', "text.decode()"),
        ("small letters only", "part.encode()", "part.lower().encode()"),
    ),
    "chat_renderers": (
        ("forgets the generation prompt", '"assistant: " if add_generation_prompt else ""', '""'),
        ("escapes", "{message['content']}", "{message['content'].replace('<', '&lt;')}"),
        ("ignores continue_final_message", "if continue_final_message:", "if False:"),
        ("renders nothing", "if not messages:", "if False:"),
        ("takes any content", "not isinstance(message.get(field), str)", "False"),
        ("shows the last message only", "enumerate(messages))", "enumerate(messages[-1:]))"),
        (
            "swaps role and text",
            "{message['role']}: {message['content']}",
            "{message['content']}: {message['role']}",
        ),
        ("changes the messages", "prompt = ", 'messages[0]["seen"] = 1; prompt = '),
    ),
    "models": (
        (
            "rotates the wrong way",
            "facts.attention()",
            "facts.attention(rope=RopeSpec(16, backwards=True))",
        ),
        (
            "rotates at another speed",
            "facts.attention()",
            "facts.attention(rope=RopeSpec(16, theta=500.0))",
        ),
        ("has no norm before the MLP", "mlp_in=norm)", "mlp_in=None)"),
        ("norms with another epsilon", "1e-6))", "1e-1))"),
        (
            "has one layer less",
            '* facts.count("num_hidden_layers")',
            '* (facts.count("num_hidden_layers") - 1)',
        ),
        ("another activation", "mlp=facts.mlp()", 'mlp=facts.mlp(activation="gelu")'),
        ("sees a window", "facts.attention()", "facts.attention(window=3)"),
        (
            "raises KeyError for a config without fields",
            "facts = ModelFacts(hf_config)",
            "facts = ModelFacts(hf_config); hf_config.hidden_size",
        ),
        ("another scale of scores", "facts.attention()", "facts.attention(scale=1.0)"),
    ),
    "weight_loaders": (
        (
            "leaves a tensor out",
            "yield from tensors.items()",
            "yield from list(tensors.items())[1:]",
        ),
        (
            "halves precision",
            "yield from tensors.items()",
            "yield from ((n, t.half()) for n, t in tensors.items())",
        ),
        (
            "renames",
            "yield from tensors.items()",
            "yield from ((n.upper(), t) for n, t in list(tensors.items()) * 2)",
        ),
        (
            "yields everything twice",
            "yield from tensors.items()",
            "yield from list(tensors.items()) * 2",
        ),
        (
            "raises OSError for a missing folder",
            "if not self._files:",
            "if not list(self._folder.iterdir()):",
        ),
        ("returns no size", "return sum(file.stat().st_size for file in self._files)", "return -1"),
        (
            "zeroes",
            "yield from tensors.items()",
            "yield from ((n, t * 0) for n, t in tensors.items())",
        ),
    ),
    "op_impls": (
        ("forgets the offset", "weight.float() + offset", "weight.float()"),
        ("another epsilon", "scale, eps)", "scale, eps + 0.01)"),
        ("keeps float32", "return normed.to(x.dtype)", "return normed"),
        (
            "norms over the first dimension",
            "(x.shape[-1],), scale, eps)",
            "(x.shape[-1],), scale.flip(0), eps)",
        ),
        ("writes over its input", "return normed.to(x.dtype)", "return x.mul_(0)"),
        ("implements no op", '"rms_norm/acme"', '"rms_morn/acme"'),
        ("requires an unknown fact", '{"device": "cpu"}', '{"devise": "cpu"}'),
    ),
    "attention_backends": (
        ("forgets the scale", "* params.scale  #", "#"),
        (
            "sees the future",
            "(key_positions <= query_positions)",
            "(key_positions <= query_positions + 1)",
        ),
        (
            "is a token short",
            "(key_positions <= query_positions)",
            "(key_positions < query_positions)",
        ),
        (
            "sees a window too wide",
            "key_positions > query_positions - params.window",
            "key_positions >= query_positions - params.window",
        ),
        (
            "reads blocks that are not its own",
            "first = _first_visible(params, length - (end - start))",
            "first = 0",
        ),
        ("forgets the cap", "params.softcap * torch.tanh(scores / params.softcap)", "scores"),
        ("forgets sinks", "if params.sinks is not None:", "if False:"),
        (
            "mixes heads",
            "keys = keys.repeat_interleave(group, 1)",
            "keys = keys.repeat(1, group, 1)",
        ),
        (
            "writes keys to the wrong slots",
            "cache[blocks, 0, offsets] = key",
            "cache[blocks, 0, offsets.flip(0)] = key",
        ),
        (
            "reads back",
            "return slots, list(spans)",
            "inputs.slots.tolist(); return slots, list(spans)",
        ),
        (
            "forgets chunks",
            "visible &= key_positions // params.chunk == query_positions // params.chunk",
            "pass",
        ),
        ("changes its inputs", "out = query.new_empty", "query.mul_(1.5); out = query.new_empty"),
    ),
    "grammar_backends": (
        (
            "allows everything",
            "return any(text.startswith(output + words[token]) for text in self._choices.texts)",
            "return True",
        ),
        ("never ends", "return self.is_done() or output in self._choices.texts", "return False"),
        ("ends anywhere", "return self.is_done() or output in self._choices.texts", "return True"),
        ("does not roll back", "del self._tokens[len(self._tokens) - k :]", "pass"),
        (
            "accepts what the mask forbids",
            "if allowed:\n            self._tokens.append(token)\n        return allowed",
            "self._tokens.append(token)\n        return True",
        ),
        ("accepts unsupported constraints", 'if constraint.kind != "choice":', "if False:"),
        (
            "shares a state",
            "return State(self)",
            "self.__dict__.setdefault('s', State(self)); return self.s",
        ),
        ("continues after the end", "or self.is_done():", "or False:"),
        ("does not reset the mask", "mask[:] = 0", "pass"),
    ),
}
