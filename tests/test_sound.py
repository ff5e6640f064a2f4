from __future__ import annotations

import struct
import tracemalloc
import wave
from pathlib import Path

import av
import numpy as np
import pytest

from inclavate.errors import InferenceFailed, InputUnreadable
from inclavate.generators import Cancelled
from workers import sound
from workers.sound import WavWriter, duration_seconds, read_mono

RATE = 16_000


def sine(seconds: float, rate: int = RATE) -> np.ndarray:
    return 0.5 * np.sin(np.arange(round(seconds * rate)) * (2 * np.pi * 440 / rate))


def write_wav(path: Path, seconds: float = 1.0) -> Path:
    with WavWriter(path, RATE) as wav:
        wav.write(sine(seconds))
    return path


def encode(path: Path, codec: str, seconds: float, rate: int = 48_000, layout: str = "mono") -> Path:
    channels = 1 if layout == "mono" else 2
    samples = np.repeat((sine(seconds, rate) * 32767).astype(np.int16), channels).reshape(1, -1)
    with av.open(str(path), "w") as container:
        stream = container.add_stream(codec, rate=rate, layout=layout)
        frame = av.AudioFrame.from_ndarray(samples, format="s16", layout=layout)
        frame.sample_rate = rate
        for packet in (*stream.encode(frame), *stream.encode(None)):
            container.mux(packet)
    return path


def test_a_wav_has_a_plain_header_with_its_real_sizes(tmp_path):
    path = write_wav(tmp_path / "a.wav", 0.5)
    data = path.read_bytes()
    assert len(data) == 44 + 16_000
    assert data[:20] == b"RIFF" + struct.pack("<I", 36 + 16_000) + b"WAVEfmt " + struct.pack("<I", 16)
    assert struct.unpack("<HHIIHH", data[20:36]) == (1, 1, RATE, RATE * 2, 2, 16)
    assert data[36:44] == b"data" + struct.pack("<I", 16_000)


def test_int16_samples_come_back_bit_by_bit(tmp_path):
    samples = np.arange(-32768, 32768, 7, dtype=np.int16)
    with WavWriter(tmp_path / "a.wav", 22_050, channels=2) as wav:
        wav.write(samples[: len(samples) // 4 * 2].reshape(-1, 2))
        wav.write(samples[len(samples) // 4 * 2 : len(samples) // 2 * 2].reshape(-1, 2))
    with wave.open(str(wav.path)) as reader:
        assert (reader.getnchannels(), reader.getframerate(), reader.getsampwidth()) == (2, 22_050, 2)
        assert reader.getnframes() == wav.frames == len(samples) // 2
        assert reader.readframes(10**6) == samples[: wav.frames * 2].tobytes()


def test_floats_beyond_full_scale_are_clipped_and_what_is_no_number_is_silence(tmp_path):
    with WavWriter(tmp_path / "a.wav", RATE) as wav:
        wav.write(np.array([2.0, -3.0, np.nan, np.inf, 1.0, 0.0], dtype=np.float32))
    with wave.open(str(wav.path)) as reader:
        written = np.frombuffer(reader.readframes(6), "<i2").tolist()
    assert written == [32767, -32767, 0, 32767, 32767, 0]


def test_samples_of_another_kind_are_refused(tmp_path):
    with WavWriter(tmp_path / "a.wav", RATE) as wav, pytest.raises(TypeError, match="int64"):
        wav.write(np.zeros(3, dtype=np.int64))
    assert wav.frames == 0


def test_an_error_while_writing_leaves_no_file(tmp_path):
    with pytest.raises(TypeError), WavWriter(tmp_path / "a.wav", RATE) as wav:
        wav.write(np.array(["no", "samples"]))
    assert list(tmp_path.iterdir()) == []


def test_a_wav_never_grows_past_what_its_header_can_say(tmp_path, monkeypatch):
    monkeypatch.setattr(sound, "_MAX_DATA_BYTES", 1000)
    with pytest.raises(InferenceFailed, match="4 GiB"), WavWriter(tmp_path / "a.wav", RATE) as wav:
        wav.write(sine(1))


def test_writing_and_reading_ten_minutes_takes_less_memory_than_three(tmp_path):
    minute = (sine(60) * 32767).astype(np.int16)
    tracemalloc.start()
    try:
        with WavWriter(tmp_path / "a.wav", RATE) as wav:
            for _ in range(10):
                wav.write(minute)
        frames = sum(len(samples) for samples in read_mono(wav.path, RATE))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert frames == wav.frames == 600 * RATE
    assert peak < 3 * minute.nbytes


@pytest.mark.parametrize(
    ("name", "codec"),
    [("a.mp3", "libmp3lame"), ("a.flac", "flac"), ("a.ogg", "libopus"), ("a.webm", "libopus"), ("a.m4a", "aac")],
)
def test_every_common_format_has_its_length_and_its_samples(tmp_path, name, codec):
    path = encode(tmp_path / name, codec, 2.5)
    assert duration_seconds(path) == pytest.approx(2.5, abs=0.1)
    samples = np.concatenate(list(read_mono(path, RATE)))
    assert samples.dtype == np.float32
    assert len(samples) / RATE == pytest.approx(2.5, abs=0.1)
    assert float(np.abs(samples).max()) == pytest.approx(0.5, abs=0.1)


def test_a_stereo_file_of_another_rate_becomes_mono_of_ours(tmp_path):
    path = encode(tmp_path / "a.flac", "flac", 1.0, rate=44_100, layout="stereo")
    samples = np.concatenate(list(read_mono(path, RATE)))
    assert len(samples) == pytest.approx(RATE, abs=40)
    assert np.sqrt(np.mean(samples**2)) == pytest.approx(0.5 / np.sqrt(2), abs=0.02)


def test_a_header_that_lies_about_its_size_does_not_matter(tmp_path):
    data = bytearray(write_wav(tmp_path / "a.wav", 1.0).read_bytes())
    for place in (4, 40):
        data[place : place + 4] = b"\xff" * 4
    (tmp_path / "b.wav").write_bytes(data)
    assert duration_seconds(tmp_path / "b.wav") == pytest.approx(1.0, abs=0.01)


def test_a_file_cut_in_the_middle_keeps_its_first_half(tmp_path):
    data = encode(tmp_path / "a.mp3", "libmp3lame", 4.0).read_bytes()
    (tmp_path / "b.mp3").write_bytes(data[: len(data) // 2])
    assert len(np.concatenate(list(read_mono(tmp_path / "b.mp3", RATE)))) / RATE == pytest.approx(2.0, abs=0.3)


def silent_video(path: Path) -> bytes:
    with av.open(str(path), "w") as container:
        stream = container.add_stream("mpeg4", rate=10)
        stream.width = stream.height = 64
        frame = av.VideoFrame.from_ndarray(np.zeros((64, 64, 3), np.uint8), format="rgb24")
        for packet in (*stream.encode(frame), *stream.encode(None)):
            container.mux(packet)
    return path.read_bytes()


def not_audio(tmp_path: Path) -> dict[str, bytes]:
    wav = write_wav(tmp_path / "good.wav")
    return {
        "nothing": b"",
        "text": b"This is only a letter.\n" * 100,
        "noise": np.random.default_rng(1).bytes(50_000),
        "wav without samples": wav.read_bytes()[:40] + bytes(4),
        "riff header alone": b"RIFF\x00\x00\x00\x00WAVE",
        "mp4 without its index": encode(tmp_path / "a.m4a", "aac", 1.0).read_bytes()[:5000],
        "video without sound": silent_video(tmp_path / "v.mp4"),
        "playlist": f"#EXTM3U\n#EXT-X-TARGETDURATION:1\n#EXTINF:1,\n{wav}\n#EXT-X-ENDLIST\n".encode(),
        "concat script": f"ffconcat version 1.0\nfile {wav.name}\n".encode(),
    }


@pytest.mark.parametrize(
    "kind",
    [
        "nothing",
        "text",
        "noise",
        "wav without samples",
        "riff header alone",
        "mp4 without its index",
        "video without sound",
        "playlist",
        "concat script",
    ],
)
def test_what_is_no_audio_is_refused_with_a_sentence_that_names_no_path(tmp_path, kind):
    path = tmp_path / "upload.bin"
    path.write_bytes(not_audio(tmp_path)[kind])
    for read in (duration_seconds, lambda path: list(read_mono(path, RATE))):
        with pytest.raises(InputUnreadable, match=r"^The input.*\.$") as caught:
            read(path)
        assert str(tmp_path) not in caught.value.message


def test_a_missing_file_is_unreadable(tmp_path):
    with pytest.raises(InputUnreadable):
        duration_seconds(tmp_path / "gone.wav")


def test_measuring_a_file_can_be_cancelled(tmp_path):
    def cancel() -> None:
        raise Cancelled

    with pytest.raises(Cancelled):
        duration_seconds(write_wav(tmp_path / "a.wav"), cancel)
