"""The command `inclavate`, as a shell sees it: exit codes, stdout, stderr, files."""

from __future__ import annotations

import io
import json
import os
import pty
import re
import signal
import subprocess
import sys
import threading
import wave
from contextlib import contextmanager
from pathlib import Path

import pytest

from inclavate import cli
from inclavate.client import BadAnswer, Client, Job, JobFailed, NoModel, Refused, Unreachable
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
    code, _, err = live.run("jobs", stdout=write)
    os.close(write)
    assert (code, err) == (0, "")


def running_job(client) -> Job:
    def find():
        found = (job for job in client.jobs(limit=5).jobs if job.state == "running" and job.params["text"] in LONG_TEXT)
        return next(found, None)

    return until(find)


def test_a_cancelled_job_ends_its_command_with_5(live, client):
    speaking = live.start("speak", LONG_TEXT)
    job = running_job(client)
    code, out, _ = live.run("cancel", job.id)
    assert code == 0
    assert out.decode().startswith(job.id)
    _, err = speaking.communicate(timeout=60)
    assert speaking.returncode == 5
    assert f"Job {job.id} cancelled" in err.decode()
    assert not list(live.folder.iterdir())
    code, _, err = live.run("cancel", job.id)
    assert code == 3
    assert err.count("\n") == 1


def test_ctrl_c_cancels_the_job_first_and_ends_with_130(live, client):
    speaking = live.start("speak", LONG_TEXT)
    job = running_job(client)
    speaking.send_signal(signal.SIGINT)
    _, err = speaking.communicate(timeout=60)
    assert speaking.returncode == 130
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
