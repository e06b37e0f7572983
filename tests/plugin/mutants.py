"""What is wrong with plugins: for every kind, changes to the package that `engine plugins new`
writes, each of which breaks it.

A change is (what is wrong, text in one of the files, text in its place). The suite of the kind must
fail each; `SURVIVORS` are those that it does not catch, with the reason. The table in the docs is
made of this list, and a test runs all of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

Change = tuple[str, str, str]

MUTANTS: Final[Mapping[str, tuple[Change, ...]]] = {
    "tool_parsers": (
        ("never finds a call", 'scan.text("<call>")', 'scan.text("<never>")'),
        ("finds the first call only", "while (yield", "if (yield"),
        ("loses arguments", "scan.call(name, arguments)", "scan.call(name, {})"),
        ("cuts names", "scan.call(name, arguments)", "scan.call(name[1:], arguments)"),
        (
            "says every call twice",
            "scan.call(name, arguments)",
            "scan.call(name, arguments); scan.call(name, arguments)",
        ),
        ("eats the text before calls", 'scan.text("<call>")', 'scan.skip_to("<call>")'),
        ("has lost its method", "read(scan: Scan, request: ParseRequest)", "read(scan: Scan)"),
    ),
    "reasoning_parsers": (
        ("never begins to think", 'scan.maybe("<thought>")', 'scan.maybe("<never>")'),
        ("always thinks", "if opened:", "if True:"),
        ("never stops thinking", 'scan.reasoning("</thought>")', 'scan.reasoning("</never>")'),
        ("stops at the start tag", 'scan.reasoning("</thought>")', 'scan.reasoning("<thought>")'),
        ("has lost an argument", "read(scan: Scan, request: ParseRequest)", "read(scan: Scan)"),
    ),
    "quant_methods": (
        ("scales are too small for the largest", "/ 127\n", "/ 160\n"),
        ("keeps four bits", "(own / scale).round()", "((own / scale / 16).round() * 16)"),
        ("forgets the scales", '* layer.get_buffer("scale").to(x.dtype).T', ""),
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
        ("calls itself otherwise", 'name = "acme"', 'name = "other"'),
        ("asks for the bias", '("weight",)', '("weight", "bias")'),
        ("multiplies by the transposed", "x @ layer", "x.flip(-1) @ layer"),
    ),
    "scheduling_policies": (
        ("reverses", "request.num_prompt_tokens,", "-request.num_prompt_tokens,"),
        (
            "tells no lengths apart",
            "(request.num_prompt_tokens,",
            "(request.num_prompt_tokens // 100,",
        ),
        ("the last comes first", ", request.arrival_s)", ", -request.arrival_s)"),
        (
            "returns a number",
            "return (request.num_prompt_tokens, request.arrival_s)",
            "return request.arrival_s",
        ),
        ("returns NaN", "request.arrival_s)", 'float("nan"))'),
        (
            "keys of two lengths",
            "request.arrival_s)",
            "*([request.arrival_s] if request.priority else []))",
        ),
        ("keeps a state", "return (", "self.n = getattr(self, 'n', 0) + 1; return (self.n, "),
        ("looks at a clock", "request.arrival_s)", "__import__('time').perf_counter())"),
    ),
    "metric_sinks": (
        ("drops tokens", "self.generated_tokens += stats.generated_tokens", "pass"),
        ("drops requests", "self.finished_requests += 1", "pass"),
        ("counts twice", "+= stats.generated_tokens", "+= 2 * stats.generated_tokens"),
        (
            "keeps the last, not the most",
            "max(self.most_running, stats.num_running)",
            "stats.num_running",
        ),
        (
            "divides by what may be nothing",
            "self.finished_requests += 1",
            "self.finished_requests += 1 // stats.generated_tokens",
        ),
        (
            "takes no configuration",
            "config: EngineConfig) -> None",
            "config: EngineConfig, more: int) -> None",
        ),
        ("has no step", "def step(", "def steps("),
    ),
    "logits_processors": (
        ("does nothing", 'logits[i, self._tokens[row]] = float("-inf")', "pass"),
        ("allows only what it shall forbid", '= float("-inf")', "= 100.0"),
        (
            "forbids the first row's tokens everywhere",
            "self._tokens[row]] =",
            "self._tokens[rows.rows[0]]] =",
        ),
        ("makes NaN", '= float("-inf")', '= float("nan")'),
        (
            "reads back",
            "for i, row in enumerate(rows.rows):",
            "for i, row in enumerate(rows.row_index.tolist()):",
        ),
        ("answers in half precision", "return logits", "return logits.half()"),
        (
            "says it never changes the best token",
            "argmax_invariant = False",
            "argmax_invariant = True",
        ),
        ("names a field that is none", "params: tuple[str, ...] = ()", 'params = ("no_such",)'),
        ("sorts rows by index", "logits[i, self", "logits[len(rows.rows) - 1 - i, self"),
    ),
    "poolers": (
        ("takes the first only", "(hidden[:1] + hidden[-1:]) / 2", "hidden[:1]"),
        ("takes the sum", ") / 2", ")"),
        ("loses a dimension", "(hidden[:1] + hidden[-1:]) / 2", "hidden.mean(0)"),
        ("needs less than it says it does not", "whole = True", "whole = False"),
        ("reads back", "/ 2", "/ 2 + 0 * hidden.sum().item()"),
        ("gives many vectors", "(hidden[:1] + hidden[-1:]) / 2", "hidden"),
        ("does not say what it gives", "per_token = False", "per_tokens = False"),
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
        ("raises for half a character", 'decode(errors="replace")', "decode()"),
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
    "commands": (
        ("prints another name", "{context.args.name}", "world"),
        ("prints nothing", "sys.stdout.write(", "str("),
        ("fails", "return 0", "return 1"),
        ("has no help", '"Say hello."', '""'),
        (
            "does not say what it takes",
            "takes_engine_options = False",
            "takes_engine_options = None",
        ),
        (
            "adds its arguments once",
            'parser.add_argument("--name"',
            'self.__dict__.setdefault("p", parser).add_argument("--name"',
        ),
        ("has another default", 'default="world"', 'default="you"'),
    ),
    "speculators": (
        ("never guesses", "* row.most for row", "* 0 for row"),
        ("guesses too many", "* row.most for row", "* (row.most + 1) for row"),
        ("guesses another token", "return last[:1]", "return [t + 1 for t in last[:1]]"),
        ("guesses behind every token", "if len(set(last)) == 1 < len(last) else []", ""),
        ("leaves rows out", "for row in rows]", "for row in rows if len(row.tokens) > 1]"),
        ("does not say whether it finds", "finds = True", "finder = True"),
        ("reverses the rows", "for row in rows]", "for row in rows[::-1]]"),
    ),
    "kv_connectors": (
        ("keeps what the caller writes over", "[part.copy() for part in block]", "list(block)"),
        ("fills nothing", "part[:] = own", "part == own"),
        (
            "fills in another order",
            "zip(block, kept, strict=True)",
            "zip(block[::-1], kept, strict=False)",
        ),
        ("returns another seal", "return seal", "return seal[::-1]"),
        (
            "keeps the first of two",
            "self._blocks[key] = [part.copy() for part in block], seal",
            "self._blocks.setdefault(key, ([part.copy() for part in block], seal))",
        ),
        ("does not forget", "self._blocks.pop(key, None)", "pass"),
        (
            "says it has what it was never told is there",
            "self._known[key] = False",
            "self._known[key] = True",
        ),
        ("never has anything", "self._known[key] = True", "self._known[key] = False"),
        ("keeps more than it may", "self.num_bytes + size > self.most_bytes", "False"),
        (
            "keeps what is lost",
            "if self._known.pop(key, None) is not None:",
            "if self._known.get(key) is not None:",
        ),
    ),
    "kv_eviction": (
        ("forgets those that several had", "len(self._once) + len(self._often)", "len(self._once)"),
        ("shows some of them", "[*self._once, *self._often]", "[*self._often]"),
        ("the newest goes first", "queue.popitem(last=last)", "queue.popitem(last=True)"),
        ("keeps what is held again", "del queue[block]", "pass"),
        (
            "one order for all pools",
            "return Order()",
            "return self.__dict__.setdefault('one', Order())",
        ),
        (
            "looks at a clock",
            "self._uses.get(block, 0) > 1",
            "__import__('time').perf_counter_ns() % 3",
        ),
        ("never lets those go", "self._once or self._often", "self._once"),
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
            "says everything twice",
            "yield from tensors.items()",
            "yield from list(tensors.items()) * 2",
        ),
        (
            "raises OSError for a folder that is not there",
            "if not self._files:",
            "if not list(self._folder.iterdir()):",
        ),
        ("says no size", "return sum(file.stat().st_size for file in self._files)", "return -1"),
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
        ("asks for a fact that is none", '{"device": "cpu"}', '{"devise": "cpu"}'),
    ),
    "attention_backends": (
        ("forgets the scale", "* params.scale  #", "#"),
        ("sees the future", "(seen <= at)", "(seen <= at + 1)"),
        ("is a token short", "(seen <= at)", "(seen < at)"),
        ("sees a window too wide", "seen > at - params.window", "seen >= at - params.window"),
        (
            "reads blocks that are not its own",
            "first = _first_visible(params, length - (end - start))",
            "first = 0",
        ),
        ("forgets the cap", "params.softcap * torch.tanh(scores / params.softcap)", "scores"),
        ("forgets sinks", "if params.sinks is not None:", "if False:"),
        ("mixes heads", "repeat_interleave(group, 1), values", "repeat(1, group, 1), values"),
        (
            "writes keys to the next place",
            "cache[blocks, 0, offsets] = key",
            "cache[blocks, 0, offsets.flip(0)] = key",
        ),
        (
            "reads back",
            "return written, list(spans)",
            "inputs.slots.tolist(); return written, list(spans)",
        ),
        ("forgets chunks", "visible &= seen // params.chunk == at // params.chunk", "pass"),
        ("changes its inputs", "out = query.new_empty", "query.mul_(1.5); out = query.new_empty"),
    ),
    "grammar_backends": (
        (
            "allows everything",
            "return any(text.startswith(written + words[token]) for text in self._choices.texts)",
            "return True",
        ),
        ("never ends", "return self.is_done() or written in self._choices.texts", "return False"),
        ("ends anywhere", "return self.is_done() or written in self._choices.texts", "return True"),
        ("does not go back", "del self._tokens[len(self._tokens) - k :]", "pass"),
        (
            "accepts what the mask forbids",
            "if fits:\n            self._tokens.append(token)\n        return fits",
            "self._tokens.append(token)\n        return True",
        ),
        ("takes what it cannot hold", 'if constraint.kind != "choice":', "if False:"),
        (
            "shares a state",
            "return State(self)",
            "self.__dict__.setdefault('s', State(self)); return self.s",
        ),
        ("goes on behind its end", "or self.is_done():", "or False:"),
        ("fills a mask from before", "mask[:] = 0", "pass"),
    ),
    "routes": (
        ("has no route", "return [Route(", "return [] and [Route("),
        ("a path without a slash", '"/acme", self', '"acme", self'),
        (
            "serves a path twice",
            'return [Route("/acme", self._show, methods=["GET"])]',
            'return [Route("/acme", self._show, methods=["GET"])] * 2',
        ),
        (
            "other paths when asked again",
            '"/acme", self',
            'f"/acme{id(object())}{self.__dict__.setdefault(str(len(self.__dict__)), '
            '1)}{len(self.__dict__)}", self',
        ),
        (
            "opens what is not its own",
            "def __init__",
            'public_paths = ("/v1/models",)\n\n    def __init__',
        ),
        ("takes the engine only", "engine: Any, config: EngineConfig)", "engine: Any)"),
    ),
    "platforms": (
        ("calls itself otherwise", 'name = "acme"', 'name = "cpu"'),
        ("a device nobody knows", 'device = "cpu"', 'device = "no_such"'),
        ("ignores what was asked for", "config.cache.kv_cache_memory_bytes or 256", "256"),
        ("memory that is not zeroed", "torch.zeros(num_bytes", "torch.ones(num_bytes"),
        ("memory of another dtype", "dtype=torch.uint8", "dtype=torch.float32"),
        ("a dtype nobody knows", "else checkpoint_dtype", 'else "float8"'),
        ("facts without the device", '{"device": "cpu"}', '{"machine": "x"}'),
        ("says maybe", "return True", "return None"),
    ),
    "executors": (
        (
            "gives the first result again",
            "return self._inner.collect()",
            "self.first = getattr(self, 'first', None) or self._inner.collect(); return self.first",
        ),
        ("no depth", "return self._inner.depth", "return 0"),
        ("does not shut down", "def shutdown(self)", "def shut_down(self)"),
        ("answers calls of nobody", "return self._inner.call(name, data)", 'return [b""]'),
        ("starts twice", "return self._inner.start()", "return self._inner.start() and None"),
        (
            "swallows faults",
            "        finally:",
            "        except Exception:\n            return None\n        finally:",
        ),
    ),
    "workers": (
        ("tells nothing of the model", "return self._inner.start()", "self._inner.start()"),
        ("makes no cache", "self._inner.allocate(layout, first_layer)", "pass"),
        ("computes no step", "return self._inner.execute(plan)", "return None"),
        (
            "answers for features that are not there",
            "return self._inner.call(name, data)",
            'return b""',
        ),
        ("cannot be closed", "def close(self)", "def closed(self)"),
    ),
    "clients": (
        (
            "adds nothing",
            "return self._inner.add(requests, resumed=resumed)",
            "return self._inner.add([], resumed=resumed)",
        ),
        ("aborts nothing", "return self._inner.abort(request_ids)", "return self._inner.abort([])"),
        ("has no status", "return self._inner.status()", "return None"),
        (
            "answers calls of nobody",
            "return self._inner.call(name, data)",
            "return self._inner.abort([])",
        ),
        ("starts nothing", "return self._inner.wait()", "return None"),
    ),
    "servers": (
        ("carries no group", "for group in every for route in group.routes()", "for group in []"),
        ("carries the first only", "for group in every for", "for group in list(every)[:1] for"),
        ("cannot run", "def run(self)", "def serve(self)"),
        ("takes one argument", "engine: Any, config: EngineConfig, groups", "engine: Any, groups"),
    ),
    "runners": (
        ("takes every model", 'if config.model.runner != "acme":', "if False:"),
        ("takes any parameters", "return self._inner.admit(info, params)", "return None, params"),
        ("does not say whether it generates", "generates = True", "generates = None"),
        ("has no stage", "def stage(self", "def stages(self"),
    ),
    "admission_extensions": (
        (
            "does nothing",
            "return replace(draft, prompt_token_ids=[*begin.token_ids, *draft.prompt_token_ids])",
            "return draft",
        ),
        (
            "puts it behind",
            "[*begin.token_ids, *draft.prompt_token_ids]",
            "[*draft.prompt_token_ids, *begin.token_ids]",
        ),
        (
            "changes the draft",
            "return replace(draft, prompt_token_ids=",
            "draft.prompt_token_ids.insert(0, 1); return replace(draft, prompt_token_ids=",
        ),
        ("returns nothing", "return replace(", "replace("),
        ("raises TypeError for nonsense", "if not isinstance(words, str):", "if False:"),
        ("names another field", 'InvalidRequest("acme"', 'InvalidRequest("prompt"'),
        ("a text for names", 'keywords = ("acme",)', 'keywords = "acme"'),
        ("prepare without its draft", "def prepare(self, draft: Draft)", "def prepare(self)"),
    ),
    "scheduler_extensions": (
        ("never wakes", "self._scheduler.wake(request_id)", "pass"),
        (
            "keeps the blocks of ended requests",
            "self._scheduler.wake(request_id)\n        return False",
            "self._scheduler.wake(request_id)\n        return True",
        ),
        ("never gives a place back", "self._running.discard(request.request_id)", "pass"),
        (
            "raises",
            "self._parked.pop(request.request_id, None)\n        self._running",
            "self._parked.pop(request.request_id)\n        self._running",
        ),
        ("has no name", 'name = "acme"', 'named = "acme"'),
        (
            "asks for another argument",
            "def may_start(self, request: Any)",
            "def may_start(self, request: Any, now: float)",
        ),
        ("answers nothing", "return True", "return None"),
    ),
    "runner_extensions": (
        (
            "reads back",
            "return (logits / self._cap)",
            "logits.sum().item(); return (logits / self._cap)",
        ),
        (
            "mixes rows",
            "return (logits / self._cap)",
            "return (logits.mean(0, keepdim=True) + 0 * logits) + (logits / self._cap)",
        ),
        ("returns nothing", "return (logits / self._cap)", "(logits / self._cap)"),
        ("makes NaN", "* self._cap", '* float("nan")'),
        ("loses rows", "(logits / self._cap).tanh()", "(logits[:1] / self._cap).tanh()"),
        ("draws at random", "* self._cap", "* self._cap * __import__('random').choice((1, -1))"),
        ("has no name", 'name = "acme"', 'named = "acme"'),
        ("is called otherwise", "def before_sample(", "def before_sampling("),
    ),
    "options": (
        ("a default of another type", "float, 10.0", 'float, "ten"'),
        ("no help", '"Seconds of waiting that count as much as a thousand tokens less."', '""'),
        ("a name that is no flag", '"acme_patience", float', '"Acme-Patience", float'),
        ("an example of another's", '{"acme_patience": 3.0}', '{"dtype": "float32"}'),
        ("reads another name", 'config.options["acme_patience"]', 'config.options["patience"]'),
        ("reverses", "request.arrival_s * self", "-request.arrival_s * self"),
    ),
    "find_model": (
        ("takes every name", "model.startswith(PREFIX)", "True"),
        ("takes none", "model.startswith(PREFIX)", "False"),
        ("raises for other names", 'return "scripted:"', 'model.index(PREFIX); return "scripted:"'),
        ("gives the same name", '"scripted:" if', "model if"),
        ("gives something else", '"scripted:" if', "7 if"),
    ),
    "add_hooks": (
        ("a hook that is not marked", "@hookspec\ndef", "def"),
        (
            "a hook that says nothing",
            '"""Return words in a language, none where the plugin knows it not."""',
            "",
        ),
        ("adds nothing", "return [hooks]", "return []"),
        ("another prefix", "def engine_acme_words", "def acme_words"),
    ),
}
SURVIVORS: Final[Mapping[tuple[str, str], str]] = {
    (
        "kv_connectors",
        "keeps the first of two",
    ): "what is there is dropped before it is written again",
}
