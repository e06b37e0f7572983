"""Deltas to outputs: output kinds, stop strings, log-probabilities, several sequences."""

from __future__ import annotations

from typing import Any

from core.contracts.admission import PendingRequest
from core.errors import PluginError
from core.frontend.outputs import OutputProcessor
from core.step import EngineRequest, Logprobs, RequestDelta
from core.testing.byte_tokenizer import ByteTokenizer
from core.types import CompletionOutput, RequestOutput, RequestOutputKind, SamplingParams


def start(
    sampling: SamplingParams, n: int = 1, extra_fields: Any = None, **settings: Any
) -> OutputProcessor:
    processor = OutputProcessor(ByteTokenizer(), **settings)
    requests = [
        EngineRequest(
            request_id=f"r#{i}",
            prompt_token_ids=[104, 105],
            sampling=sampling,
            seed=i,
            max_tokens=64,
        )
        for i in range(n)
    ]
    pending = PendingRequest(
        request_id="r",
        prompt_token_ids=[],
        sampling=sampling,
        text="hi",
        extra_fields=extra_fields or {},
    )
    processor.add(pending, requests)
    return processor


def feed(
    processor: OutputProcessor, text: str, index: int = 0, **delta: Any
) -> tuple[list[RequestOutput], list[str]]:
    return processor.process(
        [RequestDelta(request_id=f"r#{index}", token_ids=list(text.encode()), **delta)], 1.0
    )


def test_cumulative_outputs_contain_the_whole_text() -> None:
    processor = start(SamplingParams())
    feed(processor, "ab")
    outputs, _ = feed(processor, "c")
    assert outputs[0].outputs[0].text == "abc"
    assert not outputs[0].finished


def test_joined_deltas_equal_the_whole_text() -> None:
    processor = start(SamplingParams(output_kind=RequestOutputKind.DELTA, stop=["END"]))
    texts = []
    for piece in ("he", "llo E", "ND more"):
        outputs, _ = feed(processor, piece)
        texts += [o.outputs[0].text for o in outputs]
    assert "".join(texts) == "hello "


def test_special_token_is_never_split_by_a_possible_stop_string() -> None:
    kind = RequestOutputKind.DELTA
    processor = start(SamplingParams(output_kind=kind, stop=["eos|>!"], skip_special_tokens=False))
    found = []
    for token_ids in ([97, 256], [98]):
        outputs, _ = processor.process([RequestDelta(request_id="r#0", token_ids=token_ids)], 1.0)
        found += [(o.outputs[0].text, list(o.outputs[0].special_spans)) for o in outputs]
    assert found == [("a", []), ("<|eos|>b", [(0, 7)])]


def test_final_only_has_one_output() -> None:
    processor = start(SamplingParams(output_kind=RequestOutputKind.FINAL_ONLY))
    assert feed(processor, "ab")[0] == []
    outputs, _ = feed(processor, "c", finish_reason="length")
    assert outputs[0].finished
    assert outputs[0].outputs[0].text == "abc"


def test_stop_string_ends_and_aborts_the_sequence() -> None:
    processor = start(SamplingParams(stop=["b"]))
    outputs, aborts = feed(processor, "abc")
    assert aborts == ["r#0"]
    completion = outputs[0].outputs[0]
    assert (completion.text, completion.finish_reason, completion.stop_reason) == ("a", "stop", "b")
    assert feed(processor, "more") == ([], [])


def test_stop_token_is_in_the_tokens_but_not_in_the_text() -> None:
    processor = start(SamplingParams(stop_token_ids=[33], skip_special_tokens=False))
    outputs, _ = feed(processor, "ab!", finish_reason="stop", stop_reason=33)
    completion = outputs[0].outputs[0]
    assert completion.text == "ab"
    assert list(completion.token_ids) == list(b"ab!")


def test_stop_strings_are_ignored_before_min_tokens() -> None:
    processor = start(SamplingParams(stop=["a"], min_tokens=2))
    assert feed(processor, "a")[1] == []
    assert feed(processor, "b")[1] == []
    assert feed(processor, "a")[1] == ["r#0"]


def test_request_finishes_with_its_last_sequence() -> None:
    processor = start(SamplingParams(n=2, output_kind=RequestOutputKind.FINAL_ONLY), n=2)
    assert feed(processor, "a", 0, finish_reason="length")[0] == []
    outputs, _ = feed(processor, "b", 1, finish_reason="stop")
    assert [c.text for c in outputs[0].outputs] == ["a", ""]
    assert [c.finish_reason for c in outputs[0].outputs] == ["length", "stop"]
    assert len(processor) == 0


def test_logprobs_contain_the_token_and_the_top_ones() -> None:
    processor = start(SamplingParams(logprobs=2))
    position = Logprobs(token_ids=[97, 98, 97, 99], values=[-1.5, -0.5, -1.5, -3.0], rank=2)
    outputs, _ = feed(processor, "a", logprobs=[position])
    completion = outputs[0].outputs[0]
    assert completion.logprobs is not None
    assert {t: (p.logprob, p.rank) for t, p in completion.logprobs[0].items()} == {
        97: (-1.5, 2),
        98: (-0.5, 1),
    }
    assert completion.cumulative_logprob == -1.5
    assert completion.logprobs[0][97].decoded_token == "a"


def test_stream_interval_batches_tokens() -> None:
    processor = OutputProcessor(ByteTokenizer(), stream_interval=3)
    sampling = SamplingParams(output_kind=RequestOutputKind.DELTA)
    request = EngineRequest(
        request_id="r#0", prompt_token_ids=[1], sampling=sampling, seed=0, max_tokens=9
    )
    processor.add(
        PendingRequest(request_id="r", prompt_token_ids=[], sampling=request.sampling), [request]
    )
    counts = [
        len(feed(processor, "x", finish_reason="length" if i == 6 else None)[0]) for i in range(7)
    ]
    assert counts == [0, 0, 1, 0, 0, 1, 1]


def test_feature_messages_become_output_fields() -> None:
    def finished(features: Any) -> Any:
        return {"kv_transfer_params": {"at": features["moved"].decode()}}

    processor = start(
        SamplingParams(), output_fields=finished, extra_fields={"lora_request": "mine"}
    )
    outputs, _ = feed(processor, "ab")
    assert (outputs[0].lora_request, outputs[0].kv_transfer_params) == ("mine", None)
    outputs, _ = feed(processor, "c", finish_reason="length", features={"moved": b"there"})
    assert (outputs[0].lora_request, outputs[0].kv_transfer_params) == ("mine", {"at": "there"})
    assert outputs[0].error is None


def test_feature_error_fails_only_its_request() -> None:
    def finished(features: Any) -> Any:
        raise PluginError("plugin 'moved' failed")

    processor = start(SamplingParams(), output_fields=finished)
    outputs, _ = feed(processor, "c", finish_reason="length", features={"moved": b""})
    assert (outputs[0].finished, outputs[0].error) == (True, "plugin 'moved' failed")


def test_deltas_of_several_steps_make_one_output() -> None:
    processor = start(SamplingParams(output_kind=RequestOutputKind.DELTA), n=2)
    deltas = [
        RequestDelta(request_id=f"r#{i}", token_ids=list(text))
        for i, text in ((0, b"a"), (1, b"x"), (0, b"b"))
    ]
    outputs, _ = processor.process(deltas, 1.0)
    assert [[(c.index, c.text) for c in each.outputs] for each in outputs] == [
        [(1, "x")],
        [(0, "ab")],
    ]


def test_stop_string_discards_later_deltas() -> None:
    processor = start(SamplingParams(output_kind=RequestOutputKind.DELTA, stop=["b"]))
    deltas = [RequestDelta(request_id="r#0", token_ids=list(text)) for text in (b"a", b"b", b"c")]
    outputs, aborts = processor.process(deltas, 1.0)
    assert [(o.outputs[0].text, o.finished) for o in outputs] == [("a", True)]
    assert aborts == ["r#0"]


def test_consumed_delta_is_no_output_and_the_end_is_never_offered() -> None:
    processor = start(SamplingParams(output_kind=RequestOutputKind.DELTA))
    offered: list[str] = []

    def try_deliver(completion: CompletionOutput) -> bool:
        offered.append(completion.text)
        return completion.text != "b"

    processor.set_delivery_callback("r", try_deliver)
    outputs_of = [feed(processor, text)[0] for text in "ab"] + [
        feed(processor, "c", finish_reason="length")[0]
    ]
    assert offered == ["a", "b"]
    assert [[o.outputs[0].text for o in outputs] for outputs in outputs_of] == [[], ["b"], ["c"]]
