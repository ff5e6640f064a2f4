"""Writing sound as it is made, in any of `FORMATS`; memory stays flat.

A file grows from its start on, and what is in it may be heard already: only numbers in its header change at its end.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol, Self

from workers.sound import GrowingFile, WavWriter, as_pcm

if TYPE_CHECKING:
    import numpy as np

# What OpenAI's clients take "pcm" to be.
PCM_SAMPLE_RATE = 24_000
_LAYOUTS = {1: "mono", 2: "stereo"}


class SoundWriter(Protocol):
    """A sound being written. Leaving the `with` closes it; leaving it because of an error removes the file.

    `sample_rate` is the file's own, which may differ from the one given.
    """

    media_type: str

    @property
    def path(self) -> Path: ...

    @property
    def sample_rate(self) -> int: ...

    @property
    def channels(self) -> int: ...

    @property
    def duration_seconds(self) -> float:
        """Of what was written so far."""

    def write(self, samples: np.ndarray[Any, Any]) -> None:
        """Append samples of shape (frames,) or (frames, channels): int16, or floats that are clipped to -1..1."""

    def close(self) -> None:
        """Write what the encoder still holds, and the end of the file."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


@dataclass(frozen=True, slots=True)
class _Format:
    """How a format is made. `codec` is None where the bytes are the samples; a `sample_rate` that is set is the only
    one."""

    media_type: str
    ending: str
    codec: str | None = None
    container: str = ""
    bit_rate: int | None = None
    sample_rate: int | None = None
    options: Mapping[str, str] = field(default_factory=dict)


_FORMATS = {
    "wav": _Format("audio/wav", "wav"),
    "pcm": _Format("audio/pcm", "pcm", sample_rate=PCM_SAMPLE_RATE),
    "flac": _Format("audio/flac", "flac", "flac", "flac"),
    "mp3": _Format("audio/mpeg", "mp3", "libmp3lame", "mp3", 96_000, None, {"id3v2_version": "0"}),
    "opus": _Format("audio/ogg", "ogg", "libopus", "ogg", 64_000, 48_000, {"page_duration": "200000"}),
    "aac": _Format("audio/aac", "aac", "aac", "adts", 96_000),
}
FORMATS = tuple(_FORMATS)


def file_name(stem: str, response_format: str) -> str:
    """The stem with the format's usual ending."""
    return f"{stem}.{_FORMATS[response_format].ending}"


def open_sound(path: Path, response_format: str, sample_rate: int, channels: int = 1) -> SoundWriter:
    """A writer for samples of that rate, to a new file."""
    made = _FORMATS[response_format]
    if response_format == "wav":
        return WavWriter(path, sample_rate, channels)
    if made.codec is None:
        return _PcmWriter(path, made, sample_rate, channels)
    return _EncodedWriter(path, made, sample_rate, channels)


class _Writer(GrowingFile):
    """What both kinds share: resampled frames, and their count."""

    def __init__(self, path: Path, made: _Format, given_rate: int, channels: int) -> None:
        super().__init__(path)
        self.media_type = made.media_type
        self.channels = channels
        self._given_rate = given_rate
        self._frames = 0
        self._file = path.open("w+b")
        self._is_closed = False

    @property
    def duration_seconds(self) -> float:
        return self._frames / self._given_rate

    def write(self, samples: np.ndarray[Any, Any]) -> None:
        self._frames += len(samples)
        if len(samples):
            self._encode(_frame(as_pcm(samples), self._given_rate, self.channels))
            self._file.flush()

    def close(self) -> None:
        if not self._is_closed:
            self._is_closed = True
            self._finish()
            self._release()

    def _encode(self, frame: Any) -> None:
        raise NotImplementedError

    def _finish(self) -> None:
        raise NotImplementedError

    def _release(self) -> None:
        self._is_closed = True
        self._file.close()


class _PcmWriter(_Writer):
    """16-bit little-endian samples and nothing else, at the format's rate whatever came."""

    def __init__(self, path: Path, made: _Format, given_rate: int, channels: int) -> None:
        import av

        super().__init__(path, made, given_rate, channels)
        self.sample_rate = made.sample_rate or given_rate
        self._resampler = av.AudioResampler("s16", _LAYOUTS[channels], self.sample_rate)

    def _encode(self, frame: Any) -> None:
        for resampled in self._resampler.resample(frame):
            self._file.write(resampled.to_ndarray().astype("<i2").tobytes())

    def _finish(self) -> None:
        self._encode(None)


class _EncodedWriter(_Writer):
    """An encoder in its container."""

    def __init__(self, path: Path, made: _Format, given_rate: int, channels: int) -> None:
        import av

        assert made.codec is not None
        super().__init__(path, made, given_rate, channels)
        self.sample_rate = made.sample_rate or _nearest_rate(av.Codec(made.codec, "w").audio_rates, given_rate)
        options = {**made.options, "flush_packets": "1"}
        self._container = av.open(self._file, "w", format=made.container, options=options)
        stream = self._container.add_stream(made.codec, rate=self.sample_rate, layout=_LAYOUTS[channels])
        assert isinstance(stream, av.AudioStream)
        self._stream = stream
        if made.bit_rate is not None:
            self._stream.bit_rate = made.bit_rate * channels
        # The encoder's own conversion would guess at frames without a time.
        self._resampler = av.AudioResampler(self._stream.format.name, _LAYOUTS[channels], self.sample_rate)
        self._resampled = 0

    def _encode(self, frame: Any) -> None:
        for resampled in self._resampler.resample(frame):
            # Without a time the container does not count what an encoder puts before the sound.
            resampled.pts, resampled.time_base = self._resampled, Fraction(1, self.sample_rate)
            self._resampled += resampled.samples
            self._mux(resampled)

    def _mux(self, frame: Any) -> None:
        for packet in self._stream.encode(frame):
            self._container.mux(packet)

    def _finish(self) -> None:
        self._encode(None)
        self._mux(None)

    def _release(self) -> None:
        # Closing the container also writes its end, so the file goes after it.
        try:
            self._container.close()
        finally:
            super()._release()


def _frame(samples: np.ndarray[Any, Any], sample_rate: int, channels: int) -> Any:
    import av

    frame = av.AudioFrame.from_ndarray(samples.reshape(1, -1), format="s16", layout=_LAYOUTS[channels])
    frame.sample_rate = sample_rate
    return frame


def _nearest_rate(offered: Sequence[int] | None, wanted: int) -> int:
    """The rate itself where the encoder takes it, else the next above, else its highest."""
    if not offered or wanted in offered:
        return wanted
    return min((rate for rate in offered if rate > wanted), default=max(offered))
