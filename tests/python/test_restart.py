"""torchrun restarts a job after a rank has failed: the second incarnation works on the old store.

Method: rank 1 of the first incarnation ends with an error in the middle of its operations, under
``torchrun --max-restarts 1``. The second must run to its end, over torchrun's own store and over a
file store that still holds the keys of the first, on one node and on two.
"""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from harness import environment

_SCRIPT = '''
import os, sys, torch, torch.distributed as dist
rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
incarnation = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
if sys.argv[2] == "2":
    os.environ["ISTHMUS_NODE_ID"] = f"node{rank}"
if sys.argv[1] == "env":
    dist.init_process_group("isthmus")
else:
    store = dist.FileStore(sys.argv[1], size)
    dist.init_process_group("isthmus", store=store, rank=rank, world_size=size)
for turn in range(1000 if incarnation == 0 else 20):
    tensor = torch.full((5000,), float(rank + incarnation))
    dist.all_reduce(tensor)
    assert tensor[0].item() == sum(other + incarnation for other in range(size)), tensor
    if incarnation == 0 and rank == 1 and turn == 5:
        print("<rank 1 fails>", flush=True)
        sys.exit(7)
group = dist.new_group([0, 1])
dist.all_reduce(tensor, group=group)
dist.destroy_process_group()
print(f"<rank {rank} ended incarnation {incarnation}>", flush=True)
'''


@pytest.mark.parametrize("store,nodes", [("env", 2), ("file", 1)])
def test_the_second_incarnation_works(tmp_path, store, nodes):
    script = tmp_path / "job.py"
    script.write_text(_SCRIPT)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += ["--nproc-per-node", "2", "--max-restarts", "1", "--monitor-interval", "0.2"]
    command += [str(script), store if store == "env" else str(tmp_path / "store"), str(nodes)]
    with subprocess.Popen(
        command, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        try:
            output, _ = process.communicate(timeout=120)
        except subprocess.TimeoutExpired:
            process.terminate()
            output, _ = process.communicate(timeout=60)
            raise AssertionError(f"no end within 120 s:\n{output}") from None
    assert process.returncode == 0, output
    # torchrun itself tells of the rank that it looks at first: it may be the one that waited.
    assert "<rank 1 fails>" in output, output
    ends = sorted(re.findall(r"<rank (\d) ended incarnation (\d)>", output))
    assert ends == [("0", "1"), ("1", "1")], output
