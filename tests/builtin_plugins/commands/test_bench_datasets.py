"""Parts of the benchmarks: prompt lengths, arrivals, statistics, chunks."""

from __future__ import annotations

import argparse
import json
import statistics
from base64 import b64decode
from io import BytesIO
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from builtin_plugins.commands.bench.figures import figures
from builtin_plugins.commands.bench.http_stream import Dechunker, HttpError
from builtin_plugins.commands.bench.openai_api import Api, Outcome, Run, arrival_times
from builtin_plugins.commands.bench.prompt_source import Tokens, Words, tokens_from_file
from builtin_plugins.commands.bench.report import percentile
from builtin_plugins.commands.bench.workload import (
    TokenIds,
    add_dataset,
    check_dataset,
    make_samples,
)
from core.api import ConfigError
from core.testing.checkpoints import make_checkpoint


def samples(*argv: str, units: Any = None, seed: int = 0) -> list[Any]:
    parser = argparse.ArgumentParser()
    add_dataset(parser, num_prompts=20)
    return make_samples(
        parser.parse_args([word for text in argv for word in text.split()]),
        units or TokenIds(1000),
        Random(seed),
    )


def test_random_prompts_have_the_requested_lengths() -> None:
    made = samples("--input-len 40 --output-len 8 --random-prefix-len 5")
    assert {
        (len(sample.prompt), sample.prompt_tokens, sample.output_tokens) for sample in made
    } == {(45, 45, 8)}
    assert len({tuple(sample.prompt[:5]) for sample in made}) == 1
    assert len({tuple(sample.prompt[5:]) for sample in made}) == 20


def test_random_lengths_cover_their_range() -> None:
    made = samples("--num-prompts 500 --input-len 40 --random-range-ratio 0.5")
    lengths = [len(sample.prompt) for sample in made]
    assert (min(lengths), max(lengths)) == (20, 60)


def test_same_seed_same_prompts() -> None:
    assert samples(seed=3) == samples(seed=3)
    assert samples(seed=3) != samples(seed=4)


def test_random_images_have_sizes_and_numbers_of_their_flags() -> None:
    flags = "--dataset-name random-mm --num-prompts 200 --random-mm-base-items-per-request 2 "
    more = "--random-mm-num-mm-items-range-ratio 0.5 --random-mm-bucket-config "
    parser = argparse.ArgumentParser()
    add_dataset(parser, num_prompts=20)
    shares = "{(4, 6, 1): 0.75, (8, 2, 1): 0.25, (9, 9, 1): 0}"
    args = parser.parse_args([*flags.split(), *more.split(), shares])
    made = make_samples(args, Words(), Random(5))
    assert {len(sample.images) for sample in made} == {1, 2, 3}
    urls = [url for sample in made for url in sample.images]
    sizes = [Image.open(BytesIO(b64decode(url.partition(",")[2]))).size for url in urls]
    assert set(sizes) == {(6, 4), (2, 8)}
    assert 0.6 < sizes.count((6, 4)) / len(sizes) < 0.9
    assert len(set(urls)) > 0.9 * len(urls)
    assert made == make_samples(args, Words(), Random(5))
    api = Api(None, "openai-chat", "/", "m", {})  # type: ignore[arg-type]
    content = json.loads(api.body(made[0]))["messages"][0]["content"]
    assert content[0] == {"type": "text", "text": made[0].prompt}
    assert [part["image_url"]["url"] for part in content[1:]] == list(made[0].images)


@pytest.mark.parametrize(
    "flags",
    [
        ["--random-mm-base-items-per-request", "-1"],
        ["--random-mm-num-mm-items-range-ratio", "1.5"],
        ["--random-mm-bucket-config", "{"],
        ["--random-mm-bucket-config", "{}"],
        ["--random-mm-bucket-config", "{(4, 4, 16): 1.0}"],
        ["--random-mm-bucket-config", "{(4, 4): 1.0}"],
        ["--random-mm-bucket-config", "{(4, 0, 1): 1.0}"],
        ["--random-mm-bucket-config", "{(4, 4, 1): -1}"],
        ["--backend", "openai"],
    ],
)
def test_invalid_flags_of_random_images_are_refused(flags: list[str]) -> None:
    parser = argparse.ArgumentParser()
    add_dataset(parser, num_prompts=20)
    parser.add_argument("--backend", default="openai-chat")
    with pytest.raises(ConfigError, match=flags[0].replace("--backend", "--dataset-name")):
        check_dataset(parser.parse_args(["--dataset-name", "random-mm", *flags]))


def test_prefixes_repeat_equally() -> None:
    flags = (
        "--dataset-name prefix_repetition --prefix-repetition-num-prefixes 4 "
        "--prefix-repetition-prefix-len 6"
    )
    made = samples(*flags.split(), "--prefix-repetition-suffix-len", "3")
    beginnings = [tuple(sample.prompt[:6]) for sample in made]
    assert sorted(map(beginnings.count, set(beginnings))) == [5, 5, 5, 5]
    assert {len(sample.prompt) for sample in made} == {9}


def test_small_dataset_is_repeated(tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text('{"prompt": "a b"}\n\n{"prompt": "c"}\n')
    made = samples("--dataset-name", "custom", "--dataset-path", str(path), "--num-prompts", "5")
    assert [sample.prompt for sample in made] == ["a b", "c", "a b", "c", "a b"]


def test_sharegpt_gives_questions_and_answer_lengths(tmp_path: Path) -> None:
    turns = [
        ("one two three four five", "a b c d e f"),
        ("too short", "a b c d"),
        ("one two three four", "x " * 3000),
    ]
    path = tmp_path / "sharegpt.json"
    path.write_text(json.dumps([{"conversations": [{"value": q}, {"value": a}]} for q, a in turns]))
    flags = [
        "--dataset-name",
        "sharegpt",
        "--dataset-path",
        str(path),
        "--num-prompts",
        "2",
        "--output-len",
        "-1",
    ]
    made = samples(*flags, units=Words())
    assert [(s.prompt, s.output_tokens, s.prompt_tokens) for s in made] == [
        ("one two three four five", 6, 5)
    ] * 2


def test_sonnet_prompts_share_a_prefix(tmp_path: Path) -> None:
    path = tmp_path / "sonnet.txt"
    path.write_text("\n".join(f"line {number} of four" for number in range(50)))
    flags = "--sonnet-input-len 60 --sonnet-prefix-len 16 --sonnet-output-len 7 --num-prompts 9"
    made = samples(
        "--dataset-name", "sonnet", "--dataset-path", str(path), *flags.split(), units=Words()
    )
    lines = [sample.prompt.splitlines()[1:] for sample in made]
    assert {tuple(each[:4]) for each in lines} == {
        tuple(f"line {number} of four" for number in range(4))
    }
    assert len({tuple(each) for each in lines}) == 9
    assert all(60 <= sample.prompt_tokens < 64 and sample.output_tokens == 7 for sample in made)
    with pytest.raises(ConfigError, match="--sonnet-input-len 20 is too small"):
        samples(
            "--dataset-name",
            "sonnet",
            "--dataset-path",
            str(path),
            "--sonnet-input-len",
            "20",
            units=Words(),
        )


def test_burstgpt_gives_lengths(tmp_path: Path) -> None:
    path = tmp_path / "burst.csv"
    rows = ["1,GPT-4,12,3", "2,ChatGPT,9,9", "3,GPT-4,7,5", "4,GPT-4,7,0"]
    path.write_text("\n".join(["Timestamp,Model,Request tokens,Response tokens", *rows]) + "\n")
    made = samples("--dataset-name", "burstgpt", "--dataset-path", str(path), "--num-prompts", "2")
    assert sorted((len(sample.prompt), sample.output_tokens) for sample in made) == [
        (7, 5),
        (12, 3),
    ]


def test_spec_bench_category(tmp_path: Path) -> None:
    path = tmp_path / "question.jsonl"
    path.write_text(
        "".join(
            json.dumps({"category": c, "turns": [f"{c} one", "two"]}) + "\n" for c in ("qa", "math")
        )
    )
    flags = ["--spec-bench-category", "math", "--spec-bench-output-len", "9", "--num-prompts", "2"]
    made = samples("--dataset-name", "spec_bench", "--dataset-path", str(path), *flags)
    assert [(sample.prompt, sample.output_tokens) for sample in made] == [("math one", 9)] * 2


ROWS = [
    {"question": f"number {number}?", "answer": "a b c", "other": number} for number in range(4)
]


@pytest.mark.parametrize("kind", ["json", "jsonl", "csv", "parquet"])
def test_hf_rows_of_every_file_format(kind: str, tmp_path: Path) -> None:
    path = tmp_path / f"rows.{kind}"
    match kind:
        case "json":
            path.write_text(json.dumps({"data": ROWS}))
        case "jsonl":
            path.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
        case "csv":
            path.write_text(
                "question,answer,other\n"
                + "".join(",".join(map(str, r.values())) + "\n" for r in ROWS)
            )
        case "parquet":
            pyarrow = pytest.importorskip("pyarrow")
            pytest.importorskip("pyarrow.parquet").write_table(
                pyarrow.Table.from_pylist(ROWS), path
            )
    flags = ["--hf-output-len", "-1", "--num-prompts", "4"]
    made = samples("--dataset-name", "hf", "--dataset-path", str(path), *flags, units=Words())
    assert sorted(sample.prompt for sample in made) == [row["question"] for row in ROWS]
    assert {(sample.output_tokens, sample.prompt_tokens) for sample in made} == {(3, 2)}


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ([], "train"),
        (["--hf-split", "test"], "test"),
        (["--hf-subset", "hard", "--hf-split", "validation"], "hard"),
        (["--hf-split", "test", "--hf-column", "note"], "noted"),
    ],
)
def test_hf_folder_splits_and_subsets(flags: list[str], expected: str, tmp_path: Path) -> None:
    for name, prompt in (
        ("data/train-00000-of-00001", "train"),
        ("data/test-0", "test"),
        ("hard/validation", "hard"),
    ):
        file = tmp_path / f"{name}.jsonl"
        file.parent.mkdir(exist_ok=True)
        file.write_text(
            json.dumps({"prompt": prompt, "note": [{"role": "user", "content": "noted"}]}) + "\n"
        )
    (tmp_path / ".cache").mkdir()
    (tmp_path / ".cache" / "train.jsonl").write_text("broken")
    made = samples(
        "--dataset-name", "hf", "--dataset-path", str(tmp_path), "--num-prompts", "1", *flags
    )
    assert [sample.prompt for sample in made] == [expected]


@pytest.mark.parametrize(
    ("files", "flags", "message"),
    [
        ({}, [], "no data files"),
        ({"train.jsonl": "no"}, [], "train.jsonl: cannot be read"),
        ({"train.jsonl": "[1]"}, [], "not an object"),
        (
            {"train.jsonl": '{"a": "b"}'},
            [],
            "no text in prompt or .* it has the columns a. Name one with --hf-column",
        ),
        (
            {"train.jsonl": '{"prompt": "b"}'},
            ["--hf-split", "test"],
            "no files with 'test' in their names",
        ),
        (
            {"train.jsonl": '{"prompt": "b"}'},
            ["--hf-subset", "x"],
            "--hf-subset x: there is no such folder",
        ),
        ({"train.jsonl": '{"prompt": "b"}'}, ["--hf-output-len", "-1"], "a row has no answer"),
    ],
)
def test_invalid_dataset_is_rejected(
    files: dict[str, str], flags: list[str], message: str, tmp_path: Path
) -> None:
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    with pytest.raises(ConfigError, match=message):
        samples("--dataset-name", "hf", "--dataset-path", str(tmp_path), *flags)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("custom", "not json", "line 1: not a JSON object"),
        ("custom", '{"text": "x"}', "line 1: needs a text"),
        ("custom", "[1]", "line 1: not a JSON object"),
        ("custom", '{"prompt": 5}', "line 1: needs a text"),
        ("custom", "", "has no usable prompt"),
        ("sharegpt", "{}", "has no usable prompt"),
        ("sharegpt", "[1]", "not a list of objects"),
        ("sonnet", "", "has no usable prompt"),
        ("burstgpt", "Model,Tokens\nGPT-4,5\n", "needs the columns"),
        ("burstgpt", "Model,Request tokens,Response tokens\nChatGPT,5,5\n", "has no usable prompt"),
        ("spec_bench", '{"prompt": "x"}', "line 1: needs a list of texts"),
    ],
)
def test_invalid_dataset_file_is_rejected(
    name: str, text: str, message: str, tmp_path: Path
) -> None:
    path = tmp_path / "file"
    path.write_text(text)
    with pytest.raises(ConfigError, match=message):
        samples("--dataset-name", name, "--dataset-path", str(path))


def test_tokenizer_prompts_have_exact_lengths(tmp_path: Path) -> None:
    folder = str(make_checkpoint("LlamaForCausalLM", tmp_path))
    ids = tokens_from_file(folder, as_text=False)
    assert len(ids.draw(Random(0), 37)) == 37
    text = tokens_from_file(folder, as_text=True)
    prompt = text.prompt(text.draw(Random(0), 37))
    assert isinstance(prompt, str)
    assert text.count(prompt) == 37


def test_invalid_tokenizer_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(ConfigError, match="--tokenizer"):
        tokens_from_file(str(tmp_path), as_text=True)


def test_empty_prompt_calls_no_tokenizer() -> None:
    assert (
        Tokens(lambda text: pytest.fail("called"), lambda ids: "", as_text=True).draw(Random(0), 0)
        == []
    )


def test_arrivals_have_the_requested_rate() -> None:
    for burstiness in (0.3, 1.0, 4.0):
        times = arrival_times([50.0] * 20_000, burstiness, Random(0))
        gaps = [after - before for before, after in pairwise(times)]
        assert times[0] == 0.0
        assert statistics.fmean(gaps) == pytest.approx(0.02, rel=0.05)
        # A gamma distribution of shape b has a deviation of 1/sqrt(b) means.
        assert statistics.pstdev(gaps) / statistics.fmean(gaps) == pytest.approx(
            burstiness**-0.5, rel=0.05
        )
    assert arrival_times([float("inf")] * 3, 1.0, Random(0)) == [0.0, 0.0, 0.0]


def test_percentiles_lie_between_the_nearest_values() -> None:
    assert [percentile([4.0, 1.0, 3.0, 2.0], percent) for percent in (0, 50, 90, 100)] == [
        1.0,
        2.5,
        pytest.approx(3.7),
        4.0,
    ]
    assert percentile([], 50) == 0.0


def outcome(start_s: float, *arrivals_s: float, tokens: int = 0, error: str = "") -> Outcome:
    return Outcome(
        start_s,
        [start_s + at for at in arrivals_s],
        10,
        tokens or len(arrivals_s),
        sent_s=start_s,
        error=error,
    )


def test_figures_are_what_the_times_say() -> None:
    run = Run(
        [outcome(0.0, 0.1, 0.2, 0.4), outcome(0.3, 0.2, 0.3), outcome(0.0, error="refused")],
        2.0,
        0.5,
    )
    found = figures(run, ["ttft", "tpot", "itl", "e2el"], [50.0, 99.0], {"ttft": 150.0})
    assert (found["completed"], found["failed"]) == (2, 1)
    assert (found["total_input_tokens"], found["total_output_tokens"]) == (20, 5)
    assert (found["request_throughput"], found["request_goodput"], found["output_throughput"]) == (
        1.0,
        0.5,
        2.5,
    )
    assert found["total_token_throughput"] == 12.5
    assert (found["max_output_tokens_per_s"], found["max_concurrent_requests"]) == (5, 2)
    assert found["client_cpu_share"] == 0.25
    assert found["mean_ttft_ms"] == pytest.approx(150)
    assert found["median_tpot_ms"] == pytest.approx((150 + 100) / 2)
    assert found["mean_itl_ms"] == pytest.approx((100 + 200 + 100) / 3)
    assert found["p50_e2el_ms"] == pytest.approx(350)
    assert found["std_ttft_ms"] == pytest.approx(50)


def test_tokens_that_come_together_count_each() -> None:
    assert outcome(0.0, 0.1, 0.5, tokens=5).tpot_s == pytest.approx(0.1)
    assert outcome(0.0, 0.1, tokens=1).tpot_s is None


def test_figures_of_nothing_are_zero() -> None:
    found = figures(Run([outcome(0.0, error="refused")], 1.0, 0.0), ["ttft"], [99.0], {})
    assert (found["completed"], found["failed"], found["mean_ttft_ms"], found["p99_ttft_ms"]) == (
        0,
        1,
        0.0,
        0.0,
    )
    assert found["request_goodput"] is None


@given(st.lists(st.binary(min_size=1, max_size=40), max_size=8), st.randoms(use_true_random=False))
def test_chunks_come_out_whole_however_they_are_cut(bodies: list[bytes], rng: Random) -> None:
    stream = b"".join(b"%x;note\r\n%s\r\n" % (len(body), body) for body in bodies) + b"0\r\n\r\n"
    chunks = Dechunker()
    out = b""
    at = 0
    while at < len(stream):
        assert not chunks.ended
        size = rng.randint(1, 9)
        out += chunks.feed(stream[at : at + size])
        at += size
    assert out == b"".join(bodies)
    assert chunks.ended


def test_what_is_no_chunk_is_an_error() -> None:
    with pytest.raises(HttpError, match="not a chunk size"):
        Dechunker().feed(b"hello\r\n")
