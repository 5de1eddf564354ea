"""Forks ranks that have torch imported already: an import takes seconds, a fork milliseconds.

Run by tests/python/harness.py with the number of a socket. A request is the environment of the new
process as JSON, with four descriptors: its stdin, stdout and stderr, and a pipe that gets its pid
and, when it has ended, its exit code as ``subprocess`` writes it, one line each. The import starts
no thread, and nothing of isthmus but its name, so that a fork is as good as a new process.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys

import torch.distributed

_MAX_REQUEST = 1 << 17


def _become_rank(env: dict[str, str], streams: list[int]) -> None:
    os.environ.clear()
    os.environ.update(env)
    for target, fd in enumerate(streams):
        os.dup2(fd, target)
        os.close(fd)
    torch.distributed.set_debug_level_from_env()
    import worker

    worker.main()


def _watch(env: dict[str, str], streams: list[int], status: int) -> None:
    """Between the server and the rank: waits for its end."""
    # A shell without job control has background jobs ignore interrupts, which is inherited.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    pid = os.fork()
    if pid == 0:
        os.close(status)
        _become_rank(env, streams)
        sys.exit(0)
    for fd in (0, 1, *streams):
        os.close(fd)
    os.write(status, f"{pid}\n".encode())
    _, ended = os.waitpid(pid, 0)
    os.write(status, f"{os.waitstatus_to_exitcode(ended)}\n".encode())
    os._exit(0)


def main() -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for those that watch
    server = socket.socket(fileno=int(sys.argv[1]))
    while True:
        data, fds, _, _ = socket.recv_fds(server, _MAX_REQUEST, 4)
        if not data:
            return
        if os.fork() == 0:
            server.close()
            _watch(json.loads(data), fds[:3], fds[3])
        for fd in fds:
            os.close(fd)


if __name__ == "__main__":
    main()
