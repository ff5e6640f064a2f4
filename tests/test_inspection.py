"""What is found out about the bytes of an artifact: by reading, in a cage, by the worker, and as /meta shows it."""

from __future__ import annotations

import json
import os
import random
import struct
import subprocess
import sys
import threading
import zlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import av
import httpx
import numpy as np
import psutil
import pytest
from django.db import connection

from inclavate import artifacts, database
from inclavate.errors import InputUnreadable
from inclavate.models import Artifact, Owner
from tests.driving import until
from tests.platforms import Platform
from workers import image
from workers.inspection import Inspector, parse_facts
from workers.probe import read_facts
from workers.sound import WavWriter

ROOT = Path(__file__).parent.parent
RATE = 16_000
LONG = 600.0


def tone(seconds: float, rate: int = RATE) -> np.ndarray:
    return 0.5 * np.sin(np.arange(round(seconds * rate)) * (2 * np.pi * 440 / rate))


def wav(path: Path, samples: np.ndarray, rate: int = RATE) -> Path:
    with WavWriter(path, rate, 1 if samples.ndim == 1 else samples.shape[1]) as file:
        file.write(samples)
    return path


def encode(path: Path, codec: str, seconds: float, rate: int = 48_000, *, with_cover: bool = False) -> Path:
    """A stereo tone."""
    samples = np.repeat((tone(seconds, rate) * 32767).astype(np.int16), 2).reshape(1, -1)
    with av.open(str(path), "w") as container:
        stream = container.add_stream(codec, rate=rate, layout="stereo")
        cover = picture_stream(container, "png", 300, 200, "rgb24") if with_cover else None
        frame = av.AudioFrame.from_ndarray(samples, format="s16", layout="stereo")
        frame.sample_rate = rate
        for packet in (*stream.encode(frame), *stream.encode(None)):
            container.mux(packet)
        if cover is not None:
            encode_pictures(container, cover, 1)
    return path


def picture_stream(container: Any, codec: str, width: int, height: int, pixels: str) -> Any:
    stream = container.add_stream(codec, rate=10)
    stream.width, stream.height, stream.pix_fmt = width, height, pixels
    return stream


def encode_pictures(container: Any, stream: Any, count: int) -> None:
    black = np.zeros((stream.height, stream.width, 3), np.uint8)
    frames = [av.VideoFrame.from_ndarray(black, format="rgb24") for _ in range(count)]
    for packet in (*(packet for frame in frames for packet in stream.encode(frame)), *stream.encode(None)):
        container.mux(packet)


def picture(path: Path, codec: str, pixels: str, muxer: str = "image2", size: tuple[int, int] = (70, 40)) -> Path:
    with av.open(str(path), "w", format=muxer) as container:
        encode_pictures(container, picture_stream(container, codec, *size, pixels), 1)
    return path


def video(path: Path, *, with_sound: bool) -> Path:
    """Two seconds."""
    with av.open(str(path), "w") as container:
        pictures = picture_stream(container, "mpeg4", 160, 90, "yuv420p")
        heard = container.add_stream("aac", rate=48_000, layout="mono") if with_sound else None
        encode_pictures(container, pictures, 20)
        if heard is not None:
            samples = tone(2.0, 48_000).astype(np.float32).reshape(1, -1)
            frame = av.AudioFrame.from_ndarray(samples, format="fltp", layout="mono")
            frame.sample_rate = 48_000
            for packet in (*heard.encode(frame), *heard.encode(None)):
                container.mux(packet)
    return path


def png(width: int, height: int) -> bytes:
    """A header, and one line of pixels at most."""

    def chunk(name: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(bytes(100))) + chunk(b"IEND", b"")
    )


@pytest.fixture(scope="module")
def long_flac(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Ten hours of silence in little more than a megabyte: long enough that reading it is seen to take time."""
    path = tmp_path_factory.mktemp("long") / "a.flac"
    rate, block = 8_000, np.zeros((1, 8_000 * 600), np.int16)
    with av.open(str(path), "w") as container:
        stream = container.add_stream("flac", rate=rate, layout="mono", options={"frame_size": "65535"})
        for _ in range(60):
            frame = av.AudioFrame.from_ndarray(block, format="s16", layout="mono")
            frame.sample_rate = rate
            for packet in stream.encode(frame):
                container.mux(packet)
        for packet in stream.encode(None):
            container.mux(packet)
    return path


# -- sound -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "codec", "shown"),
    [
        ("a.mp3", "libmp3lame", "mp3"),
        ("a.flac", "flac", "flac"),
        ("a.ogg", "libopus", "opus"),
        ("a.webm", "libopus", "opus"),
        ("a.m4a", "aac", "aac"),
        ("a.aiff", "pcm_s16be", "pcm_s16be"),
        ("a.wav", "pcm_f32le", "pcm_f32le"),
        ("b.wav", "pcm_u8", "pcm_u8"),
        ("c.wav", "pcm_s32le", "pcm_s32le"),
        ("d.wav", "pcm_f64le", "pcm_f64le"),
    ],
)
def test_every_common_sound_shows_its_length_rate_channels_codec_and_waveform(tmp_path, name, codec, shown):
    facts = read_facts(encode(tmp_path / name, codec, 2.5), "audio", 60)
    assert facts["duration_seconds"] == pytest.approx(2.5, abs=0.1)
    assert (facts["sample_rate"], facts["channels"], facts["codec"]) == (48_000, 2, shown)
    assert len(facts["peaks"]) == 200
    assert np.median(facts["peaks"]) == pytest.approx(0.5, abs=0.05)
    assert parse_facts(json.dumps(facts).encode()) == facts


def test_the_waveform_follows_the_loudness_and_sees_every_channel(tmp_path):
    samples = np.zeros((RATE * 10, 2))
    samples[RATE * 5 :, 1] = tone(5.0)
    samples[100, 0] = -1.0
    facts = read_facts(wav(tmp_path / "a.wav", samples), "audio", 60)
    assert facts["duration_seconds"] == 10.0
    assert facts["peaks"][0] == 1.0
    assert max(facts["peaks"][1:99]) == 0.0
    assert facts["peaks"][101:] == pytest.approx([0.5] * 99, abs=0.01)


@pytest.mark.parametrize("count", [1, 7, 199, 201, 8191, 8193])
def test_a_sound_of_any_number_of_samples_has_two_hundred_points(tmp_path, count):
    facts = read_facts(wav(tmp_path / "a.wav", np.full(count, 0.25)), "audio", 60)
    assert facts["peaks"] == [0.25] * 200


def test_what_is_no_number_or_beyond_full_scale_does_not_leave_the_waveform(tmp_path):
    path = encode(tmp_path / "a.wav", "pcm_f32le", 1.0)
    data = bytearray(path.read_bytes())
    data[-4000:] = np.array([np.nan, np.inf, -np.inf, 7.0, -7.0] * 200, "<f4").tobytes()
    path.write_bytes(data)
    peaks = read_facts(path, "audio", 60)["peaks"]
    assert peaks[0] == pytest.approx(0.5, abs=0.01)
    assert peaks[-1] == 1.0


def test_the_cover_of_an_album_is_no_video(tmp_path):
    facts = read_facts(encode(tmp_path / "a.mp3", "libmp3lame", 1.0, with_cover=True), "audio", 60)
    assert (facts["codec"], len(facts["peaks"])) == ("mp3", 200)
    assert "width" not in facts


def test_a_header_that_lies_about_four_gibibytes_does_not_matter(tmp_path):
    data = bytearray(wav(tmp_path / "a.wav", tone(1.0)).read_bytes())
    for place in (4, 40):
        data[place : place + 4] = b"\xff" * 4
    (tmp_path / "b.wav").write_bytes(data)
    assert read_facts(tmp_path / "b.wav", "audio", 60)["duration_seconds"] == 1.0


def test_a_very_long_sound_has_its_length_and_no_waveform(long_flac):
    assert long_flac.stat().st_size < 4 * 2**20
    facts = read_facts(long_flac, "audio", 0.01)
    assert facts["duration_seconds"] == pytest.approx(36_000, abs=1)
    assert (facts["sample_rate"], facts["channels"]) == (8_000, 1)
    assert "peaks" not in facts
    assert "too long" in facts["note"]


# -- pictures ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("with_sound", [True, False])
@pytest.mark.parametrize("name", ["a.mp4", "a.mkv", "a.avi", "a.mov"])
def test_a_video_shows_its_length_and_size_and_what_is_heard(tmp_path, name, with_sound):
    path = video(tmp_path / name, with_sound=with_sound)
    sniffed = artifacts.sniff(path.read_bytes()[:4096])
    assert sniffed is not None
    assert sniffed.startswith("video/")
    facts = read_facts(path, "video", 60)
    assert (facts["width"], facts["height"], facts["codec"], facts["frame_rate"]) == (160, 90, "mpeg4", 10.0)
    assert facts["duration_seconds"] == pytest.approx(2.0, abs=0.2)
    heard = (facts.get("sample_rate"), facts.get("channels"), facts.get("audio_codec"))
    assert heard == ((48_000, 1, "aac") if with_sound else (None, None, None))
    assert parse_facts(json.dumps(facts).encode()) == facts


@pytest.mark.parametrize(
    ("codec", "pixels", "muxer", "media_type"),
    [
        ("png", "rgb24", "image2", "image/png"),
        ("mjpeg", "yuvj420p", "image2", "image/jpeg"),
        ("bmp", "bgr24", "image2", "image/bmp"),
        ("tiff", "rgb24", "image2", "image/tiff"),
        ("libwebp", "yuv420p", "image2", "image/webp"),
        ("libwebp", "bgra", "image2", "image/webp"),
        ("gif", "rgb8", "gif", "image/gif"),
        ("libsvtav1", "yuv420p", "avif", "image/avif"),
    ],
)
def test_every_common_picture_is_known_and_shows_its_size(tmp_path, codec, pixels, muxer, media_type):
    path = picture(tmp_path / "a.bin", codec, pixels, muxer, (70, 66))
    assert artifacts.sniff(path.read_bytes()[:4096]) == media_type
    assert read_facts(path, "image", 60) == {"width": 70, "height": 66}


def with_metadata(jpeg: bytes) -> bytes:
    segment = b"\xff\xe1" + struct.pack(">H", 65_535) + b"\xff\xc0" * 32_766 + b"x"
    return jpeg[:2] + segment * 40 + b"\xff\xff" + jpeg[2:]


def test_a_jpeg_shows_its_size_behind_megabytes_of_metadata(tmp_path):
    path = picture(tmp_path / "a.jpg", "mjpeg", "yuvj420p")
    path.write_bytes(with_metadata(path.read_bytes()))
    assert path.stat().st_size > 2**21
    assert image.size(path) == (70, 40)


@pytest.mark.parametrize(
    ("content", "size"),
    [
        (b"BM" + bytes(12) + struct.pack("<Iii", 40, 640, -480), (640, 480)),
        (b"BM" + bytes(12) + struct.pack("<IHH", 12, 640, 480) + bytes(4), (640, 480)),
        (b"MM\0*" + struct.pack(">IHHHIH2xHHII", 8, 2, 256, 3, 1, 640, 257, 4, 1, 480), (640, 480)),
        (b"RIFF\x16\0\0\0WEBPVP8X\x0a\0\0\0\0\0\0\0" + b"\x7f\x02\0" + b"\xdf\x01\0", (640, 480)),
        (png(100_000, 100_000), (100_000, 100_000)),
    ],
    ids=["rows from the top", "old header", "big endian", "extended webp", "ten thousand million pixels"],
)
def test_a_size_is_read_and_no_pixel_decoded(tmp_path, content, size):
    (tmp_path / "a").write_bytes(content)
    assert image.size(tmp_path / "a") == size


# -- what is broken ----------------------------------------------------------------------------------------------------

MAGICS = {
    "wav": b"RIFF\xff\xff\xff\xffWAVEfmt ",
    "mp3": b"ID3\x04\0\0\0\0\0\0\xff\xfb\x90\x00",
    "flac": b"fLaC\0\0\0\x22",
    "ogg": b"OggS\0\2",
    "mp4": b"\0\0\0\x20ftypisom\0\0\2\0isomiso2avc1mp41",
    "webm": b"\x1aE\xdf\xa3\x9fB\x86\x81\x01B\xf7\x81\x01B\xf2\x81\x04B\xf3\x81\x08B\x82\x84webm",
    "avi": b"RIFF\xff\xff\xff\xffAVI LIST\xff\xff\xff\xffhdrl",
    "aiff": b"FORM\xff\xff\xff\xffAIFFCOMM",
    "caf": b"caff\0\1\0\0desc",
    "amr": b"#!AMR\n",
    "aac": b"\xff\xf1\x50\x80",
    "png": b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR",
    "jpeg": b"\xff\xd8\xff\xe0",
    "gif": b"GIF89a",
    "bmp": b"BM" + bytes(12) + struct.pack("<I", 40),
    "tiff": b"II*\0\x08\0\0\0\xff\xff",
    "webp": b"RIFF\xff\xff\xff\xffWEBPVP8 ",
    "avif": b"\0\0\0\x20ftypavif\0\0\0\0avifmif1miaf\0\0\0\0\xff\xff\xff\xffmeta",
}


def facts_or_none(path: Path, kind: str) -> dict[str, Any] | None:
    with suppress(InputUnreadable):
        return read_facts(path, kind, 5)
    return None


@pytest.mark.parametrize("name", MAGICS)
def test_noise_behind_a_true_beginning_is_facts_or_unreadable_and_never_worse(tmp_path, name):
    noise = random.Random(name)
    for length in (0, 1, 17, 500, 20_000):
        content = MAGICS[name] + noise.randbytes(length)
        sniffed = artifacts.sniff(content)
        assert sniffed is not None
        (tmp_path / "a").write_bytes(content)
        facts = facts_or_none(tmp_path / "a", sniffed.partition("/")[0])
        assert facts is None or facts.keys() >= set(parse_facts(json.dumps(facts).encode()) or {})


@pytest.mark.parametrize("kind", ["audio", "image", "video"])
@pytest.mark.parametrize("name", ["a.flac", "a.mp4", "a.png"])
def test_a_file_cut_anywhere_or_read_as_another_kind_is_facts_or_unreadable(tmp_path, name, kind):
    make: dict[str, Callable[[Path], Path]] = {
        "a.flac": lambda path: encode(path, "flac", 0.5),
        "a.mp4": lambda path: video(path, with_sound=True),
        "a.png": lambda path: picture(path, "png", "rgb24"),
    }
    content = make[name](tmp_path / name).read_bytes()
    for length in (0, 1, 8, 40, len(content) // 2, len(content) - 1):
        (tmp_path / "cut").write_bytes(content[:length])
        facts_or_none(tmp_path / "cut", kind)


@pytest.mark.parametrize("kind", ["audio", "video"])
def test_what_names_other_files_opens_none_of_them(tmp_path, kind):
    secret = wav(tmp_path / "secret.wav", tone(1.0))
    for script in (
        f"#EXTM3U\n#EXT-X-TARGETDURATION:1\n#EXTINF:1,\n{secret}\n#EXT-X-ENDLIST\n",
        f"ffconcat version 1.0\nfile {secret.name}\n",
    ):
        (tmp_path / "script").write_text(script)
        with pytest.raises(InputUnreadable):
            read_facts(tmp_path / "script", kind, 60)


@pytest.mark.parametrize(
    ("head", "media_type"),
    [
        (b"BMW builds cars, and this is a text about them.", None),
        ("as UTF-16".encode("utf-16"), None),
        (b"\0\0\0\x18ftypheic\0\0\0\0", "image/heic"),
        (b"\xff\xfb\x90\x64", "audio/mpeg"),
    ],
)
def test_text_is_not_taken_for_a_picture_or_a_sound(head, media_type):
    assert artifacts.sniff(head) == media_type


# -- the cage ----------------------------------------------------------------------------------------------------------


def caged(code: str, seconds: float = 60.0) -> subprocess.CompletedProcess[bytes]:
    cage = f"import workers.probe as probe; probe._enter_cage({seconds}); "
    return subprocess.run([sys.executable, "-c", cage + code], cwd=ROOT, capture_output=True, check=False, timeout=120)


def test_the_cage_has_little_memory_writes_no_file_and_ends_by_itself(tmp_path):
    assert b"MemoryError" in caged("bytearray(3 * 2**30)").stderr
    assert b"File too large" in caged(f"open({str(tmp_path / 'a')!r}, 'wb', buffering=0).write(b'x')").stderr
    assert caged("import time; time.sleep(60)", 0.5).returncode < 0
    assert caged("\nwhile True: pass", 0.5).returncode < 0


@pytest.mark.parametrize(
    "said",
    [
        b"",
        b"no JSON",
        b"[1]",
        b"\xff\xfe",
        b"[" * 60_000,
        b'{"duration_seconds": ' + b"9" * 5000 + b"}",
        b'{"width": 1}' + b" " * 70_000,
        b'{"duration_seconds": NaN, "width": true, "height": 1.5, "channels": 0, "codec": "<b>", "note": "a\\u0000b"}',
        b'{"duration_seconds": 1e999, "width": -1, "peaks": [1, 2], "unreadable": 1, "id": "x", "audio_codec": null}',
    ],
)
def test_nothing_but_facts_comes_out_of_the_cage(said):
    assert parse_facts(said) is None


# -- the worker --------------------------------------------------------------------------------------------------------


@pytest.fixture
def inspector(database: None, tmp_path: Path) -> Inspector:
    return Inspector(tmp_path / "work", {"PATH": os.defpath}, lambda: False)


def kept(owner: Owner, content: bytes, **more: Any) -> Artifact:
    draft = artifacts.begin(owner, Artifact.Origin.UPLOADED, "application/octet-stream", **more)
    draft.write(content)
    return draft.finish()


def due_again() -> None:
    """As if the lease had run out."""
    Artifact.objects.exclude(inspect_at=None).update(inspect_at=database.now())


def probes() -> list[psutil.Process]:
    """This process's own children that look into something."""
    with suppress(psutil.NoSuchProcess):
        return [child for child in psutil.Process().children() if "workers.probe" in child.cmdline()]
    return []


def looking(inspector: Inspector) -> threading.Thread:
    def look() -> None:
        inspector.look()
        connection.close()

    thread = threading.Thread(target=look)
    thread.start()
    return thread


@pytest.mark.database
def test_an_upload_is_looked_into_once_whatever_it_says_that_it_is(alice: Owner, inspector, tmp_path) -> None:
    sealed = kept(alice, wav(tmp_path / "a.wav", tone(1.5)).read_bytes())
    assert (sealed.sniffed_type, sealed.facts) == ("audio/wav", {})
    assert inspector.look()
    found = Artifact.objects.get()
    assert (found.facts["duration_seconds"], found.facts["sample_rate"], found.facts["channels"]) == (1.5, RATE, 1)
    assert len(found.facts["peaks"]) == 200
    assert (found.inspect_at, found.inspections) == (None, 1)
    assert not inspector.look()
    assert list((tmp_path / "work").iterdir()) == []


@pytest.mark.database
def test_what_is_no_media_or_goes_with_its_job_is_not_looked_into(alice: Owner, inspector, tmp_path) -> None:
    kept(alice, b"a letter")
    kept(alice, wav(tmp_path / "a.wav", tone(0.1)).read_bytes(), is_transient=True)
    assert not artifacts.is_inspection_due()
    assert not inspector.look()


@pytest.mark.database
def test_what_the_engine_said_is_kept_and_the_bytes_have_the_last_word(alice: Owner, inspector, tmp_path) -> None:
    draft = artifacts.begin(alice, Artifact.Origin.GENERATED, "audio/wav")
    draft.write(wav(tmp_path / "a.wav", tone(1.0)).read_bytes())
    draft.artifact.facts = {"duration_seconds": 99.0, "words": 12}
    draft.finish()
    inspector.look()
    facts = Artifact.objects.get().facts
    assert (facts["words"], facts["duration_seconds"], facts["sample_rate"]) == (12, 1.0, RATE)


@pytest.mark.database
def test_one_artifact_is_given_to_one_worker_until_the_lease_ends_and_a_late_answer_changes_nothing(
    alice: Owner,
) -> None:
    kept(alice, png(3, 2))
    first = artifacts.claim_inspection()
    assert first is not None
    assert not artifacts.is_inspection_due()
    assert artifacts.claim_inspection() is None
    due_again()
    second = artifacts.claim_inspection()
    assert second is not None
    assert not artifacts.finish_inspection(first, {"width": 1})
    assert artifacts.finish_inspection(second, {"width": 3})
    assert not artifacts.finish_inspection(second, {"width": 4})
    assert Artifact.objects.get().facts == {"width": 3}


@pytest.mark.database
def test_workers_that_claim_at_once_get_different_artifacts(alice: Owner) -> None:
    for _ in range(6):
        kept(alice, png(3, 2))
    got: list[Any] = []

    def claim() -> None:
        while (artifact := artifacts.claim_inspection()) is not None:
            got.append(artifact.pk)
        connection.close()

    threads = [threading.Thread(target=claim) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(got) == len(set(got)) == 6


@pytest.mark.database
def test_a_broken_file_is_unreadable_at_once(alice: Owner, inspector) -> None:
    kept(alice, MAGICS["flac"] + random.Random(1).randbytes(2000))
    inspector.look()
    assert (Artifact.objects.get().facts, Artifact.objects.get().inspect_at) == ({"unreadable": True}, None)


@pytest.mark.database
def test_a_killed_process_costs_a_try_and_the_third_is_the_last(alice: Owner, inspector, long_flac) -> None:
    kept(alice, long_flac.read_bytes())
    for tries in (1, 2, 3):
        assert Artifact.objects.get().facts == {}
        due_again()
        thread = looking(inspector)
        [probe] = until(probes)
        probe.kill()
        thread.join()
        assert Artifact.objects.get().inspections == tries
    found = Artifact.objects.get()
    assert (found.facts, found.inspect_at) == ({"unreadable": True}, None)
    kept(alice, png(3, 2))
    inspector.look()
    assert Artifact.objects.filter(facts={"width": 3, "height": 2}).count() == 1


@pytest.mark.database
def test_what_took_its_worker_with_it_three_times_is_not_tried_again(alice: Owner, inspector) -> None:
    kept(alice, png(3, 2))
    for _ in range(artifacts.MAX_INSPECTIONS):
        due_again()
        assert artifacts.claim_inspection() is not None
    due_again()
    assert inspector.look()
    assert (Artifact.objects.get().facts, Artifact.objects.get().inspect_at) == ({"unreadable": True}, None)


@pytest.mark.database
def test_a_worker_that_ends_hands_back_what_it_looks_into(alice: Owner, tmp_path, long_flac) -> None:
    ending = threading.Event()
    inspector = Inspector(tmp_path / "work", {"PATH": os.defpath}, ending.is_set)
    kept(alice, long_flac.read_bytes())
    thread = looking(inspector)
    [probe] = until(probes)
    ending.set()
    thread.join()
    assert not probe.is_running()
    assert (Artifact.objects.get().inspections, Artifact.objects.get().facts) == (0, {})
    assert Artifact.objects.get().inspect_at is not None
    assert list((tmp_path / "work").iterdir()) == []


@pytest.mark.database
def test_a_worker_without_a_work_folder_spends_no_try(alice: Owner, tmp_path) -> None:
    (tmp_path / "file").touch()
    kept(alice, png(3, 2))
    Inspector(tmp_path / "file" / "work", {"PATH": os.defpath}, lambda: False).look()
    assert (Artifact.objects.get().inspections, Artifact.objects.get().facts) == (0, {})
    assert Artifact.objects.get().inspect_at > database.now() + timedelta(seconds=60)


@pytest.mark.database
def test_what_is_too_large_is_said_to_be_so_and_what_is_gone_to_be_unreadable(alice: Owner, inspector) -> None:
    large, gone = kept(alice, png(3, 2)), kept(alice, png(3, 2))
    Artifact.objects.filter(pk=large.pk).update(size=2**30 + 1)
    artifacts._store().delete(gone.store_key)
    while inspector.look():
        pass
    assert Artifact.objects.get(pk=large.pk).facts == {"note": "More than 1 GiB are not looked into."}
    assert Artifact.objects.get(pk=gone.pk).facts == {"unreadable": True}


@pytest.mark.database
def test_a_ring_and_a_heartbeat_alike_look_into_all_that_is_due(alice: Owner, inspector) -> None:
    for call in (inspector.answer, inspector.beat):
        for _ in range(3):
            kept(alice, png(3, 2))
        call()
        until(lambda: not Artifact.objects.exclude(inspect_at=None).exists())
        inspector.close()
    assert Artifact.objects.filter(facts={"width": 3, "height": 2}).count() == 6


def test_a_worker_without_what_reads_media_says_so(tmp_path: Path) -> None:
    """An environment with everything but PyAV."""
    for package in Path(av.__file__).parent.parent.iterdir():
        if package.name not in ("av", "av.libs") and package.suffix != ".pth":
            (tmp_path / package.name).symlink_to(package)
    code = "import django; django.setup(); from workers import inspection; print(inspection.is_possible())"
    for path, is_possible in ((f"{tmp_path}:{ROOT}", "False"), (f"{Path(av.__file__).parent.parent}:{ROOT}", "True")):
        command = [sys.executable, "-S", "-c", code]
        env = os.environ | {"PYTHONPATH": path}
        answer = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False, timeout=120)
        assert answer.stdout.strip() == is_possible, answer.stderr


# -- the whole way -----------------------------------------------------------------------------------------------------


@pytest.fixture
def http(platform: Platform) -> Iterator[httpx.Client]:
    with platform.http as client:
        yield client


def upload(http: httpx.Client, content: bytes, media_type: str = "application/octet-stream") -> dict[str, Any]:
    answer = http.post("/v1/artifacts", content=content, headers={"Content-Type": media_type})
    assert answer.status_code == 201, answer.text
    return answer.json()


def meta_once_known(http: httpx.Client, artifact_id: str) -> dict[str, Any]:
    def look() -> dict[str, Any] | None:
        meta = http.get(f"/v1/artifacts/{artifact_id}/meta").json()
        return None if meta["inspecting"] else meta

    return until(look)


def test_meta_shows_what_a_worker_found_in_an_upload(http: httpx.Client, tmp_path: Path) -> None:
    answer = upload(http, wav(tmp_path / "a.wav", tone(2.5)).read_bytes(), "text/plain")
    assert (answer["media_type"], answer["sniffed_type"]) == ("text/plain", "audio/wav")
    meta = meta_once_known(http, answer["id"])
    assert answer.items() <= meta.items()
    facts = meta["facts"]
    assert (facts["duration_seconds"], facts["sample_rate"], facts["channels"]) == (2.5, RATE, 1)
    assert facts["codec"] == "pcm_s16le"
    assert len(facts["peaks"]) == 200
    listed = http.get("/v1/artifacts?limit=1").json()["artifacts"][0]
    assert (listed["id"], listed["sniffed_type"], "facts" in listed) == (answer["id"], "audio/wav", False)


def test_meta_of_a_letter_says_that_there_is_nothing_to_find_out(http: httpx.Client) -> None:
    meta = http.get(f"/v1/artifacts/{upload(http, b'a letter')['id']}/meta").json()
    assert (meta["sniffed_type"], meta["facts"], meta["inspecting"]) == (None, {}, False)


def test_meta_of_speech_that_was_made_has_its_length_rate_channels_and_waveform(
    platform: Platform, http: httpx.Client
) -> None:
    job = platform.submit(model="test-tone", modality="audio", params={"text": "a" * 150})
    [output] = platform.until_state(job["id"], "completed")["output_artifacts"]
    facts = meta_once_known(http, output)["facts"]
    assert (facts["duration_seconds"], facts["sample_rate"], facts["channels"]) == (1.5, RATE, 1)
    assert len(facts["peaks"]) == 200
    assert np.median(facts["peaks"]) == pytest.approx(0.5, abs=0.01)


def test_hostile_uploads_are_unreadable_and_the_worker_serves_on(platform: Platform, http: httpx.Client) -> None:
    noise = random.Random(7)
    ids = [upload(http, MAGICS[name] + noise.randbytes(3000))["id"] for name in ("wav", "flac", "mp4", "webm", "jpeg")]
    for artifact_id in ids:
        facts = meta_once_known(http, artifact_id)["facts"]
        assert facts.get("unreadable") is True or facts.keys() & {"width", "sample_rate"}
    facts = meta_once_known(http, upload(http, png(60_000, 60_000))["id"])["facts"]
    assert facts == {"width": 60_000, "height": 60_000}
    job = platform.submit(model="test-tone", modality="audio", params={"text": "still here"})
    platform.until_state(job["id"], "completed")


def test_a_job_that_holds_the_only_slot_holds_up_no_inspection(tmp_path: Path) -> None:
    from tests import platforms

    with platforms.running(tmp_path, WORKER_SLOTS="1") as lone, lone.http as http:
        params = {"text": "x", "steps": 10_000, "step_seconds": 0.05}
        job = lone.submit(model="test-tone", modality="audio", params=params)
        until(lambda: lone.job(job["id"])["progress_stage"] == "generating")
        meta = meta_once_known(http, upload(http, png(30, 20))["id"])
        assert meta["facts"] == {"width": 30, "height": 20}
        assert lone.job(job["id"])["state"] == "running"
        http.delete(f"/v1/generations/{job['id']}")
