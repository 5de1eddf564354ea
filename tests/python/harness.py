"""Runs functions of test files on several ranks, each a process of its own.

A ``Ranks`` object keeps its processes for many calls, since importing torch takes seconds; tests
that end ranks in special ways start their own. Every wait has a limit, and what the ranks wrote is
in the error that a failing call raises. Processes are killed by their own pid only.
"""

from __future__ import annotations

import json
import os
import select
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

# Importing torch on a busy machine is slow.
_JOIN_LIMIT_S = 240.0
# How often a wait for a reply looks whether the process still lives.
_LOOK_EVERY_S = 0.1
# How long the others get once a rank has failed: they may wait for it.
_AFTER_FAILURE_S = 10.0
_LATE = {"lost": "no answer in time"}

_WORKER = Path(__file__).with_name("worker.py")
_FORK_SERVER = Path(__file__).with_name("fork_server.py")


def environment(**more: str) -> dict[str, str]:
    """What a rank starts with: one compute thread, no leftovers of a launcher, no tuning table."""
    own = dict(os.environ)
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR"):
        own.pop(name, None)
    own.setdefault("ISTHMUS_TUNE_FILE", "none")
    own.update({"OMP_NUM_THREADS": "1", "PYTHONFAULTHANDLER": "1", **more})
    return own


def run_script(text: str, limit_s: float = 240, **more: str) -> subprocess.CompletedProcess[str]:
    """Runs a Python program in a process of its own."""
    return subprocess.run(
        [sys.executable, "-c", text],
        env=environment(**more),
        capture_output=True,
        text=True,
        timeout=limit_s,
        check=False,
    )


def held() -> dict[str, float]:
    """What this process has of what must not leak; memory in MiB, all of it and what is shared."""
    status = dict(
        line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines()
    )
    return {
        "files": len(os.listdir("/proc/self/fd")),
        "threads": len(os.listdir("/proc/self/task")),
        "memory": int(status["VmRSS"].split()[0]) / 1024,
        "shared": int(status["RssShmem"].split()[0]) / 1024,
    }


def leaks(before: dict[str, float], after: dict[str, float]) -> dict[str, tuple[float, float]]:
    """What has grown beyond what a process may: 4 descriptors, 1 thread, 8 MiB."""
    most = {"files": 4, "threads": 1, "memory": 8, "shared": 8}
    return {
        name: (before[name], after[name])
        for name in most
        if after[name] - before[name] > most[name]
    }


class Programs:
    """Ranks that each run one Python text to its end, as a user's program: python -c TEXT WORDS.

    They share a fresh file for a FileStore, whose name is in HARNESS_STORE.
    """

    def __init__(self, text: str, size: int, *words: str, **more: str) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="isthmus-test-")
        more["HARNESS_STORE"] = str(Path(self._folder.name) / "store")
        self.processes = [
            subprocess.Popen(
                [sys.executable, "-c", text, *words],
                env=environment(RANK=str(rank), WORLD_SIZE=str(size), **more),
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
            for rank in range(size)
        ]

    def ends(self, limit_s: float = 240) -> list[tuple[int, str]]:
        """Exit code and output of every rank."""
        deadline = time.monotonic() + limit_s
        outputs = [
            process.communicate(timeout=max(0.1, deadline - time.monotonic()))[0]
            for process in self.processes
        ]
        return [
            (process.returncode, output)
            for process, output in zip(self.processes, outputs, strict=True)
        ]

    def __enter__(self) -> Programs:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.processes:
            if process.poll() is None:
                process.kill()
            process.wait(5)
            process.stdout.close()
        self._folder.cleanup()


class Forked:
    """A process of the fork server, as far as the tests need it like a ``subprocess.Popen``."""

    _server: socket.socket | None = None
    _server_process: subprocess.Popen[bytes] | None = None  # ends with this one

    def __init__(self, env: dict[str, str], errors: int) -> None:
        inside, outside, status = os.pipe(), os.pipe(), os.pipe()
        streams = [inside[0], outside[1], errors, status[1]]
        socket.send_fds(self._connect(), [json.dumps(env).encode()], streams)
        for fd in (inside[0], outside[1], status[1]):
            os.close(fd)
        self.stdin = os.fdopen(inside[1], "wb")
        self.stdout = os.fdopen(outside[0], "rb")
        self.returncode: int | None = None
        self._status = os.fdopen(status[0], "rb", buffering=0)
        self.pid = int(self._line(_JOIN_LIMIT_S) or 0)
        assert self.pid, "the fork server has ended"

    @classmethod
    def _connect(cls) -> socket.socket:
        if cls._server is None:
            # A message is one request.
            cls._server, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            with far:
                cls._server_process = subprocess.Popen(
                    [sys.executable, str(_FORK_SERVER), str(far.fileno())],
                    env=environment(),
                    stdin=subprocess.DEVNULL,
                    pass_fds=[far.fileno()],
                )
        return cls._server

    def _line(self, limit_s: float) -> bytes | None:
        """A line of the status, which is written whole; empty when whoever wrote has ended."""
        if not select.select([self._status], [], [], limit_s)[0]:
            return None
        line = b""
        while not line.endswith(b"\n"):
            more = self._status.read(1)
            if not more:
                return line
            line += more
        return line

    def poll(self) -> int | None:
        return self._ended(0)

    def wait(self, timeout: float | None = None) -> int:
        ended = self._ended(timeout)
        if ended is None:
            raise subprocess.TimeoutExpired(f"rank with pid {self.pid}", timeout or 0)
        return ended

    def _ended(self, limit_s: float | None) -> int | None:
        if self.returncode is None:
            line = self._line(limit_s)
            if line is not None:
                self.returncode = int(line or -signal.SIGKILL)
        return self.returncode

    def send_signal(self, how: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, how)


class Rank:
    """One process that runs functions on request."""

    def __init__(self, rank: int, size: int, folder: Path, env: dict[str, str]) -> None:
        self.rank = rank
        self.errors = folder / f"rank{rank}.err"
        with self.errors.open("wb") as errors:
            self.process = Forked(
                environment(RANK=str(rank), WORLD_SIZE=str(size), **env), errors.fileno()
            )
        self._received = b""

    def send(self, request: dict[str, Any]) -> None:
        self.process.stdin.write(json.dumps(request).encode() + b"\n")
        self.process.stdin.flush()

    def receive(self, deadline: float) -> dict[str, Any]:
        """The next reply; {"lost": why} when the process ended or the time is up."""
        with selectors.DefaultSelector() as selector:
            selector.register(self.process.stdout, selectors.EVENT_READ)
            while b"\n" not in self._received:
                left = deadline - time.monotonic()
                if left <= 0:
                    return dict(_LATE)
                ended = self.process.poll()
                if not selector.select(0 if ended is not None else min(left, _LOOK_EVERY_S)):
                    if ended is not None:
                        # The pipe is open all the same: a forked child has it.
                        return {"lost": f"the process ended with {ended}"}
                    continue
                more = os.read(self.process.stdout.fileno(), 1 << 16)
                if not more:
                    return {"lost": f"the process ended with {self.process.wait()}"}
                self._received += more
        line, _, self._received = self._received.partition(b"\n")
        return json.loads(line)

    def kill(self, how: int = signal.SIGKILL) -> None:
        if self.process.poll() is None:
            self.process.send_signal(how)

    def written(self) -> str:
        return self.errors.read_text(errors="replace")[-4000:]


class Ranks:
    """A job of ``size`` ranks that share a store; use it as a context manager.

    ``nodes`` has one letter a rank, equal for ranks that share memory; by default all do.
    """

    def __init__(self, size: int, join: bool = True, nodes: str = "", **env: str) -> None:
        self.size = size
        self._folder = tempfile.TemporaryDirectory(prefix="isthmus-test-")
        folder = Path(self._folder.name)
        env["HARNESS_STORE"] = str(folder / "store")
        own = [{"ISTHMUS_NODE_ID": node} for node in nodes] or [{}] * size
        self.ranks = [Rank(rank, size, folder, {**env, **own[rank]}) for rank in range(size)]
        self.broken = False
        if join:
            self.call(_WORKER, "join", limit_s=_JOIN_LIMIT_S)

    def start(self, file: str | Path, function: str, *args: Any) -> None:
        """Starts ``function(*args)`` of the file on every rank."""
        for rank in self.ranks:
            rank.send({"file": str(file), "function": function, "args": args})

    def replies(self, limit_s: float = 120, after_failure_s: float = 0) -> list[dict[str, Any]]:
        """What every rank answered, in rank order; a rank without an answer breaks the job.

        With ``after_failure_s``, once a rank has failed the others get only so long: they may wait
        for it, and what it said is what matters.
        """
        deadline = time.monotonic() + limit_s
        waiting = list(self.ranks)
        found: dict[int, dict[str, Any]] = {}
        while waiting:
            # Each in turn for a moment: whoever fails first is heard first.
            moment = min(deadline, time.monotonic() + _LOOK_EVERY_S)
            rank = waiting.pop(0)
            reply = rank.receive(deadline if not after_failure_s else moment)
            if reply == _LATE and moment < deadline:
                waiting.append(rank)
                continue
            found[rank.rank] = reply
            if after_failure_s and "value" not in reply:
                deadline = min(deadline, time.monotonic() + after_failure_s)
        replies = [found[rank.rank] for rank in self.ranks]
        self.broken = self.broken or any("lost" in reply for reply in replies)
        return replies

    def call(self, file: str | Path, function: str, *args: Any, limit_s: float = 120) -> list[Any]:
        """Runs the function on every rank and returns their values; raises if any failed."""
        self.start(file, function, *args)
        replies = self.replies(limit_s, _AFTER_FAILURE_S)
        failed = [
            f"rank {rank.rank}: {reply.get('error') or reply.get('lost')}\n{rank.written()}"
            for rank, reply in zip(self.ranks, replies, strict=True)
            if "value" not in reply
        ]
        if failed:
            self.broken = True
            raise AssertionError(f"{function}{args} failed on:\n" + "\n".join(failed))
        return [reply["value"] for reply in replies]

    def close(self, limit_s: float = 10) -> list[int]:
        """Lets the ranks end by themselves, kills those that do not; their exit codes."""
        for rank in self.ranks:
            try:
                rank.process.stdin.close()
            except BrokenPipeError:
                pass
        deadline = time.monotonic() + limit_s
        for rank in self.ranks:
            try:
                rank.process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                rank.kill()
                rank.process.wait(5)
            rank.process.stdout.close()
        self._folder.cleanup()
        return [rank.process.returncode for rank in self.ranks]

    def __enter__(self) -> Ranks:
        return self

    def __exit__(self, *_: object) -> None:
        if self.broken:
            for rank in self.ranks:
                rank.kill()
        self.close()
