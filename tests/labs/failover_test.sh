#!/usr/bin/env bash
# Goal: a rail that is cut in the middle of operations costs its share and no wrong sum, and serves
# again once it is mended; with all rails cut the error comes within its limit and names the peer.
# Method: all_reduce_perf checks every row on 2 nodes of 1 rank with two shaped rails, while random
# rails are cut and mended, never both; then both are cut. SEQUENCES (default 3; make long: 20) cuts
# from SEED (printed). PERF_PROGRAMS is the folder of the built perf programs (default
# build/dev/perf). Exit 77 (skipped) where network namespaces are not allowed.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
# shellcheck source=tests/labs/launch.sh
source "$here/launch.sh"
programs=${PERF_PROGRAMS:-$here/../../build/dev/perf}
sequences=${SEQUENCES:-3}
RANDOM=${SEED:=$$}

sent_over() { # RAIL: bytes that node 0 has sent over it
  "$NETLAB" exec 0 awk -v rail="rail$1:" '$1 == rail {print $10}' /proc/net/dev
}

# Waits until node 0 has sent so many bytes more over a rail; the operations go on meanwhile.
sends() { # RAIL BYTES
  local before now
  before=$(sent_over "$1")
  for _ in {1..400}; do
    now=$(sent_over "$1")
    ((now - before < $2)) || return 0
    sleep 0.05
  done
  fail "rail $1 carries nothing"
}

# Starts all_reduces in the background.
load() { # ITERATIONS
  launch 2 1 $((60 + 20 * sequences)) env ISTHMUS_TIMEOUT_S=20 "$programs/all_reduce_perf" -b 2M -e 2M -n "$1" -w 1 \
    -c 1 --json - > "$report" 2> "$errors" &
  job=$!
}

inside() {
  local i rail node
  load $((30 + 40 * sequences))
  sends 0 6000000
  sends 1 1000000
  for ((i = 0; i < sequences; i++)); do
    rail=$((RANDOM % 2))
    node=$((RANDOM % 2))
    kill -0 "$job" 2> /dev/null || break
    "$NETLAB" link "$node" "$rail" down
    sends $((1 - rail)) 3000000
    "$NETLAB" link "$node" "$rail" up
    sends "$rail" 500000
    echo "rail $rail of node $node was cut and serves again"
  done
  wait "$job" || fail "a rank failed: $(tail -5 "$errors")"
  ((i == sequences)) || fail "the operations were over after $i sequences: too few iterations"
  python3 -c 'import json, sys
for row in json.load(open(sys.argv[1]))["rows"]:
    assert row["wrong"] == 0, row' "$report"
  load 10000
  sends 0 6000000
  for rail in 0 1; do
    "$NETLAB" link 0 "$rail" down
  done
  ! wait "$job" || fail "no error with both rails cut"
  grep -E 'rank [01]' "$errors" | tail -2
}

if [[ ${1:-} == inside ]]; then
  report=$2
  errors=$3
  inside
  exit
fi
need_lab "$programs/all_reduce_perf"
echo "seed $SEED"
dir=$(mktemp -d "${TMPDIR:-/tmp}/isthmus-failover-test.XXXXXX")
trap 'rm -rf "$dir"' EXIT
export SEED SEQUENCES=$sequences
NETLAB_NAME=ft$$ "$NETLAB" with 2 --rails 2 --rate 200mbit -- \
  bash "$0" inside "$dir/report" "$dir/errors"
echo "failover_test: passed"
