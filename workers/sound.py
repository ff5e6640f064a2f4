"""Sound files: writing WAV as it is made, reading anything that PyAV decodes, both with flat memory."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from inclavate.errors import InferenceFailed, InputUnreadable

if TYPE_CHECKING:
    import av
    import numpy as np

_HEADER = struct.Struct("<4sI4s4sIHHIIHH4sI")
_UNKNOWN_SIZE = 0xFFFFFFFF
_MAX_DATA_BYTES = _UNKNOWN_SIZE - _HEADER.size
# Playlists and "concat" scripts name other files and addresses, so only formats that hold their own sound are opened.
_FORMATS = "wav,w64,mp3,flac,ogg,matroska,webm,mov,mp4,m4a,avi,aac,aiff,au,caf,amr"
# Of FFmpeg's sample formats: numpy's name, the value of silence, and that of full scale less silence.
_SCALES = {
    "u8": ("u1", 128, 2**7),
    "s16": ("i2", 0, 2**15),
    "s32": ("i4", 0, 2**31),
    "s64": ("i8", 0, 2**63),
    "flt": ("f4", 0, 1),
    "dbl": ("f8", 0, 1),
}
_NO_AUDIO = "The input is not audio that can be read."
_NO_SAMPLES = "The input has no sound in it."
_BROKEN = "The input's audio is broken and cannot be decoded."


class GrowingFile:
    """A file that is written as its content comes. Leaving the `with` closes it; an error, also one of closing, removes
    it.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def close(self) -> None:
        raise NotImplementedError

    def _release(self) -> None:
        """Let go of it as it stands."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                self.close()
                return
        except BaseException:
            self._discard()
            raise
        self._discard()

    def _discard(self) -> None:
        # What is still to be flushed, or an end that is still to be written, may not fit.
        with suppress(Exception):
            self._release()
        self.path.unlink(missing_ok=True)


class WavWriter(GrowingFile):
    """A 16-bit PCM WAV file, written as its samples come; the header's sizes are right once it is closed.

    Until then they are 0xFFFFFFFF, for those who hear it while it grows.
    """

    media_type = "audio/wav"

    def __init__(self, path: Path, sample_rate: int, channels: int = 1) -> None:
        super().__init__(path)
        self.sample_rate = sample_rate
        self.channels = channels
        self.frames = 0
        self._file = path.open("wb")
        self._file.write(self._header(None))

    @property
    def duration_seconds(self) -> float:
        return self.frames / self.sample_rate

    def write(self, samples: np.ndarray[Any, Any]) -> None:
        """Append samples of shape (frames,) or (frames, channels): int16, or floats that are clipped to -1..1."""
        data = as_pcm(samples).tobytes()
        frame_bytes = 2 * self.channels
        if self.frames * frame_bytes + len(data) > _MAX_DATA_BYTES:
            raise InferenceFailed("The audio is longer than a WAV file can hold (4 GiB).")
        self._file.write(data)
        # For those who hear it while it grows. (Unbuffered, a full disk would cut it short without a word.)
        self._file.flush()
        self.frames += len(data) // frame_bytes

    def close(self) -> None:
        if not self._file.closed:
            self._file.seek(0)
            self._file.write(self._header(self.frames))
            self._file.close()

    def _header(self, frames: int | None) -> bytes:
        frame_bytes = 2 * self.channels
        size = _UNKNOWN_SIZE if frames is None else frames * frame_bytes
        whole = _UNKNOWN_SIZE if frames is None else 36 + size
        fmt = (16, 1, self.channels, self.sample_rate, self.sample_rate * frame_bytes, frame_bytes, 16)
        return _HEADER.pack(b"RIFF", whole, b"WAVE", b"fmt ", *fmt, b"data", size)

    def _release(self) -> None:
        self._file.close()


def as_pcm(samples: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """int16 as it is, floats scaled to it: beyond -1..1 clipped, and what is no number silence."""
    import numpy as np

    if samples.dtype == np.int16:
        return samples.astype("<i2", copy=False)
    if samples.dtype.kind != "f":
        raise TypeError(f"samples must be int16 or floats, not {samples.dtype}")
    finite = np.nan_to_num(samples.astype(np.float32), nan=0.0, posinf=1.0, neginf=-1.0)
    scaled: np.ndarray[Any, Any] = np.rint(np.clip(finite, -1.0, 1.0) * 32767.0)
    return scaled.astype("<i2")


def duration_seconds(path: Path, check: Callable[[], None] = lambda: None) -> float:
    """How long the first sound stream of a file is, whatever its header claims.

    Raises `InputUnreadable` for what is no audio or has no samples. `check` is called between packets.
    """
    seconds = 0.0
    has_sound = False
    with _open(path) as container:
        stream = container.streams.audio[0]
        for packet in container.demux(stream):
            check()
            if not has_sound:
                has_sound = any(frame.samples for frame in _decode(packet) or ())
            if packet.pts is not None and packet.time_base is not None:
                begin = packet.pts - (stream.start_time or 0)
                seconds = max(seconds, float((begin + (packet.duration or 0)) * packet.time_base))
    if not has_sound:
        raise InputUnreadable(_NO_SAMPLES)
    return seconds


def read_mono(path: Path, sample_rate: int) -> Iterator[np.ndarray[Any, Any]]:
    """The first sound stream of a file as float32 in -1..1, mixed to one channel, some thousand samples at a time.

    Raises `InputUnreadable` for what is no audio or has no samples, and at the end for what is mostly broken.
    """
    import av

    # Its own mixing to mono would exceed full scale: the channels' mean is taken instead. In 16 bits, as the models
    # that hear were measured with: a word may hang on the last of them.
    resampler = av.AudioResampler(format="s16p", rate=sample_rate)
    read_any = False
    with _open(path) as container:
        for frame in frames(container):
            # Broken timestamps would make the resampler insert or refuse samples; their order is all that is needed.
            frame.pts = None
            for resampled in resampler.resample(frame):
                read_any = True
                yield _mono(resampled)
    if not read_any:
        raise InputUnreadable(_NO_SAMPLES)
    for resampled in resampler.resample(None):
        yield _mono(resampled)


def _mono(frame: av.AudioFrame) -> np.ndarray[Any, Any]:
    """Of planar samples of 16 bits, as float32."""
    mono: np.ndarray[Any, Any] = frame.to_ndarray().mean(axis=0, dtype="float32") / 32768
    return mono


@contextmanager
def open_media(path: Path) -> Iterator[av.container.InputContainer]:
    """A file that holds its own sound or moving pictures; whatever it says, no other file or address is opened.

    Raises `InputUnreadable` for anything else, and for what turns out broken inside the `with`.
    """
    import av

    try:
        container = av.open(
            f"file:{path}",
            options={"protocol_whitelist": "file", "format_whitelist": _FORMATS},
            metadata_errors="ignore",
        )
    except (av.FFmpegError, ValueError) as error:
        raise InputUnreadable(_NO_AUDIO) from error
    with container:
        try:
            yield container
        except (av.FFmpegError, ValueError) as error:
            raise InputUnreadable(_BROKEN) from error


@contextmanager
def _open(path: Path) -> Iterator[av.container.InputContainer]:
    with open_media(path) as container:
        if not container.streams.audio:
            raise InputUnreadable("The input has no sound in it: no audio stream was found.")
        yield container


def frames(container: av.container.InputContainer) -> Iterator[av.AudioFrame]:
    """Decoded frames of the first sound stream. Single broken packets are passed over, as players do; a file of mostly
    such is refused.
    """
    good = broken = 0
    for packet in container.demux(container.streams.audio[0]):
        decoded = _decode(packet)
        if decoded is None:
            broken += 1
            continue
        good += 1
        yield from (frame for frame in decoded if frame.samples)
    if broken > good:
        raise InputUnreadable(_BROKEN)


def _decode(packet: av.Packet[av.AudioStream]) -> list[av.AudioFrame] | None:
    """The packet's frames, or None where it is broken."""
    import av

    try:
        return list(packet.decode())
    except av.InvalidDataError:
        return None


class Waveform:
    """The peaks of a sound whose length shows only at its end, with flat memory."""

    # Many more than are asked for, so that a point's borders fall within a few thousandths of where they should.
    _BLOCKS = 8192

    def __init__(self) -> None:
        import numpy as np

        self.samples = 0
        self._width = 1
        self._blocks = np.zeros(self._BLOCKS, np.float32)

    def add(self, loudness: np.ndarray[Any, Any]) -> None:
        """Take in what `loudness` says of a frame."""
        import numpy as np

        end = self.samples + len(loudness)
        while end > self._width * self._BLOCKS:
            self._fold()
        first, last = self.samples // self._width, (end - 1) // self._width
        starts = np.arange(first, last + 1) * self._width - self.samples
        starts[0] = 0
        part = self._blocks[first : last + 1]
        np.fmax(part, np.fmax.reduceat(loudness, starts), out=part)
        self.samples = end

    def peaks(self, count: int) -> list[float]:
        """`count` points, each the loudest sample (0..1 of full scale) of an equal part of the time."""
        import numpy as np

        used = -(-self.samples // self._width)
        edges = np.linspace(0, used, count + 1)
        parts = zip(np.floor(edges[:-1]).astype(int), np.ceil(edges[1:]).astype(int), strict=True)
        loudest = [float(self._blocks[begin:end].max(initial=0.0)) for begin, end in parts]
        return [round(min(peak, 1.0), 3) for peak in loudest]

    def _fold(self) -> None:
        """Blocks twice as wide, in the first half."""
        half = self._BLOCKS // 2
        self._blocks[:half] = self._blocks.reshape(-1, 2).max(axis=1)
        self._blocks[half:] = 0.0
        self._width *= 2


def loudness(frame: av.AudioFrame) -> np.ndarray[Any, Any]:
    """The absolute value of each sample, of its loudest channel, as float32; 1.0 is full scale."""
    import numpy as np

    dtype, silence, scale = _SCALES[frame.format.packed.name]
    channels = 1 if frame.format.is_planar else len(frame.layout.channels)
    # Not `to_ndarray`, which takes longer than decoding does. A plane may be longer than its samples.
    planes = [np.frombuffer(bytes(plane), dtype, frame.samples * channels) for plane in frame.planes]
    levels = [np.abs((plane.astype(np.float32) - silence) / scale) for plane in planes]
    loudest: np.ndarray[Any, Any] = np.maximum.reduce([level.reshape(-1, channels).max(axis=1) for level in levels])
    return loudest
