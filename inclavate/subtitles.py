"""Subtitles of what was spoken or heard, as SubRip or WebVTT."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

SRT = "srt"
VTT = "vtt"
FORMATS = (SRT, VTT)
MEDIA_TYPES = {SRT: "application/x-subrip", VTT: "text/vtt"}
_ESCAPES = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;"})


@dataclass(frozen=True, slots=True)
class Cue:
    """Words, and when they are heard. A line of the text is a line on the screen."""

    start_seconds: float
    end_seconds: float
    text: str


def render(cues: Iterable[Cue], kind: str) -> str:
    """The whole file. `kind` is one of `FORMATS`."""
    mark = "," if kind == SRT else "."
    blocks = (_block(number, cue, mark, kind) for number, cue in enumerate(cues, 1))
    return ("" if kind == SRT else "WEBVTT\n\n") + "\n".join(blocks)


def _block(number: int, cue: Cue, mark: str, kind: str) -> str:
    # No empty line, as it would end the block; and no arrow, which would begin a time.
    lines = (" ".join(line.split()) for line in cue.text.splitlines())
    text = "\n".join(line for line in lines if line).replace("-->", "->")
    shown = text if kind == SRT else text.translate(_ESCAPES)
    return f"{number}\n{_time(cue.start_seconds, mark)} --> {_time(cue.end_seconds, mark)}\n{shown}\n"


def _time(seconds: float, mark: str) -> str:
    milliseconds = round(seconds * 1000)
    minutes, rest = divmod(milliseconds, 60_000)
    return f"{minutes // 60:02}:{minutes % 60:02}:{rest // 1000:02}{mark}{rest % 1000:03}"
