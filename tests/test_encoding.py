"""Every format, read back by another library than the one that wrote it (libsndfile), or by its structure."""

from __future__ import annotations

import io
import resource
import struct
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
import soundfile
from av.error import FFmpegError

from inclavate.artifacts import sniff
from workers.encoding import FORMATS, PCM_SAMPLE_RATE, file_name, open_sound

SECONDS = 1.7
ENDINGS = {"wav": "wav", "pcm": "pcm", "flac": "flac", "mp3": "mp3", "opus": "ogg", "aac": "aac"}
TYPES = {
    "wav": "audio/wav",
    "pcm": "audio/pcm",
    "flac": "audio/flac",
    "mp3": "audio/mpeg",
    "opus": "audio/ogg",
    "aac": "audio/aac",
}
ADTS_RATES = (96000, 88200, 64000, 48000, 44100, 32000, 24000, 22050, 16000, 12000, 11025, 8000, 7350)


def sound(rate: int, seconds: float = SECONDS) -> np.ndarray:
    """A tone, and a higher one in the last tenth of a second, by which a lost tail shows."""
    time = np.arange(round(seconds * rate)) / rate
    pitch = np.where(time < seconds - 0.1, 440, 1000)
    return (0.5 * np.sin(2 * np.pi * pitch * time)).astype(np.float32)


def encode(path: Path, name: str, rate: int, samples: np.ndarray | None = None) -> Path:
    samples = sound(rate) if samples is None else samples
    with open_sound(path, name, rate) as writer:
        for part in np.array_split(samples, 9):
            writer.write(part)
    assert writer.duration_seconds == pytest.approx(len(samples) / rate)
    assert writer.path == path
    return path


def adts_frames(data: bytes) -> list[tuple[int, int]]:
    """(sample rate, channels) of each frame; whatever is no frame fails."""
    frames = []
    while data:
        header = int.from_bytes(data[:7], "big")
        assert header >> 44 == 0xFFF
        size = header >> 13 & 0x1FFF
        assert 7 < size <= len(data)
        frames.append((ADTS_RATES[header >> 34 & 15], header >> 30 & 7))
        data = data[size:]
    return frames


def read(path: Path, name: str) -> tuple[np.ndarray, int]:
    if name == "pcm":
        return np.frombuffer(path.read_bytes(), "<i2") / 32768, PCM_SAMPLE_RATE
    return soundfile.read(path)


def pitch_of(samples: np.ndarray, rate: int) -> float:
    spectrum = np.abs(np.fft.rfft(samples * np.hanning(len(samples))))
    return float(np.fft.rfftfreq(len(samples), 1 / rate)[spectrum.argmax()])


@pytest.mark.parametrize("given", [16_000, 22_050, 24_000, 44_100])
@pytest.mark.parametrize("name", [name for name in FORMATS if name != "aac"])
def test_another_decoder_reads_the_whole_sound_at_the_right_rate(tmp_path, name, given):
    samples, rate = read(encode(tmp_path / "a", name, given), name)
    assert rate == {"pcm": 24_000, "opus": 48_000}.get(name, given)
    lost = {"mp3": 1200 / rate}.get(name, 2 / rate)
    assert len(samples) / rate == pytest.approx(SECONDS, abs=lost)
    middle, tail = samples[rate // 2 : rate], samples[-int(0.09 * rate) : -int(0.01 * rate)]
    assert pitch_of(middle, rate) == pytest.approx(440, abs=15)
    assert pitch_of(tail, rate) == pytest.approx(1000, abs=30)
    assert np.abs(middle).max() == pytest.approx(0.5, abs=0.05)


@pytest.mark.parametrize(("given", "rate"), [(16_000, 16_000), (22_050, 22_050), (20_000, 22_050), (192_000, 96_000)])
def test_aac_is_a_row_of_adts_frames_that_hold_the_whole_sound(tmp_path, given, rate):
    frames = adts_frames(encode(tmp_path / "a", "aac", given).read_bytes())
    assert set(frames) == {(rate, 1)}
    assert SECONDS * rate <= len(frames) * 1024 <= SECONDS * rate + 3 * 1024


@pytest.mark.parametrize("rate", [22_050, 24_000, 48_000])
@pytest.mark.parametrize("name", ["opus", "flac", "mp3"])
def test_a_sound_of_any_length_is_read_whole_by_another_decoder_and_has_no_more(tmp_path, name, rate):
    for place, milliseconds in enumerate(range(2, 2000, 37)):
        path = tmp_path / f"{place}"
        samples = sound(rate, milliseconds / 1000)
        with open_sound(path, name, rate) as writer:
            for part in np.array_split(samples, 5):
                writer.write(part)
        decoded, own = soundfile.read(path)
        # One sample is resampling's to round, and an MP3's encoder may add some of its own.
        more = 32 if name == "mp3" else int(own != rate)
        assert len(decoded) == pytest.approx(len(samples) * own / rate, abs=more)


def pages(ogg: bytes) -> list[int]:
    """The granule position of each page."""
    granules = []
    while ogg:
        assert ogg[:4] == b"OggS"
        granules.append(int.from_bytes(ogg[6:14], "little"))
        segments = ogg[26]
        ogg = ogg[27 + segments + sum(ogg[27 : 27 + segments]) :]
    return granules


@pytest.mark.parametrize("seconds", [0.005, 0.1, 0.15, 0.187, 0.2, 1.0, 1.7])
def test_an_opus_ends_at_its_length_and_what_is_skipped_before_it(tmp_path, seconds):
    data = b""
    with open_sound(tmp_path / "a", "opus", 24_000) as writer:
        for part in np.array_split(sound(24_000, seconds), 9):
            writer.write(part)
            data += (tmp_path / "a").read_bytes()[len(data) :]
    data += (tmp_path / "a").read_bytes()[len(data) :]
    skipped = int.from_bytes(data[(place := data.index(b"OpusHead") + 10) : place + 2], "little")
    granules = pages(data)
    assert granules[-1] == round(seconds * 48_000) + skipped
    assert granules == sorted(granules)
    # Pages of ten packets of 20 ms: the first of sound ends where they do.
    assert all(granule % 960 == 0 for granule in granules[:-1])


@pytest.mark.parametrize("name", FORMATS)
def test_the_bytes_are_of_the_type_that_is_said(tmp_path, name):
    path = encode(tmp_path / file_name("speech", name), name, 22_050)
    assert path.name == f"speech.{ENDINGS[name]}"
    with open_sound(tmp_path / "other", name, 22_050) as sound:
        assert sound.media_type == TYPES[name]
    assert sniff(path.read_bytes()[:4096]) == (None if name == "pcm" else TYPES[name])


@pytest.mark.parametrize("name", ["wav", "flac"])
def test_what_loses_nothing_returns_each_sample(tmp_path, name):
    samples = np.random.default_rng(3).integers(-32768, 32767, 50_000).astype(np.int16)
    decoded, _ = soundfile.read(encode(tmp_path / "a", name, 22_050, samples), dtype="int16")
    assert np.array_equal(decoded, samples)


def test_pcm_of_its_own_rate_is_the_samples_themselves(tmp_path):
    samples = np.arange(-3000, 3000, dtype=np.int16)
    assert encode(tmp_path / "a", "pcm", PCM_SAMPLE_RATE, samples).read_bytes() == samples.tobytes()


def test_an_mp3_has_one_header_with_its_length_and_a_flac_its_samples(tmp_path):
    data = encode(tmp_path / "a.mp3", "mp3", 24_000).read_bytes()
    assert (data.count(b"Xing") + data.count(b"Info"), data[:2]) == (1, b"\xff\xf3")
    place = max(data.find(b"Xing"), data.find(b"Info"))
    frames = struct.unpack(">I", data[place + 8 : place + 12])[0]
    assert SECONDS * 24_000 <= frames * 576 <= SECONDS * 24_000 + 4 * 576
    data = encode(tmp_path / "a.flac", "flac", 24_000).read_bytes()
    assert data.count(b"fLaC") == 1
    assert int.from_bytes(data[21:26], "big") & 0xFFFFFFFFF == round(SECONDS * 24_000)


def heard(path: Path, name: str) -> tuple[bytes, int]:
    """The bytes as one hears them who reads on as they come, and how many of them before the last are written."""
    data = b""
    with open_sound(path, name, 24_000) as writer:
        for part in np.array_split(sound(24_000), 9):
            writer.write(part)
            data += path.read_bytes()[len(data) :]
        before_its_end = len(data)
    return data + path.read_bytes()[len(data) :], before_its_end


def with_its_length(flac: bytes) -> bytes:
    """A FLAC that was not gone back in says 0 samples, "unknown", which libsndfile cannot read."""
    fields = int.from_bytes(flac[21:26], "big")
    assert fields & 0xFFFFFFFFF == 0
    return flac[:21] + (fields + round(SECONDS * 24_000)).to_bytes(5, "big") + flac[26:]


@pytest.mark.parametrize("name", FORMATS)
def test_one_who_reads_a_file_while_it_grows_hears_all_of_it(tmp_path, name):
    data, before_its_end = heard(tmp_path / "a", name)
    assert before_its_end > len(data) / 3
    assert len(data) == (tmp_path / "a").stat().st_size
    if name == "aac":
        assert len(adts_frames(data)) * 1024 >= SECONDS * 24_000
    elif name == "pcm":
        assert len(data) == round(SECONDS * 24_000) * 2
    else:
        samples, rate = soundfile.read(io.BytesIO(with_its_length(data) if name == "flac" else data))
        assert len(samples) / rate == pytest.approx(SECONDS, abs=0.06)
        assert pitch_of(samples[-int(0.09 * rate) : -int(0.02 * rate)], rate) == pytest.approx(1000, abs=30)


def test_a_wav_that_grows_says_that_its_sizes_are_unknown(tmp_path):
    data, _ = heard(tmp_path / "a", "wav")
    assert data[4:8] == data[40:44] == b"\xff" * 4
    assert len(data) == 44 + round(SECONDS * 24_000) * 2


@pytest.mark.parametrize("name", FORMATS)
def test_an_error_while_writing_leaves_no_file_in_any_format(tmp_path, name):
    parts = [sound(24_000), np.array(["no", "samples"])]
    with pytest.raises(TypeError), open_sound(tmp_path / "a", name, 24_000) as writer:
        list(map(writer.write, parts))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", FORMATS)
def test_two_channels_stay_apart(tmp_path, name):
    left = sound(24_000)
    with open_sound(tmp_path / "a", name, 24_000, channels=2) as writer:
        writer.write(np.stack([left, np.zeros_like(left)], axis=1))
    if name == "aac":
        assert set(adts_frames((tmp_path / "a").read_bytes())) == {(24_000, 2)}
        return
    samples = read(tmp_path / "a", name)[0].reshape(-1, 2)
    assert np.abs(samples[:, 0]).max() > 0.4
    assert np.abs(samples[:, 1]).max() < 0.05


@pytest.mark.parametrize("name", FORMATS)
def test_twenty_minutes_are_written_with_flat_memory(tmp_path, name):
    minute = np.zeros(60 * 8_000, np.int16)
    with open_sound(tmp_path / "a", name, 8_000) as writer:
        writer.write(minute)
        tracemalloc.start()
        try:
            for _ in range(2):
                writer.write(minute)
            few = tracemalloc.get_traced_memory()[1]
            for _ in range(17):
                writer.write(minute)
            many = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
    assert many < few + minute.nbytes


@pytest.mark.parametrize("name", FORMATS)
def test_a_disk_that_is_full_is_an_error_and_leaves_no_file(tmp_path, name):
    noise = np.random.default_rng(1).integers(-9000, 9000, 24_000).astype(np.int16)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    # In the middle of a block, of which the system would take the first half and say so.
    resource.setrlimit(resource.RLIMIT_FSIZE, (50_001, before[1]))
    try:
        with pytest.raises((OSError, FFmpegError)):
            encode(tmp_path / "a", name, 24_000, np.tile(noise, 20))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert list(tmp_path.iterdir()) == []
