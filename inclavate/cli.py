"""The command `inclavate`: runs the platform's parts, and talks to one over HTTP.

`main` returns the exit code (`EXIT_CODES`). Results go to stdout, everything else to stderr.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, BinaryIO, NoReturn, TextIO

from inclavate.generators import SPEECH, TRANSCRIBE

if TYPE_CHECKING:
    # Imported where they are used: `inclavate --help` must not wait for an HTTP library.
    from inclavate.client import Client, ClientError, Job

    Commands = argparse._SubParsersAction["_Parser"]

DONE, FAILED, USAGE, REFUSED, UNREACHABLE, ENDED, INTERRUPTED = 0, 1, 2, 3, 4, 5, 130
EXIT_CODES = """\
exit codes:
  0    done
  1    the job failed
  2    wrong usage, a bad setting, or a file that cannot be read or written
  3    the server refused the request (4xx), or has no model for it that is ready
  4    the server cannot be reached, or answers 5xx
  5    the job was cancelled, or its deadline passed
  130  interrupted with Ctrl-C; the job was cancelled first
"""
SETTINGS = """\
settings (environment):
  INCLAVATE_URL      the server to talk to (http://127.0.0.1:8001)
  INCLAVATE_API_KEY  a key, where the server asks for one
"""
# What Django's management does for us: name, summary, example.
MANAGED = {
    "up": ("start everything on this machine: web, worker, sweeper, Valkey", "inclavate up"),
    "web": ("run the web process alone", "inclavate web"),
    "worker": ("run one worker alone", "inclavate worker"),
    "sweeper": ("run the sweeper alone", "inclavate sweeper"),
    "verify": ("compare counts and stored objects with the rows", "inclavate verify --store"),
    "health": ("say whether a worker, or the sweeper, of this machine lives", "inclavate health"),
    "sweep": (
        "erase ended jobs in bulk; without --yes, count them",
        "inclavate sweep --state failed --older-than-hours 24",
    ),
    "store": (
        "move what is stored to another store while the platform serves; it can be interrupted, and run again",
        "inclavate store move --workers 16",
    ),
    "voice": (
        "add, list and remove voices of the deployment",
        "inclavate voice add warm --clip warm.wav --consent 'Ann Lee, by contract of 2026-11-02'",
    ),
    "createuser": ("create an account of a hosted deployment", "inclavate createuser ann"),
    "webhooksecret": ("make an owner's new secret for webhooks, and show it once", "inclavate webhooksecret ann"),
    "apikey": ("create, list and revoke API keys", "inclavate apikey create ann --name laptop"),
}
DEFAULT_OUTPUT = "out.wav"


class Stop(Exception):
    """Ends the command with a code and one line on stderr."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


class Progress:
    """Shows a job's way on `stream`: a bar on a terminal; in a pipe a line where something changed, at most one a
    second, and the end; nothing if quiet."""

    WIDTH = 30

    def __init__(self, stream: TextIO, *, is_quiet: bool = False, clock: Callable[[], float] = time.monotonic) -> None:
        self._stream = stream
        self._is_quiet = is_quiet
        self._is_terminal = stream.isatty()
        self._clock = clock
        self._said = ""
        self._said_at = float("-inf")

    def __call__(self, job: Job) -> None:
        if self._is_quiet:
            return
        if self._is_terminal:
            self._draw(job)
            return
        line, now = _stage_of(job), self._clock()
        if line != self._said and (job.is_finished or now - self._said_at >= 1.0):
            self._said, self._said_at = line, now
            print(line, file=self._stream, flush=True)

    def _draw(self, job: Job) -> None:
        share = 1.0 if job.state == "completed" else job.progress_fraction or 0.0
        bar = ("#" * round(share * self.WIDTH)).ljust(self.WIDTH, ".")
        end = "\n" if job.is_finished else ""
        self._stream.write(f"\r\x1b[K[{bar}] {_stage_of(job)}{end}")
        self._stream.flush()
        self._said = "" if end else bar

    def close(self) -> None:
        """End a bar that was left standing."""
        if self._is_terminal and self._said:
            self._stream.write("\n")
            self._said = ""


def _stage_of(job: Job) -> str:
    if job.state != "running" or not job.progress_stage:
        return job.state
    fraction = "" if job.progress_fraction is None else f" {job.progress_fraction:.0%}"
    return f"{job.progress_stage}{fraction}"


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; its exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    try:
        code = _run(words)
        # Here, where a reader that went away can still be met; at exit it would be Python's exit code 120.
        if sys.stdout is not None:
            sys.stdout.flush()
        return code
    except SystemExit as end:  # argparse's and Django's way out
        return end.code if isinstance(end.code, int) else DONE if end.code is None else _complain(str(end.code), USAGE)
    except Stop as stop:
        return _complain(str(stop), stop.code)
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError as error:
        if error.filename:
            return _complain(f"{error.filename}: its reader went away", USAGE)
        # The reader of a pipe went away (`inclavate jobs | head`); Python must not complain about it at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return DONE
    except OSError as error:
        return _complain(f"{error.filename or 'I/O'}: {error.strerror or error}", USAGE)


def _complain(message: str, code: int) -> int:
    print(f"inclavate: {_one_line(message)}", file=sys.stderr)
    return code


def _speed(text: str) -> float:
    with suppress(ValueError):
        if 0 < (number := float(text)) < math.inf:
            return number
    raise argparse.ArgumentTypeError(f"{text!r} is not a number above 0; 1 is the model's own pace, 2 twice as fast")


def _whole(low: int, high: int) -> Callable[[str], int]:
    def read(text: str) -> int:
        with suppress(ValueError):
            if low <= (number := int(text)) <= high:
                return number
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from {low} to {high}")

    return read


def _word(text: str) -> str:
    """Not empty: an unset variable of a script must not pass for the default."""
    if not text.strip():
        raise argparse.ArgumentTypeError("it is empty; give it a value, or leave it out for the default")
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        raise argparse.ArgumentTypeError("it is not UTF-8") from None
    return text


def _file_name(text: str) -> str:
    if not text:
        raise argparse.ArgumentTypeError("an empty name names no file")
    return text


def _run(words: list[str]) -> int:
    parser = build_parser()
    own = {"speak", "transcribe", "jobs", "cancel"}
    if words and not words[0].startswith("-") and words[0] not in own:
        return _manage(parser, words)
    args = parser.parse_args(words)
    if args.version:
        print(f"inclavate {_load_settings().VERSION}")
        return DONE
    if "run" not in args:
        parser.print_help(sys.stderr)
        return USAGE
    return _talk(args)


class _HelpFormatter(argparse.RawDescriptionHelpFormatter):
    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=28, width=100)


class _Parser(argparse.ArgumentParser):
    """Says how to give a word that begins with a dash, where one may have been taken for an option."""

    positional = ""
    _words: Sequence[str] = ()

    def parse_known_args(self, args=None, namespace=None):  # type: ignore[no-untyped-def]
        self._words = list(args or ())
        return super().parse_known_args(args, namespace)

    def error(self, message: str) -> NoReturn:
        odd = next((word for word in self._words if word[:1] == "-" and not self._is_option(word)), None)
        if self.positional and odd is not None and odd != "-":
            message += f"; a {self.positional} that begins with a dash comes last, after --: -- {odd!r}"
        super().error(message)

    def _is_option(self, word: str) -> bool:
        return word == "--" or word.partition("=")[0] in self._option_string_actions


def build_parser() -> _Parser:
    parser = _Parser(
        prog="inclavate",
        description="Speech from text and text from speech, as durable jobs on your own machine.",
        epilog=f"{SETTINGS}\n{EXIT_CODES}\nDjango's own commands work too: inclavate migrate, inclavate shell …",
        formatter_class=_HelpFormatter,
    )
    parser.add_argument("--version", action="store_true", help="print the version and stop")
    commands = parser.add_subparsers(metavar="COMMAND", title="commands")
    for name, (summary, _) in MANAGED.items():
        commands.add_parser(name, help=summary, add_help=False)
    _add_speak(commands)
    _add_transcribe(commands)
    _add_jobs(commands)
    _add_cancel(commands)
    return parser


def _add(
    commands: Commands,
    name: str,
    run: Callable[[Client, argparse.Namespace], int],
    summary: str,
    more: str,
    example: str,
) -> _Parser:
    command = commands.add_parser(
        name,
        help=summary,
        description=f"{summary[0].upper()}{summary[1:]}. {more}".strip(),
        epilog=f"example:\n  {example}\n\n{SETTINGS}\n{EXIT_CODES}",
        formatter_class=_HelpFormatter,
    )
    command.set_defaults(run=run)
    return command


def _add_speak(commands: Commands) -> None:
    command = _add(
        commands,
        "speak",
        speak,
        "speak a text into a WAV file",
        f"""The file's name is printed when it is there.

Without -o the file is {DEFAULT_OUTPUT}, and one that exists is kept (exit code 2). With -o FILE, FILE is
replaced once the new one is whole; a symbolic link stays and the file behind it is replaced; a device or a
FIFO is written to.""",
        'inclavate speak "Good morning." -o morning.wav\n  fortune | inclavate speak - -o - | aplay',
    )
    command.set_defaults(prepare=prepare_speak)
    command.positional = "TEXT"
    command.add_argument(
        "text", metavar="TEXT", help="what to say; - reads it from stdin, as UTF-8; one with a dash first goes after --"
    )
    command.add_argument(
        "-o",
        "--output",
        metavar="FILE",
        type=_file_name,
        help=f"where to write it; - is stdout (default: {DEFAULT_OUTPUT})",
    )
    command.add_argument("--model", type=_word, help="the model's name (default: the first speech model that is ready)")
    command.add_argument("--voice", type=_word, help="one of the model's voices (default: the model's own)")
    command.add_argument("--speed", type=_speed, help="2 is twice as fast, where the model has a pace")
    command.add_argument(
        "--seed",
        type=_whole(-(2**63), 2**63 - 1),
        help="the same seed gives the same sound, where the model honours one",
    )
    _add_quiet(command)


def _add_transcribe(commands: Commands) -> None:
    command = _add(
        commands,
        "transcribe",
        transcribe,
        "print what is said in an audio file",
        "Only the transcript goes to stdout.",
        "inclavate transcribe meeting.wav > meeting.txt",
    )
    command.set_defaults(prepare=prepare_transcribe)
    command.positional = "FILE"
    command.add_argument(
        "file",
        metavar="FILE",
        type=_file_name,
        help="a WAV or MP3 file, or another kind that the model reads; - is stdin",
    )
    command.add_argument(
        "--model", type=_word, help="the model's name (default: the first transcription model that is ready)"
    )
    command.add_argument(
        "--language", type=_word, help="print nothing if another language than this is heard (en, de …)"
    )
    _add_quiet(command)


def _add_jobs(commands: Commands) -> None:
    command = _add(commands, "jobs", jobs, "list jobs, newest first", "", "inclavate jobs --limit 5")
    command.add_argument("--limit", type=_whole(1, 10**9), default=20, help="how many (default: 20, at most 1000)")
    command.add_argument("--json", action="store_true", help="one JSON object a line")


def _add_cancel(commands: Commands) -> None:
    command = _add(commands, "cancel", cancel, "stop a job, waiting or running", "", "inclavate cancel 9f1c7b52-…")
    command.add_argument("id", metavar="ID", type=_word, help="the job's id, as `inclavate jobs` shows it")


def _add_quiet(command: _Parser) -> None:
    command.add_argument("-q", "--quiet", action="store_true", help="show no progress")


def _load_settings() -> ModuleType:
    from django.core.exceptions import ImproperlyConfigured

    try:
        from inclavate import settings
    except ImproperlyConfigured as error:
        raise Stop(USAGE, str(error)) from None
    return settings


def _manage(parser: _Parser, words: list[str]) -> int:
    """Hand the command to Django's management."""
    _load_settings()
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "inclavate.settings")  # noqa: TID251 (Django is told in no other way)
    import django
    from django.core.management import ManagementUtility, get_commands, load_command_class
    from django.db import OperationalError, ProgrammingError

    django.setup()
    name = words[0]
    if name not in {"help", *get_commands()}:
        parser.error(f"there is no command {name!r}; inclavate --help lists them")
    if name in MANAGED and {"-h", "--help"} & set(words):
        example = f"example: {MANAGED[name][1]}"
        load_command_class(get_commands()[name], name).create_parser("inclavate", name, epilog=example).print_help()
        return DONE
    if name in MANAGED:
        _check_words(words)
    try:
        ManagementUtility(["inclavate", *words]).execute()
    except (OperationalError, ProgrammingError) as error:
        # It does not answer, or has not got the tables.
        raise Stop(FAILED, f"the database cannot be used: {error}") from error
    return DONE


def _check_words(words: Sequence[str]) -> None:
    for word in words:
        try:
            word.encode("utf-8")
        except UnicodeEncodeError:
            raise Stop(USAGE, f"{word!r} is not UTF-8") from None


def _talk(args: argparse.Namespace) -> int:
    settings = _load_settings()
    from inclavate.client import Client, ClientError

    _check_settings(settings)
    if "prepare" in args:
        args.prepare(args)
    try:
        with Client(settings.URL, settings.API_KEY or None) as client:
            # Tried once, where the others are tried for seconds: an absent server is told at once.
            client.health()
            code: int = args.run(client, args)
            return code
    except ClientError as error:
        return _complain(f"{error}{_advice(error)}", _code_of(error))


def _check_settings(settings: ModuleType) -> None:
    # Not in the settings themselves: the platform never sends this key, and must start without it.
    if not (settings.API_KEY.isascii() and settings.API_KEY.isprintable()):
        raise Stop(USAGE, "INCLAVATE_API_KEY may hold printable ASCII characters only, and holds others")


def _code_of(error: ClientError) -> int:
    from inclavate.client import JobFailed, NoModel, Refused

    match error:
        case JobFailed(job=job):
            return FAILED if job.state == "failed" else ENDED
        case Refused(status=status):
            # 507 is a full quota: a refusal, whatever its number.
            return REFUSED if status < 500 or status == 507 else UNREACHABLE
        case NoModel():
            return REFUSED
    return UNREACHABLE


def _advice(error: ClientError) -> str:
    from inclavate.client import Refused, Unreachable

    match error:
        case Unreachable(is_unsent=True):
            return " Start one with `inclavate up`, or set INCLAVATE_URL."
        case Refused(status=401):
            return " Set INCLAVATE_API_KEY to a key that this server knows."
    return ""


def _finish(client: Client, job: Job, args: argparse.Namespace) -> Job:
    """Follow the job to its end, with its progress on stderr. Ctrl-C cancels it."""
    from inclavate.client import ClientError

    progress = Progress(sys.stderr, is_quiet=args.quiet)
    try:
        return client.wait(job.id, progress)
    except KeyboardInterrupt:
        progress.close()
        with suppress(ClientError):
            client.cancel(job.id)
        _complain(f"interrupted; job {job.id} is cancelled", INTERRUPTED)
        raise
    finally:
        progress.close()


def _stdin() -> BinaryIO:
    if sys.stdin is None:
        raise Stop(USAGE, "stdin is closed")
    return sys.stdin.buffer


def prepare_speak(args: argparse.Namespace) -> None:
    """What can be wrong before anything is sent: the text's encoding, the output's place."""
    try:
        args.text = _stdin().read().decode("utf-8") if args.text == "-" else args.text
        args.text.encode("utf-8")
    except UnicodeError:
        raise Stop(USAGE, "the text is not UTF-8") from None
    if args.output == "-" or _is_stdout(args.output):
        if sys.stdout is None:
            raise Stop(USAGE, f"-o {args.output} writes to stdout, which is closed")
        if sys.stdout.isatty():
            raise Stop(USAGE, f"-o {args.output} writes a sound file to stdout, which is a terminal here; redirect it")
        return
    if args.output is None and os.path.lexists(DEFAULT_OUTPUT):
        raise Stop(USAGE, f"{DEFAULT_OUTPUT} exists and is kept; name another file, or this one, with -o")
    _check_output(args.output or DEFAULT_OUTPUT)


def _check_output(target: str) -> None:
    from inclavate.client.files import check_target

    try:
        check_target(target)
    except IsADirectoryError:
        raise Stop(USAGE, f"{target} is a folder; -o takes a file") from None
    except OSError as error:
        raise Stop(USAGE, f"{target} cannot be written: {error.strerror}") from None


def _is_stdout(target: str | None) -> bool:
    """Whether it is stdout under another name (`/dev/stdout`)."""
    with suppress(OSError, AttributeError, ValueError):
        return target is not None and os.path.samestat(os.stat(target), os.fstat(sys.stdout.fileno()))  # noqa: PTH116
    return False


def speak(client: Client, args: argparse.Namespace) -> int:
    model = args.model or client.first_ready(SPEECH).model
    params = {name: value for name in ("text", "voice", "speed") if (value := getattr(args, name)) is not None}
    job = _finish(client, client.submit(model, "audio", params, seed=args.seed), args)
    if args.output == "-":
        with (
            tempfile.TemporaryDirectory() as folder,
            client.download(_output(job), Path(folder) / "speech").open("rb") as file,
        ):
            shutil.copyfileobj(file, sys.stdout.buffer)
            sys.stdout.buffer.flush()
        return DONE
    path = client.download(_output(job), args.output or DEFAULT_OUTPUT)
    if not args.quiet and not _is_stdout(args.output):
        # As bytes: a file's name need not be UTF-8.
        sys.stdout.buffer.write(os.fsencode(path) + b"\n")
    return DONE


def _output(job: Job) -> str:
    if not job.output_artifacts:
        raise Stop(FAILED, f"job {job.id} completed, but what it made is no longer there")
    return job.output_artifacts[0]


def prepare_transcribe(args: argparse.Namespace) -> None:
    """What can be wrong before anything is sent. A pipe tells only when it is read."""
    if args.file == "-":
        if _stdin().isatty():
            raise Stop(USAGE, "- reads a sound file from stdin, which is a terminal here; redirect it")
        return
    path = Path(args.file)
    if not path.exists():
        raise Stop(USAGE, f"there is no file {path}")
    if path.is_dir():
        raise Stop(USAGE, f"{path} is a folder; transcribe takes a file")
    if not os.access(path, os.R_OK):
        raise Stop(USAGE, f"{path} cannot be read: permission denied")
    if path.is_file() and not path.stat().st_size:
        raise Stop(USAGE, f"{path} is empty")


def transcribe(client: Client, args: argparse.Namespace) -> int:
    """As a job of its own, not by the synchronous route: it can be watched, cancelled, and take any time."""
    from inclavate.client import JobFailed, Refused

    model = args.model or client.first_ready(TRANSCRIBE).model
    name = "stdin" if args.file == "-" else args.file
    clip_id = None
    try:
        clip_id = _upload(client, args.file, name)
        params = {"language": args.language} if args.language else {}
        job = _finish(client, client.submit(model, "text", params, input_artifacts=[clip_id]), args)
        print(client.read_text(_output(job)).strip())
    except (JobFailed, Refused) as error:
        # The server knows the file by an id that nobody else has seen.
        reason = str(error).replace(f"artifact {clip_id}", "the file")
        raise Stop(_code_of(error), f"{name}: {reason}{_advice(error)}") from error
    finally:
        _forget(client, clip_id)
    return DONE


def _upload(client: Client, source: str, name: str) -> str:
    """The artifact's id."""
    from inclavate.client import guess_media_type
    from inclavate.client.files import rewindable, size_of_rest

    with ExitStack() as stack:
        opened = _stdin() if source == "-" else stack.enter_context(Path(source).open("rb"))
        file = stack.enter_context(rewindable(opened))
        if not size_of_rest(file):
            raise Stop(USAGE, f"{name} is empty")
        return client.upload(file, guess_media_type(Path(source))).id


def _forget(client: Client, artifact_id: str | None) -> None:
    from inclavate.client import ClientError

    if artifact_id is not None:
        with suppress(ClientError):
            client.delete_artifact(artifact_id)


def jobs(client: Client, args: argparse.Namespace) -> int:
    page = client.jobs(limit=args.limit)
    for job in page.jobs:
        print(_as_json(job) if args.json else _as_row(job))
    if page.is_truncated and not args.json:
        print(f"… and more; --limit {args.limit * 2} shows more of them", file=sys.stderr)
    return DONE


def _as_json(job: Job) -> str:
    values = asdict(job)
    del values["revision"]
    return json.dumps(values, default=lambda time: time.isoformat(timespec="milliseconds"), ensure_ascii=False)


def _as_row(job: Job) -> str:
    created = f"{job.created_at.astimezone():%Y-%m-%d %H:%M:%S}" if job.created_at else ""
    params = job.params or {}
    about = job.error_message or params.get("text") or params.get("prompt") or ""
    return f"{job.id}  {job.state:<9}  {created:<19}  {job.model:<20}  {_one_line(str(about))[:60]}".rstrip()


def cancel(client: Client, args: argparse.Namespace) -> int:
    job = client.cancel(args.id)
    print(f"{job.id}  {job.state}{' (cancel requested)' if not job.is_finished else ''}")
    return DONE


def _one_line(text: str) -> str:
    """What a server sends must not move a terminal's cursor."""
    return " ".join("".join(letter if letter.isprintable() else " " for letter in text).split())


if __name__ == "__main__":
    sys.exit(main())
