"""perf/compare.py: kept rows become tables whose verdicts follow from the goals.

By a CSV written here: which rows are compared, what the limits are, and what is said of a core
state that was not seen. Nothing is measured.
"""

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "perf"))

import compare  # noqa: E402
import goals  # noqa: E402

NEAR, FAR = 60, 250


def probe(ns):
    return f"# 12:00:00 round 1 c2c one-way ns: min {ns} q25 {ns} med {ns} q75 {ns} max {ns} | x"


def row(peer, op, ranks, size, us):
    return f"{peer},{op},{ranks},{size},{us},{us},{us},100,5"


@pytest.fixture
def kept(tmp_path):
    def keep(name, lines):
        csv = tmp_path / f"{name}.csv"
        csv.write_text("peer,op,ranks,bytes,us,us_min,us_max,iters,reps\n" + "\n".join(lines))
        return csv

    return keep


def verdicts(name, csv):
    return {
        (key[0], key[1], key[2], row.bytes, row.ours): row.verdict()
        for key, found, _, _ in compare.sections(name, csv)
        for row in found
    }


def test_small_all_reduce_is_held_to_the_best_mpi(kept):
    lines = [probe(NEAR), row("isthmus", "all_reduce", 2, 8, 0.2)]
    lines += [probe(NEAR), row("impi", "all_reduce", 2, 8, 0.19)]
    lines += [probe(NEAR), row("ompi4", "all_reduce", 2, 8, 0.3)]
    csv = kept("all-reduce-p2", lines)
    assert verdicts("all-reduce-p2", csv) == {
        ("all_reduce", 2, "near", 8, "isthmus"): "1: 0.19 missed 1.05x"
    }
    text = compare.render("all-reduce-p2", csv)
    assert "Far cores: not seen in 3 probes, not measured." in text
    assert "Goals met in 0 of 1 cells" in text


def test_only_rows_of_one_core_state_are_compared(kept):
    lines = [probe(NEAR), row("isthmus", "all_reduce", 2, 8, 0.2)]
    lines += [probe(FAR), row("impi", "all_reduce", 2, 8, 0.1)]
    assert verdicts("all-reduce-p2", kept("all-reduce-p2", lines)) == {
        ("all_reduce", 2, "near", 8, "isthmus"): "-"
    }


def test_halves_are_held_to_float32_of_as_many_elements(kept):
    lines = [probe(FAR), row("isthmus", "all_reduce", 2, 1 << 20, 100)]
    lines += [probe(FAR), row("isthmus-bfloat16", "all_reduce", 2, 1 << 19, 60)]
    lines += [probe(FAR), row("isthmus-float16", "all_reduce", 2, 1 << 19, 66)]
    assert verdicts("half", kept("half", lines)) == {
        ("all_reduce", 2, "far", 1 << 20, "isthmus-bfloat16"): "half: 60.0 met",
        ("all_reduce", 2, "far", 1 << 20, "isthmus-float16"): "half: 60.0 missed 1.10x",
    }


def test_a_limit_is_never_below_what_the_bare_kernel_allows():
    def limit(state, best, private):
        cell = goals.Cell(
            "all_reduce", 2, state, 128 << 10, best, {"impi": best}, private=private
        )
        return goals.limit(goals.cpp, cell)

    assert limit("near", 12.0, 5.0) == ("3", pytest.approx(10.0))
    assert limit("near", 12.0, 11.0) == ("3", pytest.approx(1.03 * 11.0))
    assert limit("far", 12.0, 5.0) == ("3", pytest.approx(12.0))
    assert limit("far", 12.0, 20.0) == ("3", pytest.approx(21.0))


def test_every_table_has_its_place_in_the_document():
    text = compare.DOCUMENT.read_text()
    for name in compare.TABLES:
        assert text.count(f"<!-- compare.py {name} -->") == 1
