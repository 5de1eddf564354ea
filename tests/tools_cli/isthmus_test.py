#!/usr/bin/env python3
"""The command `isthmus` from outside: info, status, doctor, schedule, and bad command lines.

Method: runs the built program (COMMAND_UNDER_TEST). `status` looks at a live job of two forked
ranks (STUCK_JOB) of which one stopped itself, while the other waits for it. Standard library only.
"""

import contextlib
import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import tempfile
import time
import unittest
import xml.etree.ElementTree

COMMAND = os.environ.get("COMMAND_UNDER_TEST", "build/dev/tools/isthmus/isthmus")
STUCK_JOB = os.environ.get("STUCK_JOB", "build/dev/tests/tools_cli/tools_cli_stuck_job")
LIMIT_S = 60

# Measures hundreds of times.
TUNE_LIMIT_S = 300


def run(*arguments, env=None):
    limit_s = TUNE_LIMIT_S if "tune" in arguments else LIMIT_S
    return subprocess.run([COMMAND, *arguments], capture_output=True, text=True, timeout=limit_s,
                          env={**os.environ, **(env or {})}, check=False)


@contextlib.contextmanager
def stuck_job(nodes="aa"):
    """A running job; yields its process and the pids of its two ranks. Ended at the end."""
    with tempfile.TemporaryDirectory() as folder:
        job = subprocess.Popen([STUCK_JOB, str(pathlib.Path(folder, "store")), nodes],
                               stdout=subprocess.PIPE, text=True)
        try:
            words = job.stdout.readline().split()
            yield job, [int(word) for word in words[1:]]
        finally:
            job.kill()  # Its ranks die with it.
            job.communicate(timeout=LIMIT_S)


class Isthmus(unittest.TestCase):

    def ended(self, result, code=0):
        self.assertEqual(result.returncode, code, f"{result.args}\n{result.stdout}{result.stderr}")

    def group_of(self, pids, accept):
        """The JSON of the job's group once accept(members by rank) holds; asks again and again."""
        deadline = time.monotonic() + LIMIT_S
        seen = None
        while time.monotonic() < deadline:
            result = run("status", "--json")
            self.ended(result)
            for group in json.loads(result.stdout)["groups"]:
                members = {member["rank"]: member for member in group["members"]}
                if {member["pid"] for member in members.values()} & set(pids):
                    seen = group
                    if accept(members):
                        return group
        self.fail(f"status never showed it; last: {json.dumps(seen, indent=1)}")

    def test_status_names_the_stopped_rank(self):
        with stuck_job() as (job, pids):
            group = self.group_of(pids, lambda members: len(members) == 2
                                  and members[0]["phase"] == "waiting"
                                  and members[1]["process"] == "stopped")
            waiting, stopped = group["members"]
            self.assertEqual(group["ranks"], 2)
            self.assertEqual([waiting["pid"], stopped["pid"]], pids)
            self.assertEqual(waiting["waits_for"], [1])
            self.assertEqual(waiting["sequence"], 4)
            self.assertEqual(waiting["operation"], "all_reduce float32[100] SUM")
            self.assertGreaterEqual(waiting["phase_s"], 0)
            self.assertEqual(stopped["finished"], 3)
            text = run("status")
            self.ended(text)
            self.assertIn(f"rank 1 is waited for: its process {pids[1]} is stopped", text.stdout)
            self.assertIn("all_reduce float32[100] SUM", text.stdout)
            os.kill(pids[1], signal.SIGCONT)
            self.assertEqual(job.wait(timeout=LIMIT_S), 0)

    def test_status_shows_ranks_that_share_no_memory_as_one_group(self):
        with stuck_job("ab") as (_, pids):
            group = self.group_of(pids, lambda members: len(members) == 2
                                  and members[0]["phase"] == "waiting"
                                  and members[1]["process"] == "stopped")
            self.assertEqual([member["pid"] for member in group["members"]], pids)
            self.assertIn(f"rank 1 is waited for: its process {pids[1]} is stopped; "
                          f"`kill -CONT {pids[1]}` lets it go on", group["verdicts"])

    def test_status_of_a_dead_rank(self):
        with stuck_job() as (_, pids):
            self.group_of(pids, lambda members: members.get(1, {}).get("process") == "stopped")
            os.kill(pids[0], signal.SIGSTOP)  # Keeps what it sees of rank 1.
            os.kill(pids[1], signal.SIGKILL)
            group = self.group_of(pids, lambda members: members.get(1, {}).get("process") == "dead")
            self.assertEqual({member["rank"]: member["process"] for member in group["members"]},
                             {0: "stopped", 1: "dead"})

    def test_status_passes_over_what_is_no_segment(self):
        files = []
        for size in (0, 100, 1 << 20):
            fd = os.memfd_create("isthmus-rank-0")
            os.ftruncate(fd, size)
            os.write(fd, b"not a segment")
            files.append(fd)
        # The magic and version of a segment, cut short.
        fd = os.memfd_create("isthmus-rank-1")
        os.write(fd, (0x31534d4854534924).to_bytes(8, "little") + (1).to_bytes(4, "little"))
        files.append(fd)
        # A header whose offsets point past its end.
        fd = os.memfd_create("isthmus-rank-2")
        os.ftruncate(fd, 1 << 16)
        os.pwrite(fd, (0x31534d4854534924).to_bytes(8, "little") + (1).to_bytes(4, "little")
                  + b"\xff" * 4096, 0)
        files.append(fd)
        try:
            result = run("status", "--json")
            self.ended(result)
            groups = json.loads(result.stdout)["groups"]
            pids = {member["pid"] for group in groups for member in group["members"]}
            self.assertNotIn(os.getpid(), pids)
        finally:
            for fd in files:
                os.close(fd)

    def test_status_says_when_there_are_no_ranks(self):
        result = run("status")
        self.ended(result)
        self.assertRegex(result.stdout, "^(no ranks found|group ')")

    def test_info(self):
        result = run("info", "--json", env={"ISTHMUS_SPIN_US": "77"})
        self.ended(result)
        info = json.loads(result.stdout)
        self.assertGreaterEqual(info["machine"]["cores"], 1)
        rows = {row["name"]: row for row in info["environment"]}
        self.assertEqual((rows["ISTHMUS_SPIN_US"]["value"], rows["ISTHMUS_SPIN_US"]["source"]),
                         ("77", "environment"))
        self.assertEqual(rows["ISTHMUS_STAGING_MB"]["source"], "default")
        text = run("info")
        self.ended(text)
        for word in ("dev_shm_bytes", "memlock_bytes", "transparent_hugepage_enabled", "l2_bytes",
                     "memfd_sealing", "yama_ptrace_scope", "staging memory", "mtu", "ISTHMUS_LOG"):
            self.assertIn(word, text.stdout)

    def test_info_tells_what_the_kernel_tells(self):
        info = json.loads(run("info", "--json").stdout)
        for interface in info["interfaces"]:
            folder = pathlib.Path("/sys/class/net", interface["name"])
            self.assertEqual(interface["mtu"], int((folder / "mtu").read_text()))
            if interface["speed_mbit"] is not None:
                self.assertEqual(interface["speed_mbit"], int((folder / "speed").read_text()))
        scope = pathlib.Path("/proc/sys/kernel/yama/ptrace_scope")
        copy = info["process_copy"]
        self.assertEqual(copy["yama_ptrace_scope"],
                         scope.read_text().strip() if scope.exists() else None)
        self.assertEqual(copy["allowed"], "refusal" not in copy)
        if copy["yama_ptrace_scope"] == "3":
            self.assertFalse(copy["allowed"])

    def test_info_finds_the_staging_of_running_ranks(self):
        with stuck_job() as (_, pids):
            info = json.loads(run("info", "--json").stdout)
            ranks = {rank["pid"]: rank for rank in info["staging"]["ranks"]}
            for pid in pids:
                self.assertEqual(ranks[pid]["most_bytes"], 32 << 20)
                self.assertLessEqual(ranks[pid]["used_bytes"], 32 << 20)
            text = run("info").stdout
            self.assertRegex(text, rf"rank 0 +pid {pids[0]} +[0-9.]+ MiB of 32.0")

    def test_info_env(self):
        result = run("info", "--env", env={"ISTHMUS_STAGNG_MB": "8"})
        self.ended(result)
        self.assertRegex(result.stdout, r"ISTHMUS_LOG +warn +default")
        self.assertIn("did you mean ISTHMUS_STAGING_MB", result.stderr)

    def test_info_save_of_this_machine(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder, "deep", "cluster.json")
            self.ended(run("info", "--save", str(path), "--ranks", "4", "--nodes", "3",
                           "--between-us", "20", "--between-gbit", "100",
                           env={"ISTHMUS_TUNE_FILE": "none"}))
            told = json.loads(path.read_text())
            self.assertEqual((told["node"]["ranks"], told["count"]), (4, 3))
            self.assertEqual(told["between"]["alpha_us"], 20)
            self.assertAlmostEqual(told["between"]["beta_us_per_mib"], 83.886, places=3)
            self.assertFalse(told["inside"]["measured"])
            place = ["all_reduce", "--topology", str(path), "--bytes", "1M"]
            for command in ("show", "explain", "list", "cost", "simulate", "verify"):
                result = run("schedule", command, *place)
                self.ended(result)
            self.assertIn("of 12,", run("schedule", "show", *place).stdout)
            self.assertIn("of 24,", run("schedule", "show", *place, "--ranks", "24").stdout)
            for extra, words in ((["--ranks", "7"], "expected a multiple"),
                                 (["--nodes", "2"], "--locals and --nodes-per-rack cannot")):
                refused = run("schedule", "show", *place, *extra)
                self.ended(refused, 2)
                self.assertIn(words, refused.stderr)
            path.write_text(path.read_text().replace('"ranks": 4', '"ranks": "four"'))
            refused = run("schedule", "show", *place)
            self.ended(refused, 2)
            self.assertIn('node.ranks: expected a number of ranks from 1 to 1048576, got "four"',
                          refused.stderr)

    def job(self, nodes, *arguments, racks=None, **env):
        """Runs the command as one rank for each letter of nodes, on the node of that name, and in
        the rack of that name: what rank 0 printed, and what all said."""
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = str(free.getsockname()[1])
        ranks = [subprocess.Popen(
            [COMMAND, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            env={**os.environ, "RANK": str(rank), "WORLD_SIZE": str(len(nodes)),
                 "MASTER_PORT": port, "MASTER_ADDR": "127.0.0.1", "ISTHMUS_NODE_ID": node,
                 "ISTHMUS_RACK_ID": rack, **env})
                 for rank, (node, rack) in enumerate(zip(nodes, racks or "r" * len(nodes)))]
        said = [rank.communicate(timeout=LIMIT_S) for rank in ranks]
        return [rank.returncode for rank in ranks], said[0][0], [errors for _, errors in said]

    def test_info_save_of_a_job(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder, "cluster.json")
            codes, _, errors = self.job("aab", "info", "--save", str(path), racks="xxy")
            self.assertEqual(codes, [0, 0, 0], errors)
            told = json.loads(path.read_text())
            self.assertEqual([node["ranks"] for node in told["nodes"]], [2, 1])
            self.assertTrue(all(node["name"] for node in told["nodes"]))
            self.assertEqual([node["rack"] for node in told["nodes"]], ["x", "y"])
            self.assertGreater(told["between"]["alpha_us"], 0)
            self.assertGreater(told["across"]["alpha_us"], 0)
            self.ended(run("schedule", "simulate", "all_reduce", "--topology", str(path)))

    def test_tune_of_a_job_measures_between_its_nodes(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder, "table.json")
            env = {"ISTHMUS_TUNE_FILE": str(path)}
            codes, printed, errors = self.job("ab", "tune", "--json", **env)
            self.assertEqual(codes, [0, 0], errors)
            between = json.loads(printed)["between"]
            self.assertGreater(between["alpha_us"], 0)
            self.assertGreater(between["beta_us_per_mib"], 0)
            # A choice goes by it.
            told = run("schedule", "explain", "all_reduce", "--nodes", "2", env=env)
            self.assertIn("between nodes measured as well", told.stdout)
            self.assertIn(f"{between['alpha_us']:.0f} us a message", told.stdout)
            codes, _, errors = self.job("aa", "tune", **env)
            self.assertEqual(codes, [1, 1])
            for said in errors:
                self.assertIn("all 2 ranks of this job share a node", said)

    def test_doctor(self):
        result = run("doctor")
        self.assertIn(result.returncode, (0, 1), result.stderr)
        names = ("memfd_create", "/dev/shm", "pidfd_open", "eventfd", "passing descriptors",
                 "open files", "locked memory", "TCP congestion control", "network interfaces")
        lines = result.stdout.splitlines()
        self.assertEqual(len(lines), len(names))
        for name, line in zip(names, lines):
            self.assertRegex(line, f"^(ok|warn|fail) +{name} ")
        rows = json.loads(run("doctor", "--json").stdout)
        self.assertEqual([row["check"] for row in rows], list(names))
        failed = any(row["verdict"] == "fail" for row in rows)
        self.assertEqual(result.returncode, 1 if failed else 0)

    def test_schedule_list(self):
        result = run("schedule", "list", "all_reduce", "--nodes", "2", "--locals", "2")
        self.ended(result)
        rows = result.stdout.splitlines()[2:]
        self.assertTrue(all(row[2:].startswith("all_reduce") for row in rows), result.stdout)
        self.assertEqual(sum(row.startswith("*") for row in rows), 1, result.stdout)

    def test_schedule_show(self):
        result = run("schedule", "show", "all_reduce", "--nodes", "2", "--locals", "2", "--rank",
                     "1", "--bytes", "1M")
        self.ended(result)
        self.assertRegex(result.stdout, r"^all_reduce by \w+: rank 1 of 4")
        forced = run("schedule", "show", "all_reduce", "--nodes", "4", "--locals", "1", "--bytes",
                     "1M", "--algorithm", "ring_all_reduce")
        self.ended(forced)
        self.assertIn("by ring_all_reduce", forced.stdout)

    def test_schedule_verify(self):
        for op in ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "barrier"):
            result = run("schedule", "verify", op, "--nodes", "2", "--locals", "2", "--bytes",
                         "64K")
            self.ended(result)
            for line in result.stdout.splitlines():
                self.assertRegex(line, f"^proved {op} by ")
        unknown = run("schedule", "verify", "all_reduce", "--algorithm", "rign_all_reduce")
        self.ended(unknown, 2)
        self.assertIn("schedule list", unknown.stderr)

    def test_schedule_cost_and_simulate(self):
        place = ["all_reduce", "--nodes", "2", "--locals", "2", "--bytes", "1M"]
        cost = run("schedule", "cost", *place)
        self.ended(cost)
        # Two nodes must each send at least half of the sum to the other, and get as much.
        self.assertRegex(cost.stdout, r"bytes out +\d{6,}")
        for extra in ([], ["--rendezvous"]):
            simulated = run("schedule", "simulate", *place, *extra)
            self.ended(simulated)
            self.assertRegex(simulated.stdout, r"time +\d+\.\d\d us")
        timeline = run("schedule", "simulate", *place, "--timeline")
        self.ended(timeline)
        self.assertRegex(timeline.stdout, r"rank 1 +step \d+ +\w+")

    def test_simulates_very_many_ranks(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder, "cluster.json")
            path.write_text('{"isthmus_topology": 1, "node": {"ranks": 8}, "count": 1,'
                            ' "between": {"alpha_us": 30, "beta_us_per_mib": 84}}')
            result = run("schedule", "simulate", "all_reduce", "--topology", str(path), "--ranks",
                         "131072", "--bytes", "1K", "--json")
            self.ended(result)
            told = json.loads(result.stdout)
            self.assertEqual((told["ranks"], told["nodes"]), (131072, 16384))
            self.assertEqual(told["simulated_ranks"], 8)
            # 14 rounds of one message each, and what happens inside the nodes.
            self.assertGreater(told["time_us"], 14 * 30)
            self.assertLess(told["time_us"], 15 * 30)

    def test_schedule_draw(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder, "timeline.svg")
            place = ["draw", "all_reduce", "--nodes", "3", "--locals", "2", "-o", str(path)]
            result = run("schedule", *place, "--bytes", "64K")
            self.ended(result)
            svg = "{http://www.w3.org/2000/svg}"
            root = xml.etree.ElementTree.parse(path).getroot()
            self.assertEqual(root.tag, svg + "svg")
            self.assertIn("all_reduce of 64 KiB", root.find(svg + "title").text)
            self.assertRegex(root.find(svg + "desc").text, r"ended after \d+\.\d\d us.*of 6 ranks")
            texts = [text.text for text in root.iter(svg + "text")]
            for word in ("Send", "Reduce", "Await", "rank 0", "node 0 out"):
                self.assertIn(word, texts)
            right = float(root.get("width"))
            bars = [bar for bar in root.iter(svg + "rect") if bar.find(svg + "title") is not None]
            self.assertGreater(len(bars), 20)
            for bar in bars:
                self.assertLessEqual(float(bar.get("x")) + float(bar.get("width")), right)
            path.unlink()
            refused = run("schedule", *place, "--bytes", "4M", "--algo", "ring_all_reduce",
                          "--ranks", "1000", "--nodes", "500")
            self.ended(refused, 2)
            refused = run("schedule", "draw", "broadcast", "--nodes", "100", "--bytes", "1M",
                          "--algo", "tree_broadcast", "-o", str(path))
            self.ended(refused, 2)
            self.assertIn("draw fewer ranks", refused.stderr)
            self.assertFalse(path.exists())

    def test_schedule_explain(self):
        env = {"ISTHMUS_TUNE_FILE": "none", "ISTHMUS_ALGO": ""}
        result = run("schedule", "explain", "all_reduce", "--bytes", "4M", "--json", env=env)
        self.ended(result)
        told = json.loads(result.stdout)
        rows = {row["algorithm"]: row for row in told["candidates"]}
        picked = rows[told["algorithm"]]
        self.assertTrue(picked["picked"] and not told["measured"])
        self.assertAlmostEqual(picked["predicted_us"], sum(picked["parts_us"].values()), places=6)
        for row in rows.values():
            self.assertEqual(row["picked"], "why_not" not in row)
            if row["fits"] and "messages" not in row.get("why_not", ""):
                self.assertGreaterEqual(row["predicted_us"], picked["predicted_us"])
        self.assertIn("48 B", rows["line_all_reduce"]["why_not"])
        self.assertIn("several nodes", rows["lanes_all_reduce"]["why_not"])
        self.assertIn("one rank", rows["alone"]["why_not"])
        text = run("schedule", "explain", "all_reduce", "--bytes", "4M", env=env)
        self.ended(text)
        for word in (told["algorithm"], "waiting for flags", "% slower", "built in",
                     "ISTHMUS_ALGO="):
            self.assertIn(word, text.stdout)
        forced = run("schedule", "explain", "all_reduce", "--bytes", "4M",
                     env={**env, "ISTHMUS_ALGO": "flat_all_reduce"})
        self.ended(forced)
        self.assertIn("flat_all_reduce, because it is forced", forced.stdout)
        half = run("schedule", "explain", "all_reduce", "--nodes", "2", "--half", env=env)
        self.ended(half)
        self.assertIn("ring_all_reduce", half.stdout)
        self.assertIn("round 16-bit sums", half.stdout)
        self.assertIn("messages", half.stdout)

    @unittest.skipIf("SANITIZED" in os.environ, "minutes of measuring what is not used")
    def test_tune(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder, "deep", "table.json")
            env = {"ISTHMUS_TUNE_FILE": str(path)}
            result = run("tune", "--ranks", "2", "--json", env=env)
            self.ended(result)
            table = json.loads(result.stdout)
            self.assertEqual(json.loads(path.read_text()), table)
            self.assertIn(f"wrote {path}", result.stderr)
            part, = table["ranks"]
            self.assertEqual(part["ranks"], 2)
            self.assertGreater(part["flag_us"], 0)
            for curve in ("copy", "read", "combine", "reduce"):
                self.assertTrue(all(rate > 0 for rate in part[curve]["us_per_mib"]))
            measured = {(row["op"], row["name"]) for row in part["algorithms"]}
            self.assertIn(("barrier", "line_barrier"), measured)
            self.assertTrue({op for op, _ in measured} >= {"all_reduce", "all_to_all", "scatter"})
            # What was written is what a choice goes by, and is explained as such.
            told = json.loads(run("schedule", "explain", "all_reduce", "--bytes", "1M", "--json",
                                  env=env).stdout)
            self.assertTrue(told["measured"])
            self.assertIn(str(path), told["costs"])
            # What it predicts is compared with what is measured between its sizes.
            checked = run("tune", "--check", "--json", env=env)
            self.ended(checked)
            rows = json.loads(checked.stdout)
            self.assertTrue({row["op"] for row in rows} >= {"all_reduce", "all_gather"})
            self.assertTrue(all(row["measured_us"] > 0 and row["predicted_us"] > 0 for row in rows))
            # Another number of ranks is added; what is there stays.
            table["between"] = {"alpha_us": 20.0, "beta_us_per_mib": 80.0}
            path.write_text(json.dumps(table))
            self.ended(run("tune", "--ranks", "3", env=env))
            added = json.loads(path.read_text())
            self.assertEqual([part["ranks"] for part in added["ranks"]], [2, 3])
            self.assertEqual(added["between"], table["between"])

    def test_tune_says_where_it_cannot_write(self):
        result = run("tune", "--ranks", "2", env={"ISTHMUS_TUNE_FILE": "none"})
        self.ended(result, 2)
        self.assertIn("--output", result.stderr)
        self.ended(run("tune", "--ranks", "1"), 2)

    def test_bad_command_lines(self):
        for arguments, suggestion in ((["statsu"], "status"), (["status", "--jsn"], "--json"),
                                      (["schedule", "shw"], "show"),
                                      (["schedule", "show", "all_reduc"], "all_reduce"),
                                      (["schedule", "show", "all_reduce", "--nods", "2"],
                                       "--nodes")):
            result = run(*arguments)
            self.ended(result, 2)
            self.assertEqual(result.stdout, "")
            self.assertIn(f"did you mean '{suggestion}'", result.stderr)
        for arguments in ([], ["schedule"], ["schedule", "show"],
                          ["schedule", "show", "all_reduce", "--rank", "2"],
                          ["schedule", "show", "all_reduce", "--bytes", "many"]):
            self.ended(run(*arguments), 2)

    def test_help_and_version(self):
        for arguments in (["--help"], ["schedule", "--help"], ["status", "--help"]):
            result = run(*arguments)
            self.ended(result)
            self.assertIn("isthmus", result.stdout)
        self.assertRegex(run("--version").stdout, r"^isthmus \d+\.\d+")


if __name__ == "__main__":
    for needed in (COMMAND, STUCK_JOB):
        if not pathlib.Path(needed).exists():
            print(f"{needed} is missing: set COMMAND_UNDER_TEST and STUCK_JOB", file=sys.stderr)
            sys.exit(1)
    unittest.main(verbosity=1)
