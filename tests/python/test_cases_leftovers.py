"""O-22: killed runs leave nothing behind that the next run, or another job, would meet.

Method: in a mount namespace whose /dev/shm has 64 MiB, jobs of 4 ranks are killed (SIGKILL, all at
once) in the middle of an all_reduce, again and again, beside a healthy job of the same user; then
one more job must run. With memfd, and with files in /dev/shm.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from harness import environment

_PERF = Path(sys.executable).with_name("all_reduce_perf")

# Runs inside the namespace; its arguments are the program and how often to kill.
_KILLER = """
import json, os, signal, subprocess, sys

program, times = sys.argv[1], int(sys.argv[2])

def start(*options):
    command = [program, "--ranks", "4", "-w", "0", *options]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)

healthy = start("-b", "64K", "-e", "64K", "-n", "2000", "-c", "1", "--json", "-")
left = []
for _ in range(times):
    # The row of 8 bytes says that the ranks run; the next takes a minute.
    job = start("-b", "8", "-e", "8M", "-f", "1048576", "-n", "5000", "-c", "0", "--csv", "-")
    while not job.stdout.readline().startswith("all_reduce"):
        assert job.poll() is None, f"a job ended by itself: {job.returncode}"
    os.killpg(job.pid, signal.SIGKILL)
    job.wait()
    left.append(len(os.listdir("/dev/shm")))
rows, _ = healthy.communicate(timeout=120)
last = start("-b", "32M", "-e", "32M", "-n", "1", "-c", "1", "--json", "-")
more, _ = last.communicate(timeout=60)
wrong = [row["wrong"] for text in (rows, more) for row in json.loads(text)["rows"]]
print(json.dumps({"left": left, "codes": [healthy.returncode, last.returncode],
                  "wrong": wrong, "at the end": os.listdir("/dev/shm")}))
"""


@pytest.mark.parametrize("named", ["0", "1"])
@pytest.mark.parametrize("times", [3, pytest.param(20, marks=pytest.mark.long)])
def test_killed_runs_leave_nothing(named, times):
    namespaces = ["unshare", "--user", "--map-root-user", "--mount"]
    if subprocess.run([*namespaces, "true"], capture_output=True, check=False).returncode != 0:
        pytest.skip("user namespaces are not allowed here")
    script = 'mount -t tmpfs -o size=64m none /dev/shm && exec "$@"'
    command = [*namespaces, "bash", "-c", script, "bash", sys.executable, "-c", _KILLER]
    done = subprocess.run(
        [*command, str(_PERF), str(times)],
        env=environment(ISTHMUS_SHM_NAMED=named),
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    assert done.returncode == 0, done
    seen = json.loads(done.stdout)
    # Files of the healthy job have no name either.
    assert seen["left"] == [0] * times, seen
    assert seen["codes"] == [0, 0] and seen["wrong"] and not any(seen["wrong"]), seen
    assert seen["at the end"] == [], seen
