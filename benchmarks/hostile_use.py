"""What pipesim makes of damaged files, and of being killed at any time.

    python benchmarks/hostile_use.py                     # all; a dated result under benchmarks/results/
    python benchmarks/hostile_use.py --only corruptions
    python benchmarks/hostile_use.py --number 200 -o result.json
    python benchmarks/hostile_use.py --only kills --among report validate

Corruptions: of every kind of file that pipesim reads, 2,000 copies damaged at random, each read by a verb in
process. Allowed are exit status 0 and 2 within 10 s of processor time and 1 GiB; a traceback or a warning is
a failure.

Kills: every long verb gets SIGKILL, SIGINT and SIGTERM at ten random times each. After 10 s no process may be
left, each output is whole or absent, SIGINT and SIGTERM leave one line and the statuses 130 and 143, and a
sweep that goes on afterwards ends with the same bytes as one that was never stopped.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
import traceback
import uuid
import warnings
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from corruptions import GPT3, TEACHING, check, damaged, kinds

RESULTS = Path(__file__).parent / "results"
MOST_S, MOST_BYTES = 10, 1 << 30
WAITING_S = 120
"""On the clock, for what waits; the rest is processor time, which other work on the machine cannot change."""
SIGNALS = (signal.SIGKILL, signal.SIGINT, signal.SIGTERM)
MARK = "PIPESIM_ATTACK"
READY = (
    "import os\n"
    "from pipesim import cli\n"
    "listen = cli.listen\n"
    "def tell():\n"
    "    listen()\n"
    "    os.write(int(os.environ['READY']), b'x')\n"
    "cli.listen = tell\n"
    "cli.main()\n"
)
"""A run says when it is the program's own code that answers signals, no more the interpreter's."""


def corruptions_of(name: str, number: int) -> dict[str, Any]:
    """Damage files of one kind in a process of its own."""
    warnings.simplefilter("error")
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        kind = kinds(Path(folder))[name]
        statuses: Counter[int] = Counter()
        failures: list[dict[str, Any]] = []
        longest_s = 0.0
        for number_of in (signal.SIGPROF, signal.SIGALRM):
            signal.signal(number_of, _late)
        for seed in range(number):
            random = Random(seed)
            source = random.choice(kind.sources)
            path = Path(folder) / ("damaged" + "".join(source.suffixes))
            path.write_bytes(damaged(source.read_bytes(), random))
            begun_s = time.process_time()
            signal.setitimer(signal.ITIMER_PROF, MOST_S)
            signal.alarm(WAITING_S)
            try:
                statuses[check(kind.arguments(path))] += 1
            except Exception as error:
                last = traceback.extract_tb(error.__traceback__)[-1]
                place = f"{Path(last.filename).name}:{last.lineno}"
                failures.append(
                    {"seed": seed, "error": f"{type(error).__name__}: {error}"[:300], "at": place}
                )
            finally:
                signal.setitimer(signal.ITIMER_PROF, 0)
                signal.alarm(0)
            longest_s = max(longest_s, time.process_time() - begun_s)
        os.chdir("/")
    peak_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return {
        "kind": name,
        "files": number,
        "done": statuses[0],
        "refused": statuses[2],
        "failures": failures,
        "longest_s": round(longest_s, 2),
        "peak_bytes": peak_bytes,
        "holds": not failures and peak_bytes < MOST_BYTES,
    }


def _late(number: int, frame: object) -> None:
    raise TimeoutError("takes too long")


def verbs(folder: Path) -> dict[str, tuple[tuple[object, ...], tuple[str, ...]]]:
    """Long verbs with their outputs."""
    counts = ",".join(str(400 + 8 * k) for k in range(16))
    varied = ("--engine", "--vary", f"batch.microbatches={counts}", "--workers", 2)
    sweep = ("sweep", TEACHING, "-o", folder / "rows.csv", *varied)
    emulated = ("--device", "emulated", "--steps", 5)
    return {
        "sweep": (sweep, ("rows.csv",)),
        "plan": (("plan", GPT3, "--plot", folder / "plan.svg", "--workers", 2), ("plan.svg",)),
        "compare": (("compare", GPT3, "--plot", folder / "all.svg"), ("all.svg",)),
        "report": (("report", GPT3, "-o", folder / "page.html"), ("page.html",)),
        "accuracy": (("accuracy", "sc21", "--plot", folder / "accuracy.svg"), ("accuracy.svg",)),
        "execute": (("execute", TEACHING, *emulated, *SHORT, "-o", folder / "run.json"), ("run.json",)),
        "validate": (
            ("validate", TEACHING, *emulated, *SHORT, "--schedules", "1f1b", "--plot", folder / "v.svg"),
            ("v.svg",),
        ),
    }


SHORT = ("--set", "costs={forward: 10 ms, backward: 20 ms}", "--set", "parallel.pipeline=2")


def kill(name: str, number: signal.Signals, random: Random, whole_s: float) -> dict[str, Any]:
    """Start a verb, kill it at a random time, and look at what is left."""
    with tempfile.TemporaryDirectory() as text:
        folder = Path(text)
        arguments, outputs = verbs(folder)[name]
        delay_s = random.uniform(0, whole_s)
        process, mark = _start(arguments)
        time.sleep(delay_s)
        process.send_signal(number)
        wrong = []
        try:
            _, message = process.communicate(timeout=10)
        except subprocess.TimeoutExpired:
            wrong.append("runs on after 10 s")
            process.kill()
            _, message = process.communicate()
        status = process.returncode
        until = time.monotonic() + 10
        while (left := _marked(mark)) and time.monotonic() < until:
            time.sleep(0.1)
        if left:
            wrong.append(f"{len(left)} processes left after 10 s")
            for pid in left:
                os.kill(pid, signal.SIGKILL)
        expected = -number if number == signal.SIGKILL else 128 + number
        if status not in (0, expected):
            wrong.append(f"status {status}")
        own = [line for line in message.splitlines() if not line.startswith("running: ")]
        if status == 128 + number and len(own) != 1:
            wrong.append(f"{len(own)} lines: {message[-300:]}")
        wrong += [f"{path} is not whole" for path in outputs if not _is_whole(folder / path)]
        hidden = [path.name for path in folder.iterdir() if path.name.startswith(".")]
        if hidden and number != signal.SIGKILL:
            wrong.append(f"left {hidden}")
        if name == "sweep":
            wrong += _goes_on(arguments, folder / "rows.csv")
    return {
        "verb": name,
        "signal": number.name,
        "after_s": round(delay_s, 2),
        "status": status,
        "wrong": wrong,
    }


def _start(arguments: tuple[object, ...]) -> tuple[subprocess.Popen[str], str]:
    """Start a verb and wait until it answers signals; the process, and the mark on all of its kin."""
    receiver, sender = os.pipe()
    mark = uuid.uuid4().hex
    process = subprocess.Popen(
        [sys.executable, "-c", READY, *map(str, arguments)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        pass_fds=[sender],
        env=os.environ | {"READY": str(sender), MARK: mark},
        start_new_session=True,
    )
    os.close(sender)
    os.read(receiver, 1)
    os.close(receiver)
    return process, mark


def _marked(mark: str) -> list[int]:
    """Find processes, zombies left out, whose environment has the mark."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                if f"{MARK}={mark}".encode() in (entry / "environ").read_bytes():
                    found.append(int(entry.name))
            except OSError:
                continue
    return found


def _is_whole(path: Path) -> bool:
    if not path.exists():
        return True
    text = path.read_text()
    if path.suffix == ".json":
        return bool(json.loads(text))
    return text.rstrip().endswith({".svg": "</svg>", ".html": "</html>", ".csv": ""}[path.suffix])


_unbroken: dict[str, bytes] = {}


def _goes_on(arguments: tuple[object, ...], output: Path) -> list[str]:
    """Run a stopped sweep to its end; it must end as one that was never stopped."""
    done = [
        subprocess.run(
            [sys.executable, "-m", "pipesim", *map(str, arguments)], check=False, capture_output=True
        )
    ]
    if done[0].returncode:
        return [f"does not go on: {done[0].stderr[-300:].decode()}"]
    if "sweep" not in _unbroken:
        with tempfile.TemporaryDirectory() as other:
            arguments = verbs(Path(other))["sweep"][0]
            subprocess.run(
                [sys.executable, "-m", "pipesim", *map(str, arguments)], check=True, capture_output=True
            )
            _unbroken["sweep"] = (Path(other) / output.name).read_bytes()
    return [] if output.read_bytes() == _unbroken["sweep"] else ["ends with another table"]


def _finish(arguments: tuple[object, ...]) -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-m", "pipesim", *map(str, arguments)]
    return subprocess.run(command, check=False, capture_output=True)


def kills(times: int, names: Sequence[str]) -> list[dict[str, Any]]:
    found = []
    for name in names:
        with tempfile.TemporaryDirectory() as folder:
            process, _ = _start(verbs(Path(folder))[name][0])
            begun = time.monotonic()
            process.communicate()
            whole_s = time.monotonic() - begun
        for number in SIGNALS:
            random = Random(f"{name} {number}")
            found += [kill(name, number, random, whole_s) for _ in range(times)]
            num_wrong = sum(bool(one["wrong"]) for one in found[-times:])
            print(f"{name}, {number.name}: {num_wrong} of {times} wrong", flush=True)
            for one in found[-times:]:
                if one["wrong"]:
                    print("   ", one)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", choices=("corruptions", "kills"))
    parser.add_argument("--number", type=int, default=2000, help="damaged files of each kind")
    parser.add_argument("--times", type=int, default=10, help="kills of each verb by each signal")
    parser.add_argument("--among", nargs="+", help="these kinds of file and verbs only")
    parser.add_argument("-o", "--output", type=Path)
    asked = parser.parse_args()
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell has its background jobs ignore it
    result: dict[str, Any] = {"date": datetime.now(UTC).date().isoformat(), "python": sys.version.split()[0]}
    if asked.only != "kills":
        with tempfile.TemporaryDirectory() as folder:
            names = [name for name in kinds(Path(folder)) if name in (asked.among or [name])]
        result["corruptions"] = []
        context = multiprocessing.get_context("spawn")
        workers = min(os.cpu_count() or 1, len(names))
        with ProcessPoolExecutor(workers, mp_context=context, max_tasks_per_child=1) as pool:
            for one in pool.map(corruptions_of, names, [asked.number] * len(names)):
                result["corruptions"].append(one)
                print(
                    f"{one['kind']}: {one['done']} done, {one['refused']} refused, "
                    f"{len(one['failures'])} failed; "
                    f"at most {one['longest_s']} s, {one['peak_bytes'] >> 20} MiB",
                    flush=True,
                )
                for failure in one["failures"][:5]:
                    print("   ", failure)
    if asked.only != "corruptions":
        names = [name for name in verbs(Path()) if name in (asked.among or [name])]
        result["kills"] = kills(asked.times, names)
    result["holds"] = all(one["holds"] for one in result.get("corruptions", ())) and not any(
        one["wrong"] for one in result.get("kills", ())
    )
    output = asked.output or RESULTS / f"hostile-use-{result['date']}.json"
    output.write_text(json.dumps(result, indent=1) + "\n")
    print(f"{output}: {'all holds' if result['holds'] else 'something does not hold'}")


if __name__ == "__main__":
    main()
