#!/usr/bin/env python3
"""The perf programs from outside: what they print, in which form, and how they end.

Method: runs the built programs (folder in PERF_PROGRAMS) with 2 and 4 forked ranks on small sizes
and parses what they write. Times are never judged, only their arithmetic. Standard library only.
"""

import concurrent.futures
import csv
import io
import json
import math
import os
import pathlib
import signal
import socket
import subprocess
import sys
import tempfile
import unittest

PROGRAMS = pathlib.Path(os.environ.get("PERF_PROGRAMS", "build/dev/perf"))
OPS = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce", "gather", "scatter",
       "alltoall", "sendrecv")
REDUCES = ("all_reduce", "reduce_scatter", "reduce")
# How often busbw is algbw times (ranks - 1) / ranks; of the others it is algbw itself.
OTHERS = {"all_reduce": 2, "all_gather": 1, "reduce_scatter": 1, "gather": 1, "scatter": 1,
          "alltoall": 1}
# Forms that an operation has, as "inplace" of its rows.
FORMS = {"broadcast": [True], "alltoall": [False], "sendrecv": [False]}
LIMIT_S = 60
# 8 floats have sum, avg, min, max, prod, premul_sum; 8 integers have 3 bit operations instead of
# the last; bool has these but no avg; 2 complex types have no order.
PAIRS = 8 * 6 + 8 * 8 + 7 + 2 * 4
META = ["machine", "version", "ranks", "nodes", "command"]
ROW = ["op", "dtype", "redop", "ranks", "count", "bytes", "inplace", "time_us", "time_us_min",
       "time_us_max", "algbw_gbs", "busbw_gbs", "wrong", "algorithm"]
QUICK = ("-n", "4", "-w", "1")


def program(op):
    return str(PROGRAMS / f"{op}_perf")


def run(op, *arguments, env=None):
    """The finished process; no rank variable of the caller's reaches it."""
    clean = {name: value for name, value in os.environ.items()
             if not name.startswith(("ISTHMUS_", "OMPI_", "PMI_", "SLURM_", "MV2_"))
             and name not in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")}
    return subprocess.run([program(op), *arguments], capture_output=True, text=True,
                          timeout=LIMIT_S, env={**clean, **(env or {})}, check=False)


class Programs(unittest.TestCase):

    def ended(self, result, code=0):
        self.assertEqual(result.returncode, code, f"{result.args}\n{result.stdout}{result.stderr}")

    def check_rows(self, report, op, ranks):
        self.assertEqual(list(report), ["meta", "rows"])
        self.assertEqual(list(report["meta"]), META)
        self.assertEqual(report["meta"]["ranks"], ranks)
        self.assertIn("host", report["meta"]["machine"])
        self.assertIn(f"{op}_perf", report["meta"]["command"])
        factor = (ranks - 1) / ranks * OTHERS[op] if op in OTHERS else 1
        for row in report["rows"]:
            self.assertEqual(list(row), ROW)
            self.assertEqual(row["op"], op)
            self.assertEqual(row["ranks"], ranks)
            self.assertEqual(row["wrong"], 0, row)
            self.assertTrue(row["algorithm"], row)
            self.assertLessEqual(row["time_us_min"], row["time_us"] * 1.0001, row)
            self.assertGreaterEqual(row["time_us_max"], row["time_us"] * 0.9999, row)
            self.assertTrue(math.isclose(row["algbw_gbs"], row["bytes"] / row["time_us"] / 1e3,
                                         rel_tol=1e-6), row)
            self.assertTrue(math.isclose(row["busbw_gbs"], row["algbw_gbs"] * factor,
                                         rel_tol=1e-6), row)

    def test_json_alone_on_stdout(self):
        for op in OPS:
            for ranks in (2, 4):
                with self.subTest(op=op, ranks=ranks):
                    result = run(op, "--ranks", str(ranks), "-b", "8", "-e", "256K", "-f", "8",
                                 "--json", "-", *QUICK)
                    self.ended(result)
                    self.assertEqual(result.stderr, "")
                    report = json.loads(result.stdout)
                    self.check_rows(report, op, ranks)
                    sizes = [row["bytes"] for row in report["rows"]]
                    self.assertEqual(sizes, sorted(sizes))
                    self.assertEqual([row["inplace"] for row in report["rows"]],
                                     FORMS.get(op, [False, True]) * len(set(sizes)))
                    self.assertEqual(report["rows"][0]["redop"],
                                     "sum" if op in REDUCES else "none")

    def test_every_dtype_and_reduction_is_exact(self):
        for op in ("all_reduce", "reduce_scatter"):
            result = run(op, "--ranks", "4", "-b", "40", "-e", "40000", "-f", "1000", "-d", "all",
                         "-o", "all", "-c", "2", "--json", "-", "-n", "1", "-w", "0")
            self.ended(result)
            rows = json.loads(result.stdout)["rows"]
            self.check_rows(json.loads(result.stdout), op, 4)
            self.assertEqual(len({(row["dtype"], row["redop"]) for row in rows}), PAIRS)

    def test_root(self):
        for op in ("broadcast", "reduce", "gather", "scatter"):
            result = run(op, "--ranks", "4", "--nodes", "2", "-r", "2", "-b", "64K", "-e", "64K",
                         "-c", "2", *QUICK)
            self.ended(result)
            line = [line.split() for line in result.stdout.splitlines() if line[0] != "#"][0]
            self.assertEqual(line[4], "2")
            self.assertIn("Out of bounds values : 0 OK", result.stdout)
            result = run(op, "--ranks", "4", "--root", "4")
            self.ended(result, 2)
            self.assertIn("4 is not one of --ranks 4", result.stderr)

    def test_two_nodes(self):
        for op in OPS:
            result = run(op, "--ranks", "4", "--nodes", "2", "-b", "8", "-e", "512K", "-f", "256",
                         "--json", "-", *QUICK)
            self.ended(result)
            report = json.loads(result.stdout)
            self.check_rows(report, op, 4)
            self.assertEqual(report["meta"]["nodes"], 2)

    def test_csv_alone_on_stdout(self):
        result = run("all_reduce", "--ranks", "2", "-b", "1K", "-e", "3K", "-i", "1K", "--csv",
                     "-", *QUICK)
        self.ended(result)
        self.assertEqual(result.stderr, "")
        rows = list(csv.DictReader(io.StringIO(result.stdout)))
        self.assertEqual(list(rows[0]), ROW)
        self.assertEqual([row["bytes"] for row in rows if row["inplace"] == "false"],
                         ["1024", "2048", "3072"])
        self.assertEqual({row["wrong"] for row in rows}, {"0"})

    def test_what_programs_read(self):
        """O-33: every quantity that a reader of the numbers needs, by name, in both forms."""
        factors = {"all_reduce": 1.5, "reduce_scatter": 0.75, "all_gather": 0.75, "alltoall": 0.75,
                   "broadcast": 1}
        sizes = [(("-b", "8", "-e", "4M", "-f", "8"), [8 << (3 * i) for i in range(7)]),
                 (("-b", "4000012", "-e", "4000012"), [4000012])]
        for op, factor in factors.items():
            for flags, bytes_ in sizes:
                for form in ("json", "csv"):
                    with self.subTest(op=op, form=form, flags=flags):
                        result = run(op, "--ranks", "4", *flags, f"--{form}", "-", "-c", "1",
                                     "-n", "1", "-w", "0")
                        self.ended(result)
                        self.assertEqual(result.stderr, "")
                        rows = (json.loads(result.stdout)["rows"] if form == "json" else
                                list(csv.DictReader(io.StringIO(result.stdout))))
                        self.check_quantities(rows, op, factor, bytes_)

    def check_quantities(self, rows, op, factor, sizes):
        forms = {str(row["inplace"]).lower() for row in rows}
        self.assertEqual(forms, {str(form).lower() for form in FORMS.get(op, [False, True])})
        for row in rows:
            self.assertEqual((row["op"], row["dtype"]), (op, "float32"))
            self.assertEqual(row["redop"], "sum" if op in REDUCES else "none")
            self.assertEqual(int(row["wrong"]), 0)
            moved = int(row["bytes"])
            # The size asked for, but for what does not divide by the ranks.
            self.assertTrue(any(0 <= size - moved < 16 or (size < 16 and moved <= 16)
                                for size in sizes), (moved, sizes))
            self.assertEqual(moved % 4, 0)
            self.assertIn(moved, (4 * int(row["count"]), 16 * int(row["count"])))
            time_us, algbw, busbw = (float(row[name])
                                     for name in ("time_us", "algbw_gbs", "busbw_gbs"))
            self.assertTrue(math.isclose(algbw, moved / time_us / 1e3, rel_tol=1e-5), row)
            self.assertTrue(math.isclose(busbw, algbw * factor, rel_tol=1e-5), row)

    def test_table_and_files(self):
        with tempfile.TemporaryDirectory() as folder:
            rows = pathlib.Path(folder, "rows.json")
            lines = pathlib.Path(folder, "rows.csv")
            result = run("all_reduce", "--ranks", "2", "--minbytes", "8", "--maxbytes", "64",
                         "--stepfactor", "2", "--iters", "3", "--warmup_iters", "0", "--check",
                         "1", "--average", "3", "--pin", "--json", str(rows), "--csv", str(lines))
            self.ended(result)
            self.assertEqual(len(json.loads(rows.read_text())["rows"]), 8)
            self.assertEqual(len(lines.read_text().splitlines()), 9)
        data = [line.split() for line in result.stdout.splitlines() if not line.startswith("#")]
        self.assertEqual([line[0] for line in data], ["8", "16", "32", "64"])
        for line in data:
            # size count type redop root, then time algbw busbw #wrong twice, then the algorithm
            self.assertEqual(line[2:5], ["float32", "sum", "-1"])
            self.assertEqual((line[8], line[12]), ("0", "0"))
            self.assertEqual(len(line), 14)
        self.assertRegex(result.stdout, r"# Out of bounds values : 0 OK\n# Avg bus bandwidth    : ")

    def test_unchecked_rows_say_so(self):
        result = run("all_reduce", "--ranks", "2", "-b", "8", "-e", "8", "-c", "0", "--json", "-",
                     *QUICK)
        self.ended(result)
        self.assertIsNone(json.loads(result.stdout)["rows"][0]["wrong"])

    def test_bad_flags_name_the_nearest(self):
        for arguments, suggestion in ((["--minbyte", "8"], "--minbytes"),
                                      (["--iter", "8"], "--iters"),
                                      (["--datatyp=float"], "--datatype"),
                                      (["-d", "flot"], "float"),
                                      (["-o", "summ"], "sum")):
            result = run("all_reduce", "--ranks", "2", *arguments)
            self.ended(result, 2)
            self.assertEqual(result.stdout, "")
            self.assertIn(f"did you mean '{suggestion}'", result.stderr)

    def test_bad_values(self):
        for arguments, word in ((["-b", "8X"], "8X"), (["-b", "2M", "-e", "1M"], "--maxbytes"),
                                (["-n", "0"], "--iters"), (["-a", "4"], "--average"),
                                (["--json", "-", "--csv", "-"], "--csv"),
                                (["-b"], "--minbytes"), (["--nodes", "3"], "--nodes")):
            result = run("all_reduce", "--ranks", "2", *arguments)
            self.ended(result, 2)
            self.assertIn(word, result.stderr)
        result = run("all_reduce", "-n", "1")
        self.ended(result, 2)
        self.assertIn("--ranks", result.stderr)

    def test_help_teaches(self):
        result = run("all_gather", "--help")
        self.ended(result)
        for word in ("--minbytes", "--ranks", "busbw", "torchrun", "Exit code"):
            self.assertIn(word, result.stdout)

    def test_a_file_that_cannot_be_written(self):
        result = run("all_reduce", "--ranks", "2", "-b", "8", "-e", "8", "--json",
                     "/proc/nothing/rows.json", *QUICK)
        self.ended(result, 1)
        self.assertIn("/proc/nothing/rows.json", result.stderr)

    def test_a_launcher_s_variables(self):
        result = run("all_reduce", "-b", "8", "-e", "8", "--json", "-", *QUICK,
                     env={"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1",
                          "MASTER_PORT": "29417"})
        self.ended(result)
        self.check_rows(json.loads(result.stdout), "all_reduce", 1)

    def test_a_port_that_torchrun_s_store_has(self):
        with socket.create_server(("127.0.0.1", 0)) as agent:
            place = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1",
                     "MASTER_PORT": str(agent.getsockname()[1]), "TORCHELASTIC_RUN_ID": "test",
                     "TORCHELASTIC_USE_AGENT_STORE": "True"}
            with concurrent.futures.ThreadPoolExecutor() as threads:
                ranks = [threads.submit(run, "all_reduce", "-b", "8", "-e", "8", "--json", "-",
                                        *QUICK, env={**place, "RANK": str(rank)})
                         for rank in range(2)]
            for rank in ranks:
                self.ended(rank.result())
            self.check_rows(json.loads(ranks[0].result().stdout), "all_reduce", 2)
            self.assertEqual(ranks[1].result().stdout, "")

    def test_children_die_with_their_parent(self):
        with tempfile.TemporaryDirectory() as folder:
            # Endless: so many iterations never end.
            parent = subprocess.Popen(
                [program("all_reduce"), "--ranks", "2", "-b", "8", "-e", "8", "-n", "1000000000",
                 "--csv", "-"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                env={**os.environ, "TMPDIR": folder})
            try:
                # The header shows that the ranks run; they hold stdout open as long as they live.
                self.assertTrue(parent.stdout.readline().startswith("op,"))
                parent.send_signal(signal.SIGKILL)
                parent.communicate(timeout=LIMIT_S)
            finally:
                parent.kill()
                parent.communicate()


if __name__ == "__main__":
    if not (PROGRAMS / "all_reduce_perf").exists():
        print(f"{PROGRAMS} holds no perf programs: set PERF_PROGRAMS", file=sys.stderr)
        sys.exit(1)
    unittest.main(verbosity=1)
