"""What is in a file: `python -m workers.probe PATH KIND SECONDS` prints the facts as one line of JSON, and ends.

The file is a stranger's, and the libraries that read it are large: so this is a process of its own, which takes from
itself all that it can do without before it opens the file. Nothing but numbers and short words comes out.
"""

from __future__ import annotations

import json
import math
import os
import resource
import signal
import sys
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from inclavate.errors import InputUnreadable
from workers import image, sound

if TYPE_CHECKING:
    import av
    import numpy as np

PEAKS = 200
_MEMORY_BYTES = 2 * 2**30
_OPEN_FILES = 64
# Of the time that there is, what drawing the waveform may take; what is left finds out the length without it.
_WAVEFORM_SHARE = 0.7
_TOO_LONG = "The sound is too long for a waveform."
# What counts as silence, and what is no louder than the quietest sound that there is.
_SILENCE_DBFS = -50.0
_FLOOR_DBFS = -120.0
_FULL_SCALE = 0.999


def read_facts(path: Path, kind: str, seconds: float) -> dict[str, Any]:
    """Facts of a file whose first bytes are of `kind` (image, audio or video), within about `seconds`.

    Raises `InputUnreadable`, `MemoryError`.
    """
    until = time.monotonic() + seconds
    if kind == "image":
        width, height = image.size(path)
        return {"width": width, "height": height}
    with sound.open_media(path) as container:
        has_pictures = _pictures(container) is not None
    if has_pictures:
        return _video_facts(path, until)
    facts = _waveform_facts(path, until - (1 - _WAVEFORM_SHARE) * seconds)
    return facts if "peaks" in facts else facts | {"note": _TOO_LONG} | _length(path, until)


def _pictures(container: av.container.InputContainer) -> av.VideoStream | None:
    """The moving pictures; the cover of an album is none."""
    import av

    cover = av.stream.Disposition.attached_pic
    return next((stream for stream in container.streams.video if not stream.disposition & cover), None)


def _video_facts(path: Path, until: float) -> dict[str, Any]:
    with sound.open_media(path) as container:
        pictures = _pictures(container)
        assert pictures is not None
        facts = {"width": pictures.width, "height": pictures.height, "codec": pictures.codec.canonical_name}
        if pictures.average_rate:
            facts["frame_rate"] = round(float(pictures.average_rate), 3)
        if container.streams.audio:
            heard = container.streams.audio[0]
            facts |= {"sample_rate": heard.rate, "channels": heard.channels, "audio_codec": heard.codec.canonical_name}
    return facts | _length(path, until)


def _waveform_facts(path: Path, until: float) -> dict[str, Any]:
    """What decoding it all shows; no peaks and no length where the time is over first."""
    waveform, levels = sound.Waveform(), Levels()
    seconds = 0.0
    facts: dict[str, Any] = {}
    with sound.open_media(path) as container:
        if not container.streams.audio:
            raise InputUnreadable("There is neither sound nor a picture in it.")
        codec = container.streams.audio[0].codec.canonical_name
        for frame in sound.frames(container):
            # What a header says of these may be half the truth (HE-AAC).
            if not facts:
                facts = {"codec": codec, "sample_rate": frame.sample_rate, "channels": len(frame.layout.channels)}
            loudness = sound.loudness(frame)
            waveform.add(loudness)
            levels.add(loudness, frame.sample_rate)
            seconds += frame.samples / frame.sample_rate
            if time.monotonic() > until:
                return facts
    if not facts:
        raise InputUnreadable("There are no samples in it.")
    return facts | {"duration_seconds": round(seconds, 3), "peaks": waveform.peaks(PEAKS)} | levels.facts()


class Levels:
    """How loud a sound is, how much of it is silence, and how much is cut off at full scale; with flat memory."""

    def __init__(self) -> None:
        import numpy as np

        self._samples = self._clipped = 0
        self._windows = self._heard_windows = 0
        self._power = 0.0
        self._rest = np.zeros(0, np.float32)

    def add(self, loudness: np.ndarray[Any, Any], sample_rate: int) -> None:
        """Take in the next samples, each as its absolute value; 1.0 is full scale."""
        import numpy as np

        self._samples += len(loudness)
        self._clipped += int(np.count_nonzero(loudness >= _FULL_SCALE))
        finite = np.nan_to_num(loudness, nan=0.0, posinf=1.0).clip(0.0, 1.0)
        # Windows of 20 ms: shorter than any word, longer than a period of any voice.
        width = max(1, sample_rate // 50)
        joined = np.concatenate((self._rest, finite))
        whole = len(joined) // width * width
        self._rest = joined[whole:]
        self._measure(joined[:whole].reshape(-1, width))

    def facts(self) -> dict[str, float]:
        """`level_dbfs` is that of what is no silence; the others are shares, 0 to 1."""
        if len(self._rest):
            self._measure(self._rest.reshape(1, -1))
        power = self._power / self._heard_windows if self._heard_windows else 0.0
        return {
            "level_dbfs": round(_decibels(power), 1),
            "silence": round(1 - self._heard_windows / max(1, self._windows), 3),
            "clipped": round(self._clipped / max(1, self._samples), 5),
        }

    def _measure(self, windows: np.ndarray[Any, Any]) -> None:
        import numpy as np

        powers = np.square(windows, dtype=np.float64).mean(axis=1)
        heard = powers[powers > 10 ** (_SILENCE_DBFS / 10)]
        self._windows += len(powers)
        self._heard_windows += len(heard)
        self._power += float(heard.sum())


def _decibels(power: float) -> float:
    return max(_FLOOR_DBFS, 10 * math.log10(power)) if power > 0 else _FLOOR_DBFS


def _length(path: Path, until: float) -> dict[str, Any]:
    """Where the last packet ends; what the header says only where there is no time to see."""
    seconds = 0.0
    with sound.open_media(path) as container:
        for packet in container.demux(_timed(container)):
            if packet.pts is not None and packet.time_base is not None:
                begin = packet.pts - (packet.stream.start_time or 0)
                seconds = max(seconds, float((begin + (packet.duration or 0)) * packet.time_base))
            if time.monotonic() > until:
                seconds = (container.duration or 0) / 1_000_000
                break
    return {"duration_seconds": round(seconds, 3)} if seconds > 0 else {}


def _timed(container: av.container.InputContainer) -> Iterable[av.VideoStream | av.AudioStream]:
    pictures = _pictures(container)
    return [*([pictures] if pictures else []), *container.streams.audio]


# -- the cage ----------------------------------------------------------------------------------------------------------


def _enter_cage(seconds: float) -> None:
    """Little memory, little time, no file written, last in every queue; killed should nobody be left to do it."""
    for limit, most in (
        (resource.RLIMIT_AS, _MEMORY_BYTES),
        (resource.RLIMIT_CPU, math.ceil(seconds)),
        (resource.RLIMIT_NOFILE, _OPEN_FILES),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_CORE, 0),
    ):
        resource.setrlimit(limit, (most, most))
    signal.setitimer(signal.ITIMER_REAL, seconds)
    os.nice(10)


def main() -> None:
    path, kind, seconds = Path(sys.argv[1]), sys.argv[2], float(sys.argv[3])
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")
    _enter_cage(seconds)
    # Libraries print; whoever started this reads facts.
    answer = os.dup(1)
    os.dup2(2, 1)
    try:
        # Three quarters: starting and ending take their part.
        facts = read_facts(path, kind, 0.75 * seconds)
    except (InputUnreadable, MemoryError):
        facts = {"unreadable": True}
    os.write(answer, json.dumps(facts, allow_nan=False).encode())


if __name__ == "__main__":
    main()
