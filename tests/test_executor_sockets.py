"""What a run listens on, what it believes of what it hears, and who may join."""

from __future__ import annotations

import fcntl
import json
import os
import pickle
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

import torch
from executor_programs import SCHEDULE, descendants, environment
from test_executor_failures import needs_proc, under_torchrun
from torch.distributed import HashStore, TCPStore

from pipesim.errors import ExecutionError
from pipesim.executor import FactoryWorkload
from pipesim.executor.board import Board, agree_on_key, announce, new_key
from pipesim.executor.job import Job, RankResult
from pipesim.executor.rank_processes import stay_on_this_machine
from pipesim.executor.stage import Boundary
from pipesim.executor.torchrun import TOKEN, _join, is_on_one_node, run_token
from pipesim.executor.wire import (
    boundaries_from_json,
    boundaries_to_json,
    num_body_bytes,
    pack_result,
    unpack_result,
)

WAIT_S = 300.0
"""Longest wait for processes to get somewhere; nothing is concluded from how long it took."""
LISTENING = "0A"
SCENARIOS = Path(__file__).parents[1] / "scenarios"
LONG = ["--device", "emulated", "--set", "costs.forward=9 s", "--set", "costs.backward=9 s"]


class Trap:
    """Makes a file when its pickle is loaded."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return Path.touch, (self.path,)


def own_address() -> str:
    """An IPv4 address of this machine that is not on loopback, asked of the kernel."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            request = struct.pack("256s", name.encode()[:15])
            try:
                answer = fcntl.ioctl(probe, 0x8915, request)  # SIOCGIFADDR, linux/sockios.h
            except OSError:
                continue
            address = socket.inet_ntoa(answer[20:24])
            if not ip_address(address).is_loopback:
                return address
    pytest.skip("this machine has no address but loopback")


def listeners(pids: set[int]) -> set[tuple[str, int]]:
    """Address and port of every TCP socket on which processes listen."""
    owned = set()
    for pid in pids:
        for descriptor in Path(f"/proc/{pid}/fd").glob("*"):
            try:
                owned.add(os.readlink(descriptor))
            except OSError:
                continue
    found = set()
    for table, family in (("tcp", socket.AF_INET), ("tcp6", socket.AF_INET6)):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            _, local, _, state, *_, inode = line.split()[:10]
            if state == LISTENING and f"socket:[{inode}]" in owned:
                address, port = local.split(":")
                words = struct.unpack(f">{len(address) // 8}I", bytes.fromhex(address))
                found.add((socket.inet_ntop(family, struct.pack(f"={len(words)}I", *words)), int(port, 16)))
    return found


@contextmanager
def running(*arguments: str, **variables: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, *arguments],
        env=environment(**variables),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def until_all_listen(process: subprocess.Popen[str], num_sockets: int, before: set[int]) -> set[Any]:
    deadline = time.monotonic() + WAIT_S
    while time.monotonic() < deadline:
        if process.poll() is not None:
            pytest.fail(f"the run ended: {process.communicate()[0]}")
        found = listeners(set(descendants()) - before)
        if len(found) >= num_sockets:
            return found
        time.sleep(0.1)
    pytest.fail(f"{num_sockets} sockets expected, {found} listen")


def until_gone(pids: set[int]) -> None:
    deadline = time.monotonic() + WAIT_S
    while any(Path(f"/proc/{pid}").exists() for pid in pids):
        assert time.monotonic() < deadline
        time.sleep(0.1)


@needs_proc
@pytest.mark.parametrize(
    ("verb", "signal_number", "status", "said"),
    [
        ("execute", signal.SIGINT, 130, ["pipesim: interrupted"]),
        ("validate", signal.SIGTERM, 143, ["pipesim: ended from outside (SIGTERM)"]),
    ],
)
def test_a_run_is_not_to_be_reached_from_another_machine_and_ends_whole(
    verb: str, signal_number: int, status: int, said: list[str]
) -> None:
    address, before = own_address(), set(descendants())
    # Whoever trains on several nodes has these set in every shell.
    variables = {"GLOO_SOCKET_IFNAME": "eth0", "MASTER_ADDR": address}
    arguments = ["-m", "pipesim", verb, str(SCENARIOS / "teaching.yaml"), *LONG]
    with running(*arguments, **variables) as process:
        found = until_all_listen(process, 1 + 4, before)
        assert {ip_address(host).is_loopback for host, _ in found} == {True}
        for _, port in found:
            with pytest.raises(ConnectionRefusedError):
                socket.create_connection((address, port), timeout=5).close()
        started = set(descendants()) - before
        assert len(started) == 1 + 1 + 4
        process.send_signal(signal_number)
        output, _ = process.communicate(timeout=WAIT_S)
        assert process.returncode == status
    assert [line for line in output.splitlines() if not line.startswith("running: ")] == said
    until_gone(started)


STUCK = """
import os, pickle, signal, sys, time
from executor_programs import *
from pipesim.executor.job import Job
with RankPool(2) as pool:
    while len(ranks := sorted(descendants())) < 3:
        time.sleep(0.1)
    for rank in ranks[1:]:
        os.kill(rank, signal.SIGSTOP)
    # More than the connection to a rank holds, so the process that starts the ranks stands still in sending.
    schedule = lower(generate("1f1b", Shape(2, 1, 4_000)))
    job = Job(schedule, EmulatedWorkload((0.0,) * len(schedule.op), (64, 0), (0, 0)), "emulated")
    pool._ours.send_bytes(pickle.dumps(job))
    print("sent", flush=True)
    time.sleep(1000)
"""


@needs_proc
def test_a_launcher_that_stands_still_ends_with_its_caller() -> None:
    before = set(descendants())
    with running("-c", STUCK) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "sent\n"
        started = set(descendants()) - before
        assert len(started) == 1 + 1 + 2
        process.kill()
        until_gone(started - {process.pid})


def test_only_the_interface_of_nccl_may_be_the_users() -> None:
    variables = {"GLOO_SOCKET_IFNAME": "eth0"}
    stay_on_this_machine(variables)
    assert set(variables.values()) == {"lo" if sys.platform == "linux" else "lo0"}
    variables["NCCL_SOCKET_IFNAME"] = "eth0"
    stay_on_this_machine(variables)
    assert variables["NCCL_SOCKET_IFNAME"] == "eth0"


def test_the_board_takes_only_what_was_signed_under_that_name(tmp_path: Path) -> None:
    trap, store, key = Trap(tmp_path / "sprung"), HashStore(), new_key()
    board = Board(store, key)
    board.put("a", {"shape": [1, 2]})
    assert Board(store, key).get("a") == {"shape": [1, 2]}
    store.set("moved", store.get("a"))
    Board(store, new_key()).put("other key", 1)
    store.set("pickle", pickle.dumps(trap))
    store.set("empty", b"")
    for name in ("moved", "other key", "pickle", "empty"):
        with pytest.raises(ExecutionError, match=f"'{name}' in the processes' store was not written by"):
            board.get(name)
    assert not trap.path.exists()
    pickle.loads(pickle.dumps(trap))
    assert trap.path.exists()


def test_a_key_needs_the_token_and_this_runs_numbers() -> None:
    store = HashStore()
    announce(store, 0)
    announce(store, 1)
    key = agree_on_key(store, 2, "a token of some length")
    assert agree_on_key(store, 2, "a token of some length") == key
    assert agree_on_key(store, 2, "another of some length") != key
    announce(store, 1)
    assert agree_on_key(store, 2, "a token of some length") != key


def test_shapes_survive_and_nothing_else_is_one() -> None:
    boundaries = [Boundary((3, 5), torch.bfloat16), Boundary((), torch.uint8)]
    assert boundaries_from_json(json.loads(json.dumps(boundaries_to_json(boundaries)))) == boundaries
    for shape, dtype in (
        ([3.0], "float32"),
        ([-1], "float32"),
        ([3], "nn"),
        ([3], "load"),
        ([3], 7),
        (3, "int8"),
    ):
        with pytest.raises(ExecutionError, match="no list of shapes"):
            boundaries_from_json([{"shape": shape, "dtype": dtype}])
    for document in (None, 7, ["x"], [{}]):
        with pytest.raises(ExecutionError, match="no list of shapes"):
            boundaries_from_json(document)


def a_result() -> RankResult:
    return RankResult(
        process=3,
        columns={"start": np.arange(6).reshape(2, 3), "end": np.arange(6).reshape(2, 3) + 9},
        step_s=np.array([0.25, np.nan]),
        disturbed=np.array([True, False]),
        losses=np.array([np.nan, np.inf]),
        row_bytes=np.zeros(0, np.int64),
        peak_activation_bytes=2**40,
        peak_memory_bytes=2**41,
        deferred_share={7: 0.5, 0: 1 / 3},
        clock_offset_ns=(-5, 2**62),
        clock_bound_ns=(1, 2),
        environment={"processor": "Ω"},
        weights={"0.linear.weight": np.eye(2, dtype=np.float32)},
    )


def test_a_result_survives_the_way() -> None:
    sent = a_result()
    document, body = pack_result(sent)
    document = json.loads(json.dumps(document))
    assert num_body_bytes(document) == len(body)
    arrived = unpack_result(document, bytes(body))
    for name in RankResult.__dataclass_fields__:
        np.testing.assert_equal(getattr(arrived, name), getattr(sent, name))


@pytest.mark.parametrize(
    "fault",
    [
        {"arrays": [["step_s", "|O", [1]]]},
        {"arrays": [["step_s", "<f8", [-1]]]},
        {"arrays": [["step_s", "<f8", [10**6]]]},
        {"arrays": 3},
        {"process": None},
        {"peak_activation_bytes": float("inf")},
        {"environment": []},
        {"clock_bound_ns": [1]},
    ],
)
def test_what_is_no_result_is_refused(fault: dict[str, Any]) -> None:
    document, body = pack_result(a_result())
    with pytest.raises(ExecutionError, match="a rank's message is no result"):
        unpack_result(document | fault, body)
    with pytest.raises(ExecutionError, match="arrived other than it was sent"):
        unpack_result(document, body[:-1] + b"x")


HELD = """
import sys
from executor_programs import *
try:
    # Rank 0 builds for ever, rank 1 waits for the shape of what it gives.
    execute(SCHEDULE, FactoryWorkload("executor_models:first_never_built"), stall_timeout_s=300.0)
except ExecutionError as error:
    print(error, flush=True)
    sys.exit(2)
"""
NOT_OURS = "'job 1 boundary 0' in the processes' store was not written by a process of this run"


def plant(trap: Trap, port: int, prefix: str) -> None:
    """Put pickles where ranks read, as anyone can who reaches the port."""
    store = TCPStore(
        "127.0.0.1", port, is_master=False, wait_for_workers=False, timeout=timedelta(seconds=WAIT_S)
    )
    for name in ("job 1 boundary 0", "host of 0", "host of 1", "result of 1"):
        store.set(prefix + name, pickle.dumps(trap))


@needs_proc
def test_a_pickle_in_the_store_is_never_loaded(tmp_path: Path) -> None:
    trap, before = Trap(tmp_path / "sprung"), set(descendants())
    with running("-c", HELD) as process:
        until_all_listen(process, 1 + 2, before)
        launcher = min(
            pid for pid, name in descendants().items() if pid not in before and "executor.launcher" in name
        )
        ((_, port),) = listeners({launcher})
        plant(trap, port, "")
        output, _ = process.communicate(timeout=WAIT_S)
    assert NOT_OURS in output
    assert process.returncode == 2
    assert not trap.path.exists()


@needs_proc
def test_nor_is_one_in_the_store_of_torchrun(tmp_path: Path) -> None:
    trap, before = Trap(tmp_path / "sprung"), set(descendants())
    program = tmp_path / "held.py"
    program.write_text(HELD)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    torchrun = ["-m", "torch.distributed.run", "--nproc-per-node=2", f"--master-port={port}", str(program)]
    with running(*torchrun, MASTER_ADDR="127.0.0.1", GLOO_SOCKET_IFNAME="eth0") as process:
        until_all_listen(process, 1 + 2, before)
        ours = listeners(set(descendants()) - before - {process.pid})
        assert {ip_address(host).is_loopback for host, _ in ours} == {True}
        plant(trap, port, "pipesim 0 0/")
        output, _ = process.communicate(timeout=WAIT_S)
    assert NOT_OURS in output
    assert process.returncode != 0
    assert not trap.path.exists()


def test_one_machine_is_told_from_several() -> None:
    for variables, alone in (
        ({"MASTER_ADDR": "10.0.0.1", "LOCAL_WORLD_SIZE": "8"}, True),
        ({"MASTER_ADDR": "127.0.0.1", "LOCAL_WORLD_SIZE": "4"}, False),
        ({"MASTER_ADDR": "127.0.0.1"}, True),
        ({"MASTER_ADDR": "::1"}, True),
        ({"MASTER_ADDR": "localhost"}, True),
        ({"MASTER_ADDR": "10.0.0.1"}, False),
        ({"MASTER_ADDR": "node-0"}, False),
    ):
        assert is_on_one_node({"WORLD_SIZE": "8", **variables}) is alone, variables


def test_several_machines_need_a_token(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    from pipesim.cli import main

    variables = {"RANK": "0", "WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1"}
    for name, value in {**variables, "MASTER_PORT": "1", "TORCHELASTIC_USE_AGENT_STORE": "True"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys, "argv", ["pipesim", "execute", str(SCENARIOS / "teaching.yaml"), *LONG])
    for token, words in (
        ("", f"a run on several nodes needs a secret, the same on all of them, in {TOKEN}"),
        ("guess", f"{TOKEN} has 5 characters; expected at least 16"),
    ):
        monkeypatch.setenv(TOKEN, token)
        with pytest.raises(SystemExit) as stopped:
            main()
        assert stopped.value.code == 2
        *_, line = capfd.readouterr().err.splitlines()
        assert line.startswith(f"pipesim: {words}")


def test_one_machine_needs_none() -> None:
    assert run_token({}, on_one_node=True) == ""
    assert run_token({TOKEN: "0123456789abcdef"}, on_one_node=False) == "0123456789abcdef"


def joined(tokens: tuple[str, str]) -> list[str]:
    """What two processes say that join with these tokens, here as threads."""
    job, store = Job(SCHEDULE, FactoryWorkload("executor_models:mlp"), "cpu"), HashStore()
    for process in range(2):
        announce(store, process)

    def join(process: int) -> str:
        try:
            return "joined" if _join(job, store, process, 2, tokens[process]) else ""
        except ExecutionError as error:
            return str(error)

    with ThreadPoolExecutor(2) as threads:
        return list(threads.map(join, range(2)))


def test_who_has_another_token_does_not_join() -> None:
    assert joined(("the run's own token", "the run's own token")) == ["joined", "joined"]
    said = f"does not belong to this run: {TOKEN} must be the same in all processes; see docs/network.md"
    assert joined(("the run's own token", "some other token")) == [
        f"rank 1 (process 1) {said}",
        f"rank 0 (process 0) {said}",
    ]


def test_several_machines_with_a_token_run() -> None:
    variables = {"LOCAL_WORLD_SIZE": "1", TOKEN: "0123456789abcdef"}
    first, second = under_torchrun(range(2), WAIT_S, **variables)
    assert (first.startswith("2 steps, "), second) == (True, "nothing")
