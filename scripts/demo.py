"""What `make demo` runs: start Inclavate, have a sentence spoken, have the sound heard, serve until Ctrl-C.

An Inclavate that already runs on the data folder is used, and left running. `--once` ends after the job; the exit
code is 0 only if everything worked.
"""

from __future__ import annotations

import argparse
import signal
import subprocess
import sys
import time
import uuid
import wave
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from inclavate import settings
from inclavate.cli import INTERRUPTED, Progress
from inclavate.client import Client, ClientError, Generator, NoModel
from inclavate.generators import SPEECH, TRANSCRIBE

SENTENCE = "Good morning. This sentence was spoken by a machine, and another machine will write down what it heard."
OUTPUT = settings.BASE_DIR / "out" / "demo.wav"
LOG = settings.DATA_DIR / "up.log"
START_SECONDS = 60.0
STOP_SECONDS = 20.0
# `up` ends with this code where another one holds the data folder.
HELD_EXIT_CODE = 3


class DemoError(Exception):
    """What went wrong, as one sentence."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="make demo", description=__doc__)
    parser.add_argument("--once", action="store_true", help="end after the job (make demo ONCE=1)")
    is_once = parser.parse_args().once
    for signum in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(signum, signal.default_int_handler)
    try:
        with _started() as up:
            return _show(up, is_once=is_once)
    except (ClientError, DemoError, OSError, wave.Error) as error:
        print(f"demo: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return INTERRUPTED


class Up(subprocess.Popen[bytes]):
    """`inclavate up` as a child; its lines go to the log, out of the progress bar's way."""

    def __init__(self) -> None:
        LOG.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with LOG.open("ab") as log:
            self._log_start = log.tell()
            # In a session of its own: Ctrl-C must reach it once, from here; a second signal means "at once" to it.
            super().__init__(
                [sys.executable, str(settings.BASE_DIR / "manage.py"), "up"],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def last_words(self) -> str:
        lines = LOG.read_bytes()[self._log_start :].decode("utf-8", "replace").splitlines()
        return "\n".join(lines[-15:])


@contextmanager
def _started() -> Iterator[Up]:
    up = Up()
    try:
        yield up
    finally:
        _stop(up)


def _stop(up: Up) -> None:
    if up.poll() is not None:
        return
    print("stopping …", flush=True)
    try:
        _terminate(up)
    except KeyboardInterrupt:
        _terminate(up)
    if up.poll() is None:
        up.kill()
        raise DemoError(f"Inclavate did not stop within {STOP_SECONDS:.0f} s.")
    if up.returncode != 0:
        raise DemoError(f"Inclavate ended with code {up.returncode}; why is in {LOG}.")


def _terminate(up: Up) -> None:
    up.terminate()
    with suppress(subprocess.TimeoutExpired):
        up.wait(STOP_SECONDS)


def _show(up: Up, *, is_once: bool) -> int:
    with Client(settings.LISTEN_URL, settings.API_KEY or None) as client:
        begun_at = time.monotonic()
        print(f"starting Inclavate on {settings.DATA_DIR} (its log is {LOG.name} there)", flush=True)
        speaker, listener = _await_models(client, up)
        print(f"ready after {_since(begun_at)}: {speaker.model} speaks, {listener.model} listens\n")
        _speak(client, speaker)
        _listen(client, listener)
    print(f"\nthe pages: {settings.LISTEN_URL}/")
    if is_once:
        return 0
    return _serve(up)


def _await_models(client: Client, up: Up) -> tuple[Generator, Generator]:
    deadline = time.monotonic() + START_SECONDS
    said = ""
    while True:
        if up.poll() not in (None, HELD_EXIT_CODE):
            raise DemoError(f"Inclavate did not start.\n{up.last_words()}")
        try:
            client.health()
            return client.first_ready(SPEECH), client.first_ready(TRANSCRIBE)
        except ClientError as error:
            if time.monotonic() >= deadline:
                raise DemoError(f"Not ready after {START_SECONDS:.0f} s: {error}\n{up.last_words()}") from error
            awaited = "the models" if isinstance(error, NoModel) else "the web process"
        if awaited != said:
            said = awaited
            print(f"waiting for {said} …", flush=True)
        time.sleep(0.05)


def _speak(client: Client, speaker: Generator) -> None:
    begun_at = time.monotonic()
    print(f"POST /v1/generations: {SENTENCE!r}", flush=True)
    key = f"demo-{uuid.uuid4()}"
    job = client.submit(speaker.model, speaker.modality, {"text": SENTENCE}, idempotency_key=key)
    progress = Progress(sys.stdout)
    try:
        job = client.wait(job.id, progress)
    except KeyboardInterrupt:
        client.cancel(job.id)
        raise
    finally:
        progress.close()
    OUTPUT.parent.mkdir(exist_ok=True)
    client.download(job.output_artifacts[0], OUTPUT)
    with wave.open(str(OUTPUT)) as sound:
        seconds = sound.getnframes() / sound.getframerate()
    print(f"made in {_since(begun_at)}: {_shown(OUTPUT)}, {seconds:.1f} s of sound\n")


def _listen(client: Client, listener: Generator) -> None:
    begun_at = time.monotonic()
    print("POST /v1/audio/transcriptions: the same file", flush=True)
    heard = client.transcribe(OUTPUT, listener.model).text.strip()
    if not heard:
        raise DemoError(f"{listener.model} heard nothing in {OUTPUT}.")
    print(f"heard in {_since(begun_at)}: {heard!r}")


def _serve(up: Up) -> int:
    if up.poll() == HELD_EXIT_CODE:
        print("It was running before and goes on.")
        return 0
    print("Ctrl-C stops everything.", flush=True)
    try:
        up.wait()
    except KeyboardInterrupt:
        return 0
    raise DemoError(f"Inclavate ended by itself.\n{up.last_words()}")


def _since(begun_at: float) -> str:
    return f"{time.monotonic() - begun_at:.1f} s"


def _shown(path: Path) -> Path:
    return path.relative_to(settings.BASE_DIR)


if __name__ == "__main__":
    sys.exit(main())
