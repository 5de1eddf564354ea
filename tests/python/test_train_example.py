"""Goal: the training example compares every loss with the single process's, and reports it all.
Method: trains the tiny model for three steps on four ranks of this machine, over isthmus; then
falsifies single losses, batches and survivors' sentences, which the example must refuse.
"""

import json
import os
import pathlib
import re
import socket
import subprocess
import sys

import isthmus
import pytest
import torch
import tqdm  # noqa: F401  # the example needs it: without it every job would fail later

EXAMPLE = pathlib.Path(__file__).resolve().parents[2] / "examples" / "train"
RANKS = 4
STEPS = 3
LIMIT_S = 240


@pytest.fixture(scope="module", autouse=True)
def example_on_path():
    sys.path.insert(0, str(EXAMPLE))
    yield
    sys.path.remove(str(EXAMPLE))


def environment():
    return dict(os.environ, OMP_NUM_THREADS="1", OMP_WAIT_POLICY="PASSIVE",
                GLOO_SOCKET_IFNAME="lo", PYTHONDONTWRITEBYTECODE="1")


def train_alone(out):
    subprocess.run([sys.executable, EXAMPLE / "train.py", "reference", "--size", "tiny",
                    "--steps", str(STEPS), "--out", out], check=True, timeout=LIMIT_S,
                   env=environment(), capture_output=True)


def launch(out, *more):
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    return subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(RANKS),
         "--master-addr", "127.0.0.1", "--master-port", str(port), EXAMPLE / "train.py", "worker",
         "--size", "tiny", "--backend", "isthmus", "--out", out, *more],
        timeout=LIMIT_S, env=environment(), capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A folder as run.sh's jobs leave it."""
    out = tmp_path_factory.mktemp("train")
    train_alone(out)
    job = launch(out, "--runs", f"main:hsdp:{STEPS}", f"gloo_flat:flat:{STEPS}", "--finish")
    assert job.returncode == 0, job.stderr
    return out


def test_every_loss_is_the_single_process_s(trained):
    import loss_check
    assert isthmus.torch_version
    losses = json.loads((trained / "reference.json").read_text())["losses"]
    for name in ("main", "gloo_flat"):
        record = json.loads((trained / f"{name}.json").read_text())
        assert len(record["losses"]) == STEPS
        for step, (loss, single) in enumerate(zip(record["losses"], losses), start=1):
            assert loss_check.check(step, loss, single) == record["differences"][step - 1]
        assert len(record["ranks"]) == RANKS
        for rank in record["ranks"]:
            assert len(rank["step_seconds"]) == len(rank["exposed_seconds"]) == STEPS
            assert all(0 < exposed < step for exposed, step in
                       zip(rank["exposed_seconds"], rank["step_seconds"]))
            assert rank["sent_bytes"] > 0
    assert losses[-1] < losses[0]


def test_summary(trained, tmp_path):
    report = subprocess.run([sys.executable, EXAMPLE / "report.py", "summary", "--work", trained,
                             "--out", tmp_path, "--link", "loopback"], check=True,
                            timeout=LIMIT_S, capture_output=True, text=True).stdout
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert [run["layout"] for run in summary["runs"]] == ["hsdp", "flat"]
    for run in summary["runs"]:
        assert run["tokens_per_second"] > 0 and run["neck_bytes_per_step"] > 0
        assert run["step_seconds"] == pytest.approx(run["compute_seconds"]
                                                    + run["exposed_seconds"])
        assert run["difference_max"] <= 2e-6
    assert re.fullmatch("[0-9a-f]{64}", summary["corpus"]["sha256"])
    assert summary["corpus"]["sha256"] in report
    assert 0 < summary["gzip_bits_per_byte"] < 8 and 0 < summary["bits_per_byte"] < 9
    assert len(summary["generated"]) == 200
    assert (tmp_path / "train.png").read_bytes().startswith(b"\x89PNG")


def test_a_perturbed_reference_stops_the_job_at_its_step(trained, tmp_path):
    reference = json.loads((trained / "reference.json").read_text())
    reference["losses"][1] *= 1 + 4e-6
    (tmp_path / "reference.json").write_text(json.dumps(reference))
    job = launch(tmp_path, "--runs", f"main:hsdp:{STEPS}")
    assert job.returncode != 0
    assert (tmp_path / "failure").read_text().startswith("step 2: the loss is ")
    assert not (tmp_path / "main.json").exists()


@pytest.mark.parametrize("step, limit", [(1, 2e-6), (6, 2e-6), (7, 1e-4), (20, 1e-4),
                                         (21, 1e-3), (150, 1e-3)])
def test_the_limit_of_a_step(step, limit):
    import loss_check
    assert loss_check.check(step, 2.5 * (1 + 0.9 * limit), 2.5) == pytest.approx(0.9 * limit)
    for wrong in (2.5 * (1 + 1.1 * limit), 2.5 * (1 - 1.1 * limit), float("nan"), float("inf")):
        with pytest.raises(loss_check.LossMismatch, match=f"^step {step}: "):
            loss_check.check(step, wrong, 2.5)
    with pytest.raises(loss_check.LossMismatch):
        loss_check.check(step, 2.5, float("nan"))


def test_a_lost_share_of_the_gradient_is_noticed():
    """One rank's rows left out of the update: within a few steps no loss would pass."""
    import corpus as corpora
    import gpt
    import loss_check
    import train
    shape = gpt.SHAPES["tiny"]
    corpus = corpora.load(shape.held_out_bytes)
    losses = []
    for kept in (shape.batch, shape.batch - shape.batch // RANKS):
        model = gpt.GPT(shape, train.SEED)
        optimizer = train.optimizer_of(model)
        losses.append([])
        for step in range(1, STEPS + 1):
            rows = corpus.batch(step, train.SEED, shape)
            with torch.no_grad():
                losses[-1].append(gpt.loss_of(model, rows).item())
            train.train_step(model, optimizer, rows[:kept], train.learning_rate(step, STEPS))
    assert losses[0][0] == losses[1][0]
    with pytest.raises(loss_check.LossMismatch):
        for step, (whole, partial) in enumerate(zip(*losses), start=1):
            loss_check.check(step, partial, whole)


def crash_report(folder, texts):
    (folder / "killed.json").write_text(json.dumps({"at": 100.0}))
    for rank, (text, at) in texts.items():
        (folder / f"survivor-{rank}.json").write_text(
            json.dumps({"at": at, "kind": "RuntimeError", "text": text}))
    return subprocess.run([sys.executable, EXAMPLE / "report.py", "crash", "--work", folder,
                           "--victim", "2"], timeout=LIMIT_S, capture_output=True, text=True,
                          check=False)


def test_survivors_must_name_the_dead_rank_in_time(tmp_path):
    good = {rank: (f"all_reduce #7: rank 2 is gone; I am rank {rank}", 101.0)
            for rank in (0, 1, 3)}
    report = crash_report(tmp_path, good)
    assert report.returncode == 0, report.stdout
    assert report.stdout.count("rank 2 is gone") == 3
    for wrong in (("rank 23 is gone", 101.0), ("connection reset", 101.0),
                  ("rank 2 is gone", 105.5)):
        report = crash_report(tmp_path, {**good, 3: wrong})
        assert report.returncode == 1 and "2 of 3 survivors" in report.stdout
    (tmp_path / "survivor-3.json").unlink()
    report = crash_report(tmp_path, {rank: good[rank] for rank in (0, 1)})
    assert report.returncode == 1 and "rank 3 said nothing" in report.stdout
