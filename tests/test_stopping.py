"""However a run ends: one line, the status that shells expect, no process left, outputs whole or absent."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from pipesim.errors import ScenarioError
from pipesim.questions.journal import Journal

ROOT = Path(__file__).parent.parent
TEACHING = ROOT / "scenarios" / "teaching.yaml"
START_S = 60
MAIN = "from pipesim.cli import main; main()"
BLOCK_IMPORTS = """
import sys
class Blocking:
    def find_spec(self, name, path=None, target=None):
        if name == "pydantic":
            print("loading", flush=True)
            try:
                input()
            except KeyboardInterrupt:
                print("swallowed", flush=True)
sys.meta_path.insert(0, Blocking())
"""


def start(code, *arguments, **settings):
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    command = [sys.executable, "-c", code, *map(str, arguments)]
    return subprocess.Popen(command, text=True, start_new_session=True, **(pipes | settings))


def alive(pids):
    found = []
    for pid in pids:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except FileNotFoundError:
            continue
        if state != "Z":
            found.append(pid)
    return found


def wait_until(condition, seconds=START_S):
    until = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < until
        time.sleep(0.02)
    return found


@pytest.mark.parametrize(("number", "words"), [(signal.SIGINT, "interrupted"), (signal.SIGTERM, "SIGTERM")])
def test_a_signal_while_modules_load_is_one_line(number, words):
    with start(BLOCK_IMPORTS + MAIN, "compare", TEACHING) as process:
        assert process.stdout.readline() == "loading\n"
        process.send_signal(number)
        said, message = process.communicate(timeout=START_S)
    assert process.returncode == 128 + number
    assert said == ""
    assert message.startswith("pipesim: ")
    assert words in message
    assert message.count("\n") == 1


def test_what_does_not_end_on_a_signal_is_ended():
    """Machine code that holds the main thread never comes to raise anything."""
    code = (
        "from pipesim.cli import stopping; import os, time\n"
        "stopping.GRACE_S = 0.2\n"
        "stopping.listen()\n"
        "said = False\n"
        "while True:\n"
        "    try:\n"
        "        said = said or not print('ready', flush=True)\n"
        "        time.sleep(60)\n"
        "    except BaseException: pass\n"
    )
    with start(code) as process:
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGINT)
        _, message = process.communicate(timeout=START_S)
    assert (process.returncode, message) == (130, "pipesim: interrupted\n")


def test_a_signal_that_a_destructor_swallows_comes_again():
    code = (
        "from pipesim.cli import stopping; import os, signal, time\n"
        "stopping.listen()\n"
        "class Swallows:\n"
        "    def __del__(self):\n"
        "        os.kill(os.getpid(), signal.SIGINT); time.sleep(60)\n"
        "try:\n"
        "    held = Swallows(); del held\n"
        "    time.sleep(60)\n"
        "except stopping.Stopped as stopped: print(stopped.status)\n"
    )
    with start(code) as process:
        said, message = process.communicate(timeout=START_S)
    assert (said, message) == ("130\n", "")


def sweeping(folder):
    """Start a sweep on two workers; the process, and the workers once a row is done."""
    counts = ",".join(map(str, range(8, 2000, 4)))
    output = folder / "rows.csv"
    process = start(
        MAIN,
        "sweep",
        TEACHING,
        "-o",
        output,
        "--engine",
        "--workers",
        "2",
        "--vary",
        f"batch.microbatches={counts}",
    )
    journal = folder / "rows.csv.journal"
    wait_until(lambda: journal.exists() and journal.read_text().count("\n") > 2)
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    assert len(children) >= 2
    return process, children, output


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
def test_no_worker_outlives_a_sweep(number, tmp_path):
    process, children, output = sweeping(tmp_path)
    if number == signal.SIGINT:  # as a terminal does, to all of them
        os.killpg(process.pid, number)
    else:
        process.send_signal(number)
    _, message = process.communicate(timeout=START_S)
    assert process.returncode == (-number if number == signal.SIGKILL else 128 + number)
    if number != signal.SIGKILL:
        assert message.count("\n") == 1
    wait_until(lambda: not alive(children))
    assert not output.exists()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["rows.csv.journal"]


def test_a_journal_has_one_writer_at_a_time(tmp_path):
    path = tmp_path / "rows.csv.journal"
    with Journal(path, "digest", 3) as first:
        first.append(0, {"row": 0})
        with pytest.raises(ScenarioError, match="another sweep is writing it"):
            Journal(path, "digest", 3)
    with Journal(path, "digest", 3) as second:
        assert second.rows == {0: {"row": 0}}
        second.append(1, {"row": 1})
        second.remove()
    assert list(tmp_path.iterdir()) == []


def test_a_journal_on_a_full_disk_is_named(tmp_path):
    with Journal(tmp_path / "journal", "digest", 3) as journal:
        os.dup2(os.open("/dev/full", os.O_WRONLY), journal._stream.fileno())
        with pytest.raises(ScenarioError, match="journal: cannot be written: No space left on device"):
            journal.append(0, {"row": 0})


@pytest.mark.parametrize("kind", ["pipe", "device"])
def test_a_journal_is_a_file(kind, tmp_path):
    path = tmp_path / "journal"
    os.mkfifo(path) if kind == "pipe" else path.symlink_to("/dev/zero")
    with pytest.raises(ScenarioError, match="is a device or a pipe"):
        Journal(path, "digest", 3)


@pytest.mark.skipif(os.name == "nt", reason="descriptors are closed as a Unix shell does")
def test_a_closed_standard_error_takes_no_answer_away():
    command = f"{sys.executable} -m pipesim compare {TEACHING} --schedules 1f1b 2>&-"
    done = subprocess.run(["sh", "-c", command], check=False, capture_output=True, text=True)
    assert (done.returncode, "USE 1f1b" in done.stdout) == (0, True)
