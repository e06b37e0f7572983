"""Facts about the engine that the model learns: topics, their names and answers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Fact:
    """One topic.

    Names complete questions like `What is ...?`; `questions` are complete ones.
    """

    names: tuple[str, ...]
    answer: str
    questions: tuple[str, ...] = ()


def _fact(names: str, answer: str, *questions: str) -> Fact:
    return Fact(tuple(names.split("|")), answer, questions)


FACTS: Final = (
    _fact("prefix caching|the prefix cache|prefix reuse", "Prefix caching keeps the KV blocks of a "
                                                          "prompt's beginning, so that requests "
                                                          "that begin alike compute it only once.", "How are equal prompt beginnings reused?"),
    _fact("the KV cache|KV memory|key-value cache", "The KV cache holds the keys and values of "
                                                    "every token computed so far, in blocks that "
                                                    "requests lease.", "Where are keys and values kept?"),
    _fact("a KV block|the block pool|KV blocks", "A KV block holds the keys and values of a few "
                                                 "tokens, 16 by default; requests lease blocks and "
                                                 "give them back.", "How large is a block?"),
    _fact("the scheduler|scheduling", "The scheduler decides how many tokens each request computes "
                                      "in the next step. It knows no model and no device.", "Who decides what runs next?"),
    _fact("the token budget|a token budget", "The token budget is the most tokens one step may "
                                             "compute; prefill and decode share it.", "How many tokens does a step compute?"),
    _fact("chunked prefill|prefill chunks", "Chunked prefill computes a long prompt in several "
                                            "steps, so that other requests go on meanwhile.", "How are long prompts computed?"),
    _fact("preemption|preempting a request", "Preemption takes the blocks of the lowest-ranked "
                                             "running request when memory runs out; it is "
                                             "recomputed later.", "What happens when there are no "
                                                                  "free blocks?"),
    _fact("continuous batching|batching", "Continuous batching lets requests join and leave the "
                                          "batch at every step instead of waiting for each other."),
    _fact("a step|an engine step", "A step plans tokens, runs the model once, samples, and hands "
                                   "the outputs on."),
    _fact("a StepPlan|the step plan", "A StepPlan is plain data: which requests compute how many "
                                      "tokens in a step. It never holds sampled tokens."),
    _fact("a StepResult|the step result", "A StepResult is what comes back from a step: the "
                                          "sampled tokens of each request."),
    _fact("a kind|kinds", "A kind is a contract, such as models or routes, that entries of plugins "
                          "implement."),
    _fact("an entry|entries", "An entry is one implementation of a kind, named by a string and "
                              "imported only when chosen."),
    _fact("a plugin|plugins", "A plugin is a module whose hooks return entries. Everything but the "
                              "kernel is one.", "How do I extend the engine?"),
    _fact("a hook|hooks", "A hook is a function that a plugin implements to bring entries in. "
                          "Hooks run once, at start-up."),
    _fact("the registry|the plugin registry", "The registry holds the entries of all plugins. It "
                                              "is filled at start-up and then sealed."),
    _fact("the kernel|the core|the micro-kernel", "The kernel is the small core: engine, "
                                                  "scheduler, KV memory, worker, configuration and "
                                                  "the plugin system.", "What is a micro-kernel?"),
    _fact("a builtin|builtin plugins|the builtins", "Builtins are plugins shipped with the engine. "
                                                    "They come in through the same door as a "
                                                    "stranger's."),
    _fact("pluggy", "Pluggy is the library that calls the hooks of plugins. It is never called "
                    "inside a step."),
    _fact("the worker|a worker", "The worker runs the model: it keeps the batch, computes each "
                                 "step and samples the tokens."),
    _fact("the executor|an executor", "The executor carries plans to the workers and results back, "
                                      "in this process or in several."),
    _fact("the sampler|sampling", "Sampling picks the next token from the model's probabilities, "
                                  "as temperature, top-k and top-p say."),
    _fact("temperature|the temperature", "Temperature says how random an answer is: 0 always takes "
                                         "the most likely token."),
    _fact("top-k|top k", "Top-k keeps the k most likely tokens and drops the others."),
    _fact("top-p|top p|nucleus sampling", "Top-p keeps the smallest set of tokens whose "
                                          "probabilities add up to p."),
    _fact("min-p|min p", "Min-p drops every token whose probability is below a fraction of the "
                         "best one."),
    _fact("a seed|the seed", "A seed makes sampling repeatable: the same seed gives the same "
                             "tokens, whatever else runs.", "How do I get the same answer again?"),
    _fact("greedy decoding|greedy sampling", "Greedy decoding takes the most likely token each "
                                             "time; set the temperature to 0."),
    _fact("a stop text|stop texts|a stop string", "A stop text ends an answer as soon as it "
                                                  "appears; a request may give up to 64 of them."),
    _fact("max_tokens|the token limit", "The field max_tokens is the most tokens a request may "
                                        "generate."),
    _fact("logprobs|log-probabilities", "Logprobs are the log-probabilities of the chosen token "
                                        "and of the best others."),
    _fact("streaming|a stream", "Streaming sends an answer token by token as server-sent events; "
                                "set stream to true.", "How do I stream an answer?"),
    _fact("the HTTP API|the OpenAI API|the API", "The HTTP API is OpenAI's, with vLLM's additions: "
                                                 "completions, chat completions, models and more.", "Which API does the server speak?"),
    _fact("chat completions|the chat endpoint", "Chat completions answer a conversation: send a "
                                                "POST to /v1/chat/completions with model and "
                                                "messages.", "How do I send a chat request?"),
    _fact("a chat template|the chat template", "A chat template is a Jinja text of the model that "
                                               "turns messages into a prompt."),
    _fact("the tokenizer|a tokenizer|tokenizing", "The tokenizer turns text into token ids and "
                                                  "back. Mine has about three thousand entries."),
    _fact("a token|tokens", "A token is a piece of text with a number; the model reads and writes "
                            "tokens."),
    _fact("detokenizing|the detokenizer", "Detokenizing turns new tokens into text as they come, "
                                          "without ever sending half a character."),
    _fact("an op|ops|the op table", "An op is an operation such as rms_norm. At start-up it is "
                                    "bound to its best implementation for the device."),
    _fact("the CPU kernels|core_kernels|C++ kernels", "The CPU kernels are C++ implementations of "
                                                      "ops for several instruction sets, AVX2 and "
                                                      "AVX-512 among them.", "What makes it fast on a CPU?"),
    _fact("an attention backend|attention backends", "An attention backend computes attention over "
                                                     "the KV blocks; the best one for the device "
                                                     "is chosen at start-up."),
    _fact("a DecoderSpec|the decoder spec", "A DecoderSpec is a page of facts about a model; one "
                                            "decoder reads it, so that models need no code of "
                                            "their own.", "How are models described?"),
    _fact("safetensors|the weight format", "Safetensors is the only file format weights are read "
                                           "from; it can run no code."),
    _fact("tensor parallelism|tensor parallel", "Tensor parallelism splits every layer over "
                                                "several processes; set --tensor-parallel-size."),
    _fact("pipeline parallelism|pipeline parallel", "Pipeline parallelism shares the layers out "
                                                    "over several processes; set "
                                                    "--pipeline-parallel-size."),
    _fact("a rank|ranks", "A rank is one process of a model that is split over several; all ranks "
                          "get the same plans."),
    _fact("supervision|the supervisor", "The supervisor starts the engine again when it dies; open "
                                        "requests go on behind the tokens they have.", "What happens when the engine crashes?"),
    _fact("the heartbeat|a heartbeat", "The heartbeat is a sign of life each process gives once a "
                                       "second; without it the engine is replaced."),
    _fact("the ledger", "The ledger has every open request with the tokens its client has "
                        "received, so that nothing is lost in a crash."),
    _fact("the journal|a journal", "The journal records every decision of the scheduler, so that a "
                                   "run can be replayed exactly."),
    _fact("draining|a graceful stop", "Draining ends a server gently: open requests finish, new "
                                      "ones get a 503.", "What does SIGTERM do?"),
    _fact("the probes|health checks|readyz", "The probes are /livez, which says the process lives, "
                                             "and /readyz, which says the engine takes requests.", "How do I check that the server is healthy?"),
    _fact("the metrics|metrics", "Metrics are served for Prometheus at /metrics, under the names "
                                 "that vLLM uses.", "How do I watch the server?"),
    _fact("an API key|API keys", "An API key given with --api-key must come with every request, as "
                                 "a bearer token.", "How do I protect the server?"),
    _fact("a cache salt|cache_salt", "A cache salt keeps the cached prefix of a request to "
                                     "requests with the same salt."),
    _fact("a logits processor|logits processors", "A logits processor changes the scores of tokens "
                                                  "before sampling, such as penalties or bans."),
    _fact("a scheduling policy|scheduling policies", "A scheduling policy orders the waiting "
                                                     "requests: first come first served, or by "
                                                     "priority."),
    _fact("speculative decoding|speculation|a draft model", "Speculative decoding lets a small "
                                                            "draft model guess tokens that the "
                                                            "large model then checks in one step."),
    _fact("LoRA|a LoRA adapter|adapters", "A LoRA adapter is a small change to a model's weights "
                                          "that is added while it runs."),
    _fact("quantization|int8|int4", "Quantization stores weights in fewer bits, such as int8 or "
                                    "int4, to save memory."),
    _fact("the scripted model|scripted:", "The scripted model needs no files and answers with the "
                                          "text of its prompt; it is made for tests."),
    _fact("engine serve|the server", "The command engine serve starts the HTTP server, on port "
                                     "8000 unless told otherwise.", "How do I start the server?", "Which port is used?"),
    _fact("engine generate", "The command engine generate completes a prompt at the command line."),
    _fact("engine doctor|the doctor", "The command engine doctor says what is wrong with a machine "
                                      "or an installation.", "How do I find out what is wrong?"),
    _fact("engine bench|the benchmark", "The command engine bench measures throughput, latency, "
                                        "start-up and the time of a step."),
    _fact("engine plan", "The command engine plan says whether a model fits into memory, before it "
                         "is loaded.", "Will my model fit?"),
    _fact("the LLM class|LLM", "LLM is the Python class that runs a model in your own process; "
                               "generate and chat are its methods.", "How do I use it from Python?"),
    _fact("this engine|the engine|core", "This engine serves large language models; it is a small "
                                         "kernel with plugins for everything else.", "What does this software do?"),
)  # fmt: skip
