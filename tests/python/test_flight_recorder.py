"""Torch's flight recorder: what its dump functions say of our groups."""

from __future__ import annotations

import json
import pickle
import threading

import torch
import torch.distributed as dist

from harness import Ranks, run_script

# Run on the ranks.


def _json() -> dict:
    return json.loads(torch._C._distributed_c10d._dump_fr_trace_json())


def records() -> list:
    rank = dist.get_rank()
    dist.all_reduce(torch.ones(2, 3))
    dist.all_gather_into_tensor(torch.ones(8, dtype=torch.bfloat16),
                                torch.ones(4, dtype=torch.bfloat16))
    if rank == 0:
        dist.send(torch.ones(7), 1)
    else:
        dist.recv(torch.ones(7), 0)
    half = dist.new_group([0, 1], group_desc="a pair")
    dist.broadcast(torch.ones(5), 0, group=half, async_op=True).wait()

    trace = _json()
    entries = [e for e in trace["entries"] if e["profiling_name"].startswith("isthmus:")]
    assert all(e["state"] == "completed" and e["retired"] for e in entries), entries
    assert all(e["duration_ms"] >= 0 and e["timeout_ms"] > 0 for e in entries), entries
    frames = pickle.loads(torch._C._distributed_c10d._dump_fr_trace())["entries"]
    own = [e for e in frames if e["profiling_name"] == "isthmus:all_reduce"]
    assert any(f["name"] == "records" for f in own[0]["frames"]), own[0]["frames"]
    assert [0, 1] in [json.loads(c["ranks"]) for c in trace["pg_config"].values()]
    assert entries[-1]["process_group"][1] == "a pair"
    return [
        [e["profiling_name"], e["collective_seq_id"], e["p2p_seq_id"], e["is_p2p"],
         e["input_sizes"], e["output_sizes"], e["input_dtypes"]]
        for e in entries
    ]


def stuck() -> list:
    """What the others see while rank 1 does not come."""
    if dist.get_rank() == 1:
        dist.barrier()
        dist.all_reduce(torch.ones(4))
        return []
    waiting = threading.Thread(target=lambda: dist.all_reduce(torch.ones(4)))
    dist.barrier()
    active = json.loads(torch._C._distributed_c10d._dump_fr_trace_json(onlyActive=True))
    assert active.get("entries", []) == []
    work = dist.irecv(torch.ones(1), 1)
    active = json.loads(torch._C._distributed_c10d._dump_fr_trace_json(onlyActive=True))
    waiting.start()
    waiting.join()
    del work
    return [[e["profiling_name"], e["state"]] for e in active["entries"]]


def test_every_operation_is_recorded():
    with Ranks(2, TORCH_FR_BUFFER_SIZE="100") as ranks:
        first, second = ranks.call(__file__, "records")
    assert first == [
        ["isthmus:all_reduce", 1, 0, False, [[2, 3]], [[2, 3]], ["Float"]],
        ["isthmus:all_gather", 2, 0, False, [[4]], [[8]], ["BFloat16"]],
        ["isthmus:send 0->1", 2, 1, True, [[7]], [[7]], ["Float"]],
        ["isthmus:broadcast", 1, 0, False, [[5]], [[5]], ["Float"]],
    ]
    assert second == first[:2] + [["isthmus:recv 1<-0", *first[2][1:]]] + first[3:]


def test_what_is_active_is_told():
    with Ranks(2, TORCH_NCCL_TRACE_BUFFER_SIZE="100") as ranks:
        assert ranks.call(__file__, "stuck") == [[["isthmus:recv 0<-1", "started"]], []]


def test_nothing_is_recorded_unless_asked():
    program = """
import torch, torch.distributed as dist
before = torch._C._distributed_c10d._dump_fr_trace_json
dist.init_process_group("isthmus", store=dist.HashStore(), rank=0, world_size=1)
dist.all_reduce(torch.ones(1))
assert torch._C._distributed_c10d._dump_fr_trace_json is before
assert b"isthmus" not in before()
"""
    for size in (None, "0"):
        more = {} if size is None else {"TORCH_FR_BUFFER_SIZE": size}
        done = run_script(program, **more)
        assert done.returncode == 0, done.stderr
