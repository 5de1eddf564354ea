#!/usr/bin/env bash
# Goal: ranks of two nodes that share nothing but a shaped link reduce right, over that link, and
# share memory within a node.
# Method: all_reduce_perf on 2 nodes of 2 ranks at 500 Mbit/s checks every row; the links' own
# counters say what crossed. PERF_PROGRAMS is the folder of the built perf programs (default
# build/dev/perf). Exit 77 (skipped) where network namespaces are not allowed.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
# shellcheck source=tests/labs/launch.sh
source "$here/launch.sh"
programs=${PERF_PROGRAMS:-$here/../../build/dev/perf}
readonly BYTES=65536 ITERATIONS=20
# The two rows, out of place and in place. A node has to send a whole buffer for each all_reduce.
readonly LEAST=$((2 * ITERATIONS * BYTES))

inside() { # REPORT
  local node before=() sent
  for node in 0 1; do
    before+=("$(sent_bytes "$node")")
  done
  launch 2 2 25 "$programs/all_reduce_perf" -b "$BYTES" -e "$BYTES" -n "$ITERATIONS" -w 1 -c 1 \
    --json - > "$1" || fail "a rank failed"
  for node in 0 1; do
    sent=$(($(sent_bytes "$node") - before[node]))
    echo "node $node sent $sent bytes; $LEAST at least are needed"
    ((sent >= LEAST)) || fail "node $node sent too little: the ranks have met elsewhere"
    # Warm-up and check add a tenth; flat algorithms would send up to 3 times as much.
    ((sent <= 2 * LEAST)) || fail "node $node sent too much for two nodes that share memory inside"
  done
}

if [[ ${1:-} == inside ]]; then
  inside "$2"
  exit
fi
need_lab "$programs/all_reduce_perf"
report=$(mktemp "${TMPDIR:-/tmp}/isthmus-perf-test.XXXXXX")
trap 'rm -f "$report"' EXIT
NETLAB_NAME=pt$$ "$NETLAB" with 2 --rate 500mbit -- bash "$0" inside "$report"
python3 - "$report" << 'END'
import json
import sys

with open(sys.argv[1]) as file:
    report = json.load(file)
assert report["meta"]["ranks"] == 4, report["meta"]
assert len(report["rows"]) == 2, report["rows"]
for row in report["rows"]:
    assert row["wrong"] == 0, row
    print(f"{row['bytes']} bytes: {row['time_us']:.0f} us, {row['algorithm']}, 0 wrong")
END
echo "perf_test: passed"
