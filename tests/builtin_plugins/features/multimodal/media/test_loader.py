"""Loading: base64, data: URLs, local files, counts and totals; errors name the part."""

from __future__ import annotations

import asyncio
import base64
import os
import subprocess
import sys
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from builtin_plugins.features.multimodal.media.admission import MediaAdmission
from builtin_plugins.features.multimodal.media.encoded import read_base64, read_data_url
from builtin_plugins.features.multimodal.media.items import MediaItem
from builtin_plugins.features.multimodal.media.loader import ImageLoader
from builtin_plugins.features.multimodal.media.local_files import read_local_file
from builtin_plugins.features.multimodal.media.settings import MediaSettings
from builtin_plugins.routes.api import MediaSource
from core.api import ConfigError, InvalidRequest
from core.api.features import AdmissionContext
from core.api.serving import Prompt
from core.model_spec.tower import MULTIMODAL
from tests.builtin_plugins.features.multimodal.media.pictures import data_url, picture, png

PICTURE = picture()
MAX_BYTES = 10_000


def load(*sources: MediaSource, **options: Any) -> list[MediaItem]:
    loader = ImageLoader(MediaSettings.from_options(options))
    found = asyncio.run(loader.load(sources, client="", reserve=lambda count: None))
    return found["image"]


def source(index: int = 0, **where: Any) -> MediaSource:
    return MediaSource("image", f"messages[0].content[{index}].image_url", **where)


def refused(*sources: MediaSource, match: str, **options: Any) -> str:
    with pytest.raises(InvalidRequest, match=match) as error:
        load(*sources, **options)
    return error.value.field


def test_items_have_the_order_and_fields_of_their_sources(tmp_path: Path) -> None:
    pictures = [picture((n + 1, 1)) for n in range(4)]
    (tmp_path / "a.png").write_bytes(pictures[2])
    found = load(
        source(0, url=data_url(pictures[0])),
        source(1, base64=base64.b64encode(pictures[1]).decode(), uuid="x"),
        source(2, url=f"file://{tmp_path}/a.png"),
        source(3, uuid="known"),
        source(4, url=data_url(pictures[3] + b"\0" * 100_000)),
        allowed_local_media_path=str(tmp_path),
    )
    assert [item.field for item in found] == [source(n).field for n in range(5)]
    assert [item.uuid for item in found] == [None, "x", None, "known", None]
    assert [item.data for item in found[:4]] == [*pictures[:3], b""]


@pytest.mark.parametrize(
    ("url", "match"),
    [
        ("data:,text", "base64"),
        ("data:image/png,abc", "base64"),
        ("data:image/png;base64", "base64"),
        ("data:image/png;charset=utf-8,AAAA", "base64"),
        ("data:text/html;base64,AAAA", "type 'text/html'"),
        ("data:image/png;base64,****", "not base64"),
        ("data:image/png;base64,AAAAA", "not base64"),
        ("data:image/png;base64,AA=", "not base64"),
        ("data:image/png;base64,A-_A", "not base64"),
        ("data:image/png;base64,%41AAA", "not base64"),
        ("data:image/png;base64,%%%%", "not base64"),
        ("data:image/png;base64,ÄÖÜÜ", "not base64"),
        ("data:image/png;base64,", "empty file"),
        ("data:image/png;base64,AAAA", "file of another format"),
        ("data:image/svg+xml;base64," + base64.b64encode(b"<svg/>").decode(), "SVG"),
        ("ftp://a.test/a.png", "expected a data:"),
        ("file:/etc/passwd", "expected a data:"),
        ("/etc/passwd", "expected a data:"),
        ("javascript:alert(1)", "expected a data:"),
        ("http://a.test/a.png", "--allowed-media-domains"),
        ("file:///etc/passwd", "--allowed-local-media-path"),
    ],
)
def test_invalid_source_is_refused_by_its_field(url: str, match: str) -> None:
    good = source(0, url=data_url(PICTURE))
    assert refused(good, source(1, url=url), match=match) == source(1).field


def test_spellings_of_data_urls_are_accepted() -> None:
    text = base64.b64encode(PICTURE).decode()
    for start in ("data:image/png;base64,", "DATA:IMAGE/PNG;BASE64,", "data:;base64,"):
        assert load(source(url=start + text))[0].data == PICTURE
    assert load(source(url=f"data:image/jpeg;name=a.jpg;base64,{text}"))[0].data == PICTURE
    broken = "\r\n".join(text[at : at + 20] for at in range(0, len(text), 20))
    assert load(source(url=f"data:image/png;base64,{broken}\n"))[0].data == PICTURE
    assert load(source(url=f"data:image/png; charset=utf-8; base64,{text}"))[0].data == PICTURE


@pytest.mark.parametrize("left_out", range(3))
def test_base64_as_browsers_read_it_is_accepted(left_out: int) -> None:
    data = PICTURE + b"\xfb\xef\xff\xff\xff"[: 3 + left_out]  # "+", "/" and each padding
    text = base64.b64encode(data).decode()
    lower = text.replace("+", "%2b").replace("/", "%2f").replace("=", "%3d")
    for spelled in (text.rstrip("="), quote(text, safe=""), lower):
        assert load(source(url=f"data:image/png;base64,{spelled}"))[0].data == data


@given(st.binary(max_size=200), st.integers(1, 300))
def test_base64_is_read_up_to_its_limit(data: bytes, max_bytes: int) -> None:
    text = base64.b64encode(data).decode()
    if len(data) <= max_bytes:
        assert read_base64(text, "a", max_bytes) == data
        assert read_data_url(data_url(data), "a", max_bytes) == data
    elif len(data) > max_bytes + 4:
        with pytest.raises(InvalidRequest, match="expected at most"):
            read_base64(text, "a", max_bytes)


def test_size_is_bounded_before_base64_is_decoded() -> None:
    text = "data:image/png;base64," + "*" * 100_000  # not base64: decoding it would say so
    assert refused(source(url=text), match="--max-media-bytes", max_media_bytes=50_000)


def test_number_of_images_is_bounded() -> None:
    five = [source(n, url=data_url(PICTURE)) for n in range(5)]
    assert len(load(*five, limit_mm_per_prompt={"image": 5})) == 5
    match = "got 5 images in one request; expected at most 4"
    assert (
        refused(*five, match=match, limit_mm_per_prompt={"image": {"count": 4}}) == five[-1].field
    )
    many = [source(n, url="data:image/png;base64,AAAA") for n in range(500)]
    refused(*many, match="expected at most 100")


def test_pixels_and_bytes_of_a_request_are_bounded_together() -> None:
    large = [source(n, url=data_url(png(100, 100))) for n in range(5)]
    assert len(load(*large[:4], max_media_pixels=10_000)) == 4
    assert refused(*large, match="together", max_media_pixels=10_000) == large[4].field
    heavy = [source(n, url=data_url(PICTURE + b"\0" * 900)) for n in range(5)]
    assert refused(*heavy, match="together", max_media_bytes=1000) == heavy[4].field


def test_first_failure_ends_the_other_loads() -> None:
    async def run() -> bool:
        cancelled = asyncio.Event()

        async def resolve(host: str, port: int) -> list[str]:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                cancelled.set()
                raise
            return []

        settings = MediaSettings.from_options({"allowed_media_domains": ["*"]})
        loader = ImageLoader(settings, resolve)
        sources = [source(0, url="http://a.test/"), source(1, url="data:image/png;base64,AAAA")]
        with pytest.raises(InvalidRequest) as error:
            await loader.load(sources, client="", reserve=lambda count: None)
        assert error.value.field == sources[1].field
        return cancelled.is_set()

    assert asyncio.run(run())


def test_loading_imports_no_decoder_and_no_torch() -> None:
    modules = "{'torch', 'transformers', 'PIL', 'numpy'}"
    code = (
        "import sys, builtin_plugins.features.multimodal.media.loader as loader;"
        f"assert not {modules} & set(sys.modules), {modules} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


# --- local files


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    root = tmp_path / "allowed"
    (root / "sub").mkdir(parents=True)
    (root / "sub" / "a b.png").write_bytes(PICTURE)
    (tmp_path / "allowed-not").mkdir()
    (tmp_path / "allowed-not" / "secret.png").write_bytes(PICTURE)
    (tmp_path / "secret.png").write_bytes(PICTURE)
    return root


def test_file_of_the_folder_is_read(folder: Path) -> None:
    (folder / "link.png").symlink_to(folder / "sub" / "a b.png")
    for path in ("sub/a%20b.png", "sub/../sub/a b.png", "link.png"):
        assert read_local_file(f"file://{folder}/{path}", folder, "a", MAX_BYTES) == PICTURE
    assert read_local_file(f"file://localhost{folder}/link.png", folder, "a", MAX_BYTES) == PICTURE


def test_folder_may_be_a_link(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(folder)
    url = f"file://{tmp_path}/link/sub/a%20b.png"
    assert read_local_file(url, tmp_path / "link", "a", MAX_BYTES) == PICTURE


@pytest.mark.parametrize(
    "path",
    [
        "{root}/../secret.png",
        "{root}/%2e%2e/secret.png",
        "{root}/..%2fsecret.png",
        "{root}-not/secret.png",
        "{root}/out.png",
        "{root}/out/secret.png",
        "{root}/pipe",
        "{root}/sub",
        "{root}/missing.png",
        "{root}/sub/a%00.png",
        "{root}/sub/a%ff.png",
        "{root}/sub/a%20b.png?x",
        "/dev/zero",
        "/proc/self/environ",
        "/etc/passwd",
        "",
    ],
)
def test_other_file_is_refused_with_one_message(folder: Path, path: str) -> None:
    (folder / "out.png").symlink_to(folder.parent / "secret.png")
    (folder / "out").symlink_to(folder.parent)
    os.mkfifo(folder / "pipe")
    url = "file://" + path.format(root=folder)
    with pytest.raises(InvalidRequest) as error:
        read_local_file(url, folder, "messages[0]", MAX_BYTES)
    assert str(error.value) == (
        "messages[0]: got a file: URL of no image file below --allowed-local-media-path; expected "
        "one. Send the image as a data: URL."
    )


def test_host_of_a_file_url_is_refused(folder: Path) -> None:
    with pytest.raises(InvalidRequest):
        read_local_file(f"file://other{folder}/sub/a%20b.png", folder, "a", MAX_BYTES)


def test_large_file_is_refused(folder: Path) -> None:
    with pytest.raises(InvalidRequest, match="--max-media-bytes"):
        read_local_file(f"file://{folder}/sub/a%20b.png", folder, "a", 10)


# --- settings


@pytest.mark.parametrize(
    ("name", "value", "match"),
    [
        ("allowed_local_media_path", "/no/such/folder", "--allowed-local-media-path"),
        ("allowed_media_domains", ["http://a"], "--allowed-media-domains"),
        ("limit_mm_per_prompt", {"image": -1}, "--limit-mm-per-prompt.image"),
        ("limit_mm_per_prompt", {"image": "4"}, "--limit-mm-per-prompt.image"),
        ("limit_mm_per_prompt", {"image": {"count": True}}, "--limit-mm-per-prompt.image"),
        ("limit_mm_per_prompt", {"video": 2}, "--limit-mm-per-prompt.video"),
        ("media_io_kwargs", {"video": {"num_frames": 4}}, "got video"),
        ("media_io_kwargs", {"image": {"size": 4}}, "got image.size"),
        ("media_io_kwargs", {"image": 4}, "--media-io-kwargs"),
        ("media_io_kwargs", {"image": {"rgba_background_color": [1, 2]}}, "three numbers"),
        ("media_io_kwargs", {"image": {"rgba_background_color": [1, 2, 256]}}, "three numbers"),
        ("media_io_kwargs", {"image": {"rgba_background_color": "white"}}, "three numbers"),
    ],
)
def test_invalid_setting_stops_the_start(name: str, value: Any, match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        MediaSettings.from_options({name: value})


def test_settings_are_read_from_the_options() -> None:
    settings = MediaSettings.from_options(
        {
            "limit_mm_per_prompt": {"image": {"count": 3, "width": 500}, "video": 0},
            "media_io_kwargs": {"image": {"rgba_background_color": [1, 2, 3]}},
            "max_media_pixels": 7,
        }
    )
    assert settings.max_images == 3
    assert settings.limits.background == (1, 2, 3)
    assert settings.limits.max_pixels == 7
    assert not settings.sources


@pytest.mark.parametrize("text_only", [False, True])
@pytest.mark.parametrize("facts", [{}, {MULTIMODAL: b""}])
def test_modalities_are_those_of_the_model(text_only: bool, facts: dict[str, bytes]) -> None:
    loader = ImageLoader(MediaSettings.from_options({}))
    admission = MediaAdmission(loader, text_only=text_only)
    context = AdmissionContext(
        facts=facts, read=lambda: Prompt([]), tokenizer=None, vocab_size=9, max_model_len=9
    )
    if text_only and facts:
        with pytest.raises(ConfigError, match="--language-model-only"):
            admission.attach(context)
        return
    admission.attach(context)
    assert list(loader.modalities) == (["image"] if facts else [])
