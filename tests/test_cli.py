"""The command `inclavate`, as a shell sees it: exit codes, stdout, stderr, files."""

from __future__ import annotations

import io
import json
import os
import pty
import re
import signal
import socket
import subprocess
import sys
import threading
import wave
from contextlib import contextmanager
from pathlib import Path

import pytest

from inclavate import cli
from inclavate.client import BadAnswer, Client, Job, JobFailed, NoModel, Refused, Unreachable
from tests import platforms
from tests.driving import until
from tests.network import serving

ROOT = Path(__file__).resolve().parent.parent
OWN = ("speak", "transcribe", "jobs", "cancel")
LONG_TEXT = "This is one of very many sentences that nobody will ever hear. " * 500


class Shell:
    """Runs `inclavate` in a folder of its own, against one server."""

    def __init__(self, folder: Path, url: str) -> None:
        self.folder, self.url = folder, url

    def start(self, *words: str, **options) -> subprocess.Popen:
        kept = {name: value for name, value in os.environ.items() if not name.startswith("INCLAVATE_")}
        env = kept | {"INCLAVATE_URL": self.url, "PYTHONPATH": str(ROOT), **options.pop("env", {})}
        pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | options
        return subprocess.Popen([sys.executable, "-m", "inclavate.cli", *words], cwd=self.folder, env=env, **pipes)

    def run(self, *words: str, stdin: bytes | None = None, **options) -> tuple[int, bytes, str]:
        """The exit code, stdout and stderr."""
        source = {} if stdin is None else {"stdin": subprocess.PIPE}
        process = self.start(*words, **source, **options)
        out, err = process.communicate(stdin, timeout=90)
        assert b"Traceback" not in err
        return process.returncode, out, err.decode()


@pytest.fixture
def shell(tmp_path):
    """A shell whose server is not there: nobody listens on port 1."""
    return Shell(tmp_path, "http://127.0.0.1:1")


@contextmanager
def gateway(folder: Path, status: int):
    """A shell in front of a gateway whose server is down."""
    with serving(lambda call: call.answer(status, b"<html>\x1b[2J", x_should_retry="false")) as server:
        yield Shell(folder, server.url)


# Help


@pytest.mark.parametrize("command", OWN)
def test_each_command_has_a_help_with_an_example_and_the_exit_codes(command, capsys):
    assert cli.main([command, "--help"]) == 0
    told = capsys.readouterr().out
    assert f"example:\n  inclavate {command}" in told
    assert cli.EXIT_CODES in told


@pytest.mark.parametrize("command", cli.MANAGED)
def test_each_part_of_the_platform_has_a_help_with_an_example(command, shell):
    code, out, _ = shell.run(command, "--help")
    assert code == 0
    assert f"usage: inclavate {command}".encode() in out
    assert f"example: inclavate {command}".encode() in out


def test_the_help_lists_every_command(capsys):
    assert cli.main(["--help"]) == 0
    told = capsys.readouterr().out
    assert set(re.findall(r"^    (\w+)", told, re.MULTILINE)) == {*OWN, *cli.MANAGED}


def test_help_waits_for_no_library():
    program = (
        "import sys; from inclavate.cli import main; main(['speak', '--help']);"
        "sys.exit(bool({'httpx', 'django', 'celery'} & sys.modules.keys()))"
    )
    assert subprocess.run([sys.executable, "-c", program], cwd=ROOT, stdout=subprocess.DEVNULL).returncode == 0


def test_the_version_is_told(shell):
    code, out, _ = shell.run("--version")
    assert (code, out) == (0, b"inclavate 0.1.0\n")


def test_other_commands_of_django_are_passed_on(shell):
    code, out, _ = shell.run("check", "--help")
    assert code == 0
    assert b"usage: inclavate check" in out


# Wrong usage


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["nonsense"],
        ["speak"],
        ["speak", "Hello.", "--speed", "fast"],
        ["speak", "Hello.", "--speed", "nan"],
        ["jobs", "--limit", "many"],
        ["transcribe", "absent.wav"],
        ["speak", "Hello.", "-o", "absent/out.wav"],
        ["speak", "Hello.", "-o", "."],
        ["speak", "\udcff"],
        ["speak", "Hello.", "--voice", "\udcff"],
        ["speak", "Hello.", "-o", ""],
        ["speak", "Hello.", "-o", "a.wav/"],
        ["speak", "Hello.", "-o", "new/."],
        ["speak", "Hello.", "-o", "a" * 256],
        ["speak", "Hello.", "--speed", "0"],
        ["speak", "Hello.", "--seed", str(2**63)],
        ["speak", "Hello.", "--model", ""],
        ["speak", "Hello.", "--voice", " "],
        ["jobs", "--limit", "0"],
        ["cancel", ""],
        ["transcribe", ""],
        ["transcribe", "."],
        ["transcribe", "absent.wav", "--language", ""],
    ],
)
def test_wrong_usage_is_told_and_ends_with_2(words, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert cli.main(words) == 2
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err


def test_a_text_that_is_not_utf_8_ends_with_2(shell):
    assert shell.run("speak", "-", stdin=b"\xff\xfe") == (2, b"", "inclavate: the text is not UTF-8\n")


def test_an_existing_out_wav_is_kept(shell):
    (shell.folder / "out.wav").write_bytes(b"mine")
    code, _, err = shell.run("speak", "Hello.")
    assert (code, (shell.folder / "out.wav").read_bytes()) == (2, b"mine")
    assert err == "inclavate: out.wav exists and is kept; name another file, or this one, with -o\n"


@pytest.mark.parametrize("command", ["jobs", "up"])
def test_a_bad_setting_is_named_in_one_sentence(command, shell):
    code, _, err = shell.run(command, env={"INCLAVATE_PORT": "x"})
    assert (code, err) == (2, "inclavate: INCLAVATE_PORT must be a number (int), not 'x'.\n")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["speak", "Hi.", "--speed", "nan"], "argument --speed: 'nan' is not a number above 0"),
        (["speak", "Hi.", "--speed", "inf"], "argument --speed: 'inf' is not a number above 0"),
        (["speak", "Hi.", "--speed", "-1"], "argument --speed: '-1' is not a number above 0"),
        (["jobs", "--limit", "0"], "argument --limit: '0' is not a whole number from 1 to 1000000000"),
        (["speak", "Hi.", "--model", ""], "argument --model: it is empty; give it a value, or leave it out"),
        (["speak", "Hi.", "-o", ""], "argument -o/--output: an empty name names no file"),
        (["speak", "Hi.", "-o", "a.wav/"], "a.wav/ is a folder; -o takes a file"),
        (["speak", "Hi.", "-o", "absent/a.wav"], "absent/a.wav cannot be written: No such file or directory"),
        (["speak", "Hi.", "-o", f"{'a' * 256}"], "aaa cannot be written: File name too long"),
        (["speak", "-hello"], "a TEXT that begins with a dash comes last, after --: -- '-hello'"),
        (["speak", "-oops"], "a TEXT that begins with a dash comes last, after --: -- '-oops'"),
        (["transcribe", "-a.wav"], "a FILE that begins with a dash comes last, after --: -- '-a.wav'"),
        (["transcribe", "absent.wav"], "there is no file absent.wav"),
        (["transcribe", "."], ". is a folder; transcribe takes a file"),
    ],
)
def test_wrong_usage_is_told_in_a_sentence_that_says_what_is_right(words, told, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert cli.main(words) == 2
    assert told in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_a_missing_text_is_not_blamed_on_a_dash(capsys):
    assert cli.main(["speak", "-o", "a.wav", "--speed=2"]) == 2
    assert "dash" not in capsys.readouterr().err


@pytest.mark.parametrize("key", ["clé", "se\ncret", "se\x7fcret", b"se\xffcret"])
def test_a_key_that_cannot_be_sent_is_refused_and_never_shown(key, shell):
    assert shell.run("jobs", env={"INCLAVATE_API_KEY": key}) == (
        2,
        b"",
        "inclavate: INCLAVATE_API_KEY may hold printable ASCII characters only, and holds others\n",
    )


@pytest.mark.parametrize("name", ["URL", "PORT", "DATABASE_URL"])
def test_a_setting_that_is_set_to_nothing_is_not_the_default(name, shell):
    code, _, err = shell.run("jobs", env={f"INCLAVATE_{name}": " "})
    assert code == 2
    assert err == f"inclavate: INCLAVATE_{name} is empty: give it a value, or unset it for the default.\n"


def test_where_nothing_is_the_default_an_empty_setting_is_none(shell):
    code, _, err = shell.run("jobs", env={"INCLAVATE_API_KEY": "", "INCLAVATE_ADMIN_TOKEN": ""})
    assert (code, "cannot be reached" in err) == (4, True)


@pytest.mark.parametrize(
    ("host", "url"),
    [
        ("127.0.0.1", "http://127.0.0.1:8001"),
        ("0.0.0.0", "http://127.0.0.1:8001"),
        ("::", "http://[::1]:8001"),
        ("fd00::2", "http://[fd00::2]:8001"),
        ("box.test", "http://box.test:8001"),
    ],
)
def test_the_address_to_listen_on_is_told_as_one_that_can_be_opened(host, url):
    program = "from inclavate.settings import LISTEN_URL; print(LISTEN_URL)"
    env = os.environ | {"INCLAVATE_HOST": host, "INCLAVATE_URL": "http://elsewhere.test"}
    assert subprocess.check_output([sys.executable, "-c", program], cwd=ROOT, env=env, text=True) == f"{url}\n"


def test_an_empty_sound_file_is_told_by_its_name(shell):
    (shell.folder / "none.wav").touch()
    assert shell.run("transcribe", "none.wav") == (2, b"", "inclavate: none.wav is empty\n")


@pytest.mark.parametrize("words", [["speak", "-"], ["transcribe", "-"]])
def test_a_stdin_that_is_closed_is_told(words, shell):
    closed = subprocess.run(
        ["sh", "-c", 'exec "$@" <&-', "sh", sys.executable, "-m", "inclavate.cli", *words],
        cwd=shell.folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert (closed.returncode, closed.stderr) == (2, "inclavate: stdin is closed\n")


def test_a_terminal_is_no_sound_file_and_gets_none(shell):
    controller, terminal = pty.openpty()
    hearing = shell.start("transcribe", "-", stdin=terminal)
    _, err = hearing.communicate(timeout=60)
    assert (hearing.returncode, b"which is a terminal here" in err) == (2, True)
    for target in ("-", "/dev/stdout"):
        code, _, err = shell.run("speak", "Hello.", "-o", target, stdout=terminal)
        assert (code, "which is a terminal here" in err) == (2, True)
    os.close(controller)
    os.close(terminal)


def test_a_unix_socket_is_refused_before_the_job(shell):
    with socket.socket(socket.AF_UNIX) as held:
        held.bind(str(shell.folder / "s"))
        code, _, err = shell.run("speak", "Hello.", "-o", "s")
    assert (code, err) == (2, "inclavate: s cannot be written: a socket cannot be opened by its name\n")


def test_a_dangling_out_wav_is_kept_too(shell):
    (shell.folder / "out.wav").symlink_to("gone/elsewhere.wav")
    code, _, err = shell.run("speak", "Hello.")
    assert (code, "out.wav exists and is kept" in err) == (2, True)


# Words of the platform's own commands


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["createuser", ""], "name must be 1 to 150 letters, digits, and @ . + - _; not ''."),
        (["createuser", "a" * 200], "name must be 1 to 150 letters, digits, and @ . + - _; 200 characters came."),
        (["createuser", "a\nb"], r"name must be 1 to 150 letters, digits, and @ . + - _; not 'a\nb'."),
        (["createuser", " ann"], "name must be 1 to 150 letters, digits, and @ . + - _; not ' ann'."),
        (["createuser", "a/b"], "name must be"),
        (["createuser", os.fsdecode(b"\xff")], "is not UTF-8"),
        (["apikey", "create", os.fsdecode(b"\xff")], "is not UTF-8"),
        (["sweep", "--older-than-hours", "nan"], "--older-than-hours must be between 0 and 1,000,000, not nan."),
        (["sweep", "--older-than-hours", "inf"], "not inf."),
        (["sweep", "--older-than-hours", "1e8"], "not 1e+08."),
        (["sweep", "--older-than-hours=-1"], "not -1."),
        (["sweep", "--state", "running"], "--state must be one of completed, failed, cancelled, expired (may be"),
        (["worker", "--slots=-3"], "--slots must be between 1 and 64, not -3."),
        (["worker", "--slots", "0"], "--slots must be between 1 and 64, not 0."),
        (["worker", "--slots", "65"], "--slots must be between 1 and 64, not 65."),
        (["worker", "--name", "../../evil"], "--name must be 1 to 100 letters of ASCII, digits, dots"),
        (["worker", "--name", ".."], "not '..'."),
        (["worker", "--name", "a\nb"], r"not 'a\nb'."),
        (["worker", "--name", ""], "not ''."),
        (["worker", "--name", "a" * 101], "--name must be"),
        (["web", "--port", "99999"], "--port must be between 1 and 65535, not 99999."),
        (["web", "--port", "0"], "--port must be between 1 and 65535, not 0."),
        (["web", "--port=-1"], "--port must be between 1 and 65535, not -1."),
        (["web", "--host", "nonsense.invalid"], "Cannot listen on nonsense.invalid:8001: "),
        (["web", "--host", "a" * 70], "is no name of a host."),
        (["createuser", "ann"], "the database cannot be used: "),
        (["verify"], "the database cannot be used: "),
    ],
)
def test_nonsense_for_a_part_of_the_platform_is_one_line_and_ends_it(words, sentence, shell):
    code, out, err = shell.run(*words, env={"INCLAVATE_DATA_DIR": str(shell.folder)})
    assert (code in (1, 2), out, err.count("\n")) == (True, b"", 1), err
    assert sentence in err


def test_a_host_that_is_no_name_stops_up_too(shell):
    environment = {"INCLAVATE_DATA_DIR": str(shell.folder), "INCLAVATE_HOST": "a" * 70}
    code, _, err = shell.run("up", env=environment)
    assert (code, err.count("\n"), "is no name of a host." in err) == (1, 1, True)


@pytest.mark.parametrize(("line", "sentence"), [(b"", "no password on stdin"), (b"\xff\n", "is not UTF-8")])
def test_a_password_that_cannot_be_read_is_told(line, sentence, shell):
    code, _, err = shell.run(
        "createuser", "ann", "--password-stdin", stdin=line, env={"INCLAVATE_DATA_DIR": str(shell.folder)}
    )
    assert (code, err.count("\n"), sentence in err) == (1, 1, True)


def test_the_sweepers_health_is_that_of_its_last_sweep(shell, platform):
    def health(data_dir):
        return shell.run("health", "--sweeper", env={"INCLAVATE_DATA_DIR": str(data_dir)})

    assert until(lambda: health(platform.data_dir)[0] == 0)
    assert health(platform.data_dir)[1].startswith(b"alive: swept ")
    code, out, err = health(shell.folder)
    assert (code, out, "No sweeper has yet swept" in err) == (1, b"", True)
    (shell.folder / "sweeper.beat").touch()
    os.utime(shell.folder / "sweeper.beat", (0, 0))
    code, out, err = health(shell.folder)
    assert (code, out, "s ago; the limit is 75 s." in err) == (1, b"", True)


def test_a_model_that_is_named_twice_is_offered_once(platform):
    quick = {"HEARTBEAT_SECONDS": "0.5", "LEASE_SECONDS": "5"}
    env = platforms.environment(platform.data_dir, MODELS_FILE=str(platform.log.parent / "models.toml"), **quick)
    words = ["worker", "--name", "twice", "--model", "test-echo", "--model", "test-echo"]
    offers = "SELECT count(*) FROM inclavate_offer WHERE worker_id IN (SELECT id FROM inclavate_worker WHERE name = ?)"
    worker = subprocess.Popen([sys.executable, "-m", "inclavate.cli", *words], cwd=ROOT, env=env)
    try:
        assert until(lambda: worker.poll() is not None or platform.rows(offers, "twice") == [(1,)])
        assert worker.poll() is None
    finally:
        worker.terminate()
        worker.wait()


# Servers that are not there


@pytest.mark.parametrize("words", [["jobs"], ["cancel", "1"], ["speak", "Hello."]])
def test_a_server_that_is_not_there_ends_with_4_and_one_line(words, shell):
    code, out, err = shell.run(*words)
    assert (code, out) == (4, b"")
    assert err == (
        "inclavate: http://127.0.0.1:1 cannot be reached: connection refused. "
        "Start one with `inclavate up`, or set INCLAVATE_URL.\n"
    )


def test_an_address_that_is_none_ends_with_4(tmp_path):
    code, _, err = Shell(tmp_path, "localhost").run("jobs")
    assert code == 4
    assert "'localhost' is no address" in err


@pytest.mark.parametrize("status", [200, 301, 500, 502])
def test_an_answer_that_is_not_inclavates_ends_with_4(status, tmp_path):
    with gateway(tmp_path, status) as shell:
        code, out, err = shell.run("jobs")
    assert (code, out, err.count("\n")) == (4, b"", 1)
    assert "\x1b" not in err


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (JobFailed(Job("1", "failed")), 1),
        (Refused(400, "no_prompt", "Blank."), 3),
        (Refused(507, "quota_exhausted", "Full."), 3),
        (NoModel("None."), 3),
        (Refused(500, "internal", "Oops."), 4),
        (Refused(503, "unavailable", "Busy."), 4),
        (Unreachable("Gone."), 4),
        (BadAnswer("What?"), 4),
        (JobFailed(Job("1", "cancelled")), 5),
        (JobFailed(Job("1", "expired")), 5),
    ],
)
def test_every_error_has_its_exit_code(error, code):
    assert cli._code_of(error) == code


# Progress


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_a_pipe_gets_plain_lines_at_most_one_a_second_and_the_end():
    stream = io.StringIO()
    progress = cli.Progress(stream, clock=iter([0.0, 0.1, 0.9, 1.0, 1.9, 2.0]).__next__)
    for fraction in (0.0, 0.1, 0.2, 0.3, 0.4):
        progress(Job("1", "running", progress_stage="generating", progress_fraction=fraction))
    progress(Job("1", "completed"))
    assert stream.getvalue() == "generating 0%\ngenerating 30%\ncompleted\n"


def test_a_stage_that_did_not_change_is_not_told_twice():
    stream = io.StringIO()
    progress = cli.Progress(stream, clock=iter(range(0, 1000, 10)).__next__)
    for _ in range(5):
        progress(Job("1", "queued"))
    assert stream.getvalue() == "queued\n"


def test_a_terminal_gets_a_bar_that_grows_and_ends_its_line():
    stream = Terminal()
    progress = cli.Progress(stream)
    progress(Job("1", "running", progress_stage="generating", progress_fraction=0.5))
    assert stream.getvalue() == f"\r\x1b[K[{'#' * 15}{'.' * 15}] generating 50%"
    progress(Job("1", "completed"))
    assert stream.getvalue().endswith(f"[{'#' * 30}] completed\n")


def test_a_bar_that_is_left_standing_is_ended():
    stream = Terminal()
    progress = cli.Progress(stream)
    progress(Job("1", "queued"))
    progress.close()
    progress.close()
    assert stream.getvalue().endswith("queued\n")


def test_quiet_says_nothing():
    stream = Terminal()
    cli.Progress(stream, is_quiet=True)(Job("1", "completed"))
    assert stream.getvalue() == ""


# Against the platform


@pytest.fixture
def live(platform, tmp_path):
    return Shell(tmp_path, platform.url)


@pytest.fixture
def client(platform):
    with Client(platform.url) as client:
        yield client


def seconds_of(path: Path) -> float:
    with wave.open(str(path)) as sound:
        return sound.getnframes() / sound.getframerate()


def test_a_sentence_is_spoken_into_a_file_and_read_back(live):
    code, out, err = live.run("speak", "Good morning. This is a short test.", "-o", "said.wav")
    assert (code, out) == (0, b"said.wav\n")
    assert err.splitlines()[-1] == "completed"
    assert "\r" not in err
    assert seconds_of(live.folder / "said.wav") > 0.5
    code, out, err = live.run("transcribe", "said.wav")
    assert code == 0
    assert b"good morning" in out.lower()
    assert out.count(b"\n") == 1
    assert err.splitlines()[-1] == "completed"


def test_text_comes_from_stdin_and_sound_goes_to_stdout(live):
    code, out, err = live.run("speak", "-", "-o", "-", "--quiet", stdin=b"Ein Schiff, a ship.\n")
    assert (code, err, out[:4]) == (0, "", b"RIFF")
    assert not list(live.folder.iterdir())


def test_a_named_file_is_replaced(live):
    (live.folder / "said.wav").write_bytes(b"old")
    assert live.run("speak", "Hello.", "-o", "said.wav", "-q") == (0, b"", "")
    assert (live.folder / "said.wav").read_bytes()[:4] == b"RIFF"


def test_a_name_of_any_legal_length_is_written(live):
    name = f"{'a' * 251}.wav"
    assert live.run("speak", "Hello.", "-o", name, "-q") == (0, b"", "")
    assert [path.name for path in live.folder.iterdir()] == [name]


def test_a_name_that_is_not_utf_8_is_written_and_told(live):
    name = os.fsdecode(b"\xff.wav")
    code, out, _ = live.run("speak", "Hello.", "-o", name)
    assert (code, out) == (0, b"\xff.wav\n")
    assert seconds_of(live.folder / name) > 0.1


def test_a_link_stays_and_the_file_behind_it_is_replaced_whole(live):
    (live.folder / "far").mkdir()
    (live.folder / "far" / "real.wav").write_bytes(b"old")
    (live.folder / "link.wav").symlink_to("far/real.wav")
    assert live.run("speak", "Hello.", "-o", "link.wav", "-q") == (0, b"", "")
    assert (live.folder / "link.wav").readlink() == Path("far/real.wav")
    assert seconds_of(live.folder / "far" / "real.wav") > 0.1
    assert [path.name for path in (live.folder / "far").iterdir()] == ["real.wav"]


@pytest.mark.parametrize("name", ["pipe", "link"])
def test_a_fifo_is_written_to_and_stays(name, live):
    pipe = live.folder / "pipe"
    os.mkfifo(pipe)
    (live.folder / "link").symlink_to("pipe")
    speaking = live.start("speak", "Hello.", "-o", name, "-q")
    sound = pipe.read_bytes()
    assert speaking.wait(60) == 0
    assert (sound[:4], pipe.is_fifo(), (live.folder / "link").is_symlink()) == (b"RIFF", True, True)
    with wave.open(io.BytesIO(sound)) as whole:
        assert whole.getnframes() > 1000


def test_a_fifo_whose_reader_went_away_is_an_error(live):
    pipe = live.folder / "pipe"
    os.mkfifo(pipe)
    # Longer than a pipe holds.
    speaking = live.start("speak", "This takes more than a second to say. " * 5, "-o", "pipe", "-q")
    with pipe.open("rb") as reader:
        assert reader.read(4) == b"RIFF"
    _, err = speaking.communicate(timeout=60)
    assert (speaking.returncode, err) == (2, b"inclavate: pipe: its reader went away\n")


def test_stdout_under_its_other_name_gets_the_sound_alone_and_keeps_what_was_there(live):
    whole = live.folder / "all.bin"
    with whole.open("ab") as file:
        file.write(b"before")
        file.flush()
        speaking = live.start("speak", "Hello.", "-o", "/dev/fd/1", stdout=file)
        assert speaking.wait(60) == 0
    assert whole.read_bytes()[:10] == b"beforeRIFF"
    with wave.open(io.BytesIO(whole.read_bytes()[6:])) as sound:
        assert sound.getnframes() * 2 == len(whole.read_bytes()) - 6 - 44


def test_a_text_that_begins_with_a_dash_is_spoken_after_two(live):
    assert live.run("speak", "-q", "-o", "said.wav", "--", "-hello") == (0, b"", "")
    assert seconds_of(live.folder / "said.wav") > 0.1


def test_sound_is_read_from_stdin_and_from_pipes(live):
    assert live.run("speak", "Good morning.", "-o", "said.wav", "-q") == (0, b"", "")
    sound = (live.folder / "said.wav").read_bytes()
    os.mkfifo(live.folder / "pipe")
    for source in ("-", "/dev/stdin"):
        code, out, err = live.run("transcribe", source, "-q", stdin=sound)
        assert (code, err, b"good morning" in out.lower()) == (0, "", True)
    hearing = live.start("transcribe", "pipe", "-q")
    (live.folder / "pipe").write_bytes(sound)
    out, _ = hearing.communicate(timeout=60)
    assert (hearing.returncode, b"good morning" in out.lower()) == (0, True)
    with (live.folder / "said.wav").open("rb") as file:
        hearing = live.start("transcribe", "-", "-q", stdin=file)
        assert b"good morning" in hearing.communicate(timeout=60)[0].lower()


def test_an_empty_pipe_is_told(live):
    assert live.run("transcribe", "-", stdin=b"") == (2, b"", "inclavate: stdin is empty\n")


def test_what_is_wrong_with_a_sound_file_is_told_by_its_name(live, client):
    (live.folder / "t.txt").write_text("Only letters.")
    code, out, err = live.run("transcribe", "t.txt")
    assert (code, out) == (3, b"")
    assert err.startswith("inclavate: t.txt: whisper-tiny.en cannot read ")
    assert not re.search(r"[0-9a-f]{8}-[0-9a-f]{4}", err)
    code, _, err = live.run("transcribe", "-", stdin=b"Only letters.")
    assert (code, err.startswith("inclavate: stdin: ")) == (3, True)


def test_a_refusal_ends_with_3_and_the_servers_sentence(live):
    for words in (["speak", "  "], ["speak", "Hello.", "--voice", "nobody"], ["speak", "Hello.", "--model", "nobody"]):
        code, out, err = live.run(*words)
        assert (code, out, err.count("\n")) == (3, b"", 1)
        assert not list(live.folder.iterdir())
    assert "nobody" in err


def test_a_job_that_fails_ends_with_1_and_leaves_no_upload(live, client):
    (live.folder / "broken.wav").write_bytes(b"RIFF\x24\0\0\0WAVEbroken")
    code, out, err = live.run("transcribe", "broken.wav")
    assert (code, out) == (1, b"")
    assert err.splitlines()[-1].startswith("inclavate: broken.wav: Job ")
    assert "failed (" in err.splitlines()[-1]
    with pytest.raises(Refused, match="no artifact"):
        client.artifact(client.jobs(limit=1).jobs[0].input_artifacts[0])


def test_jobs_are_listed_for_people_and_for_programs(live, client):
    job = client.submit(client.first_ready("text-to-speech").model, "audio", {"text": "Listed\n\x1b[2Jhere."})
    code, out, _ = live.run("jobs", "--limit", "1")
    assert code == 0
    assert out.decode().startswith(job.id)
    assert b"Listed" in out
    assert b"\x1b" not in out
    code, out, _ = live.run("jobs", "--json")
    rows = [json.loads(line) for line in out.splitlines()]
    assert (code, rows[0]["id"], rows[0]["params"]["text"]) == (0, job.id, "Listed\n\x1b[2Jhere.")
    client.wait(job.id)


def test_a_listing_that_nobody_reads_to_its_end_is_no_error(live, client):
    client.wait(client.submit(client.first_ready("text-to-speech").model, "audio", {"text": "One."}).id)
    read, write = os.pipe()
    os.close(read)
    # As many as there may be of other tests', or what is left out would be told.
    code, _, err = live.run("jobs", "--limit", "1000", stdout=write)
    os.close(write)
    assert (code, err) == (0, "")


def speaking(live, client) -> tuple[subprocess.Popen[bytes], Job]:
    """A command that speaks for long, and its job, which runs."""
    # One of an earlier test may be about to end.
    until(lambda: all(job.is_finished for job in client.jobs(limit=5).jobs))
    command = live.start("speak", LONG_TEXT)
    return command, running_job(client)


def running_job(client) -> Job:
    def find():
        found = (job for job in client.jobs(limit=5).jobs if job.state == "running" and job.params["text"] in LONG_TEXT)
        return next(found, None)

    return until(find)


def test_a_cancelled_job_ends_its_command_with_5(live, client):
    command, job = speaking(live, client)
    code, out, _ = live.run("cancel", job.id)
    assert code == 0
    assert out.decode().startswith(job.id)
    _, err = command.communicate(timeout=60)
    assert command.returncode == 5
    assert f"Job {job.id} cancelled" in err.decode()
    assert not list(live.folder.iterdir())
    code, _, err = live.run("cancel", job.id)
    assert code == 3
    assert err.count("\n") == 1


def test_ctrl_c_cancels_the_job_first_and_ends_with_130(live, client):
    command, job = speaking(live, client)
    command.send_signal(signal.SIGINT)
    _, err = command.communicate(timeout=120)
    assert command.returncode == 130
    assert f"job {job.id} is cancelled" in err.decode()
    assert until(lambda: client.job(job.id).is_finished)
    assert client.job(job.id).state == "cancelled"


def test_a_terminal_sees_a_bar(live):
    controller, terminal = pty.openpty()
    seen = []

    def read():
        try:
            while piece := os.read(controller, 4096):
                seen.append(piece)
        except OSError:
            pass  # A terminal that its last process left reads as an error.

    reader = threading.Thread(target=read)
    reader.start()
    speaking = live.start("speak", "Hello there.", stderr=terminal)
    os.close(terminal)
    out, _ = speaking.communicate(timeout=60)
    reader.join()
    os.close(controller)
    assert (speaking.returncode, out) == (0, b"out.wav\n")
    assert f"[{'#' * 30}] completed" in b"".join(seen).decode()
