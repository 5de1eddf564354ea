#!/usr/bin/env bash
# Goal: two nodes with two links use both for large messages, the faster one for more, reduce right
# over them, and keep to one connection a pair while messages are small.
# Method: all_reduce_perf and sendrecv_perf on 2 nodes of 1 rank, links of equal and of unequal
# rates; every row is checked, and the links' own counters say what crossed. PERF_PROGRAMS is the
# folder of the built perf programs (default build/dev/perf). Exit 77 (skipped) where network
# namespaces are not allowed.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
# shellcheck source=tests/labs/launch.sh
source "$here/launch.sh"
programs=${PERF_PROGRAMS:-$here/../../build/dev/perf}

sent_over() { # RAIL: bytes that node 0 has sent over it
  "$NETLAB" exec 0 awk -v rail="rail$1:" '$1 == rail {print $10}' /proc/net/dev
}

# Runs a program and sets sent0 and sent1 to what node 0 sent over each rail meanwhile.
measure() { # PROGRAM OPTIONS...
  local before0 before1 program=$1
  shift
  before0=$(sent_over 0)
  before1=$(sent_over 1)
  launch 2 1 60 "$programs/$program" "$@" --json - > "$report" || fail "a rank of $program failed"
  sent0=$(($(sent_over 0) - before0))
  sent1=$(($(sent_over 1) - before1))
  python3 -c 'import json, sys
for row in json.load(open(sys.argv[1]))["rows"]:
    assert row["wrong"] in (0, None), row' "$report"
  echo "$program $*: $sent0 and $sent1 bytes"
}

inside() {
  "$NETLAB" rate 500mbit
  # Less than 1 MiB in all: from there on a pair opens its further flows.
  measure all_reduce_perf -b 4K -e 16K -n 5 -w 1 -c 1
  ((sent0 < 100000 || sent1 < 100000)) || fail "small messages opened the second rail"
  measure all_reduce_perf -b 4M -e 4M -n 12 -w 2 -c 1
  ((3 * sent0 > sent1 && 3 * sent1 > sent0)) || fail "equal rails did not share the load"
  # The rails take in turn the part of the faster one.
  "$NETLAB" rate 200mbit 0
  measure sendrecv_perf -b 4M -e 4M -n 20 -w 2 -c 1
  ((sent1 > sent0)) || fail "the slower rail 0 carried more"
  "$NETLAB" rate 500mbit 0
  "$NETLAB" rate 200mbit 1
  measure sendrecv_perf -b 4M -e 4M -n 20 -w 2 -c 1
  ((sent0 > sent1)) || fail "the slower rail 1 carried more"
}

if [[ ${1:-} == inside ]]; then
  report=$2
  inside
  exit
fi
need_lab "$programs"/{all_reduce_perf,sendrecv_perf}
report=$(mktemp "${TMPDIR:-/tmp}/isthmus-rails-test.XXXXXX")
trap 'rm -f "$report"' EXIT
NETLAB_NAME=rt$$ "$NETLAB" with 2 --rails 2 --rate 500mbit -- bash "$0" inside "$report"
echo "rails_test: passed"
