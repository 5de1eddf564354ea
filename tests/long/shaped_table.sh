#!/usr/bin/env bash
# Times of isthmus beside Gloo through torch, on 2 nodes of 2 ranks that a shaped link joins.
#   tests/long/shaped_table.sh [RATE]     (500mbit)
# PYTHON names the interpreter (default: .venv/bin/python). Every operation's result is checked
# before it is timed. Exit 77 (skipped) where network namespaces are not allowed.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
# shellcheck source=tests/labs/launch.sh
source "$root/tests/labs/launch.sh"
PYTHON=${PYTHON:-$root/.venv/bin/python}
readonly ROUNDS=3 LIMIT_S=120
readonly OPS=all_reduce,all_gather,reduce_scatter
# From where the link's latency counts to where only its rate does, in bytes a rank.
readonly LEAST=1024 MOST=4194304

fail() {
  echo "shaped_table: $*" >&2
  exit 1
}

# The backends in turn, since the machine's speed changes while one measures.
inside() { # FOLDER
  local round backend
  for ((round = 0; round < ROUNDS; round++)); do
    for backend in isthmus gloo; do
      OMP_NUM_THREADS=1 TORCH_CPP_LOG_LEVEL=ERROR launch 2 2 "$LIMIT_S" \
        "$PYTHON" "$root/perf/peers/bench_torch.py" --backend "$backend" --ops "$OPS" \
        --min "$LEAST" --max "$MOST" --reps 3 >> "$1/rows.csv" 2> "$1/errors" \
        || { tail -n 20 "$1/errors" >&2 && fail "$backend failed"; }
      ! grep WRONG "$1/errors" >&2 || fail "$backend gave wrong results"
    done
  done
}

if [[ ${1:-} == inside ]]; then
  inside "$2"
  exit
fi
rate=${1:-500mbit}
if ! "$NETLAB" can > /dev/null; then
  echo "skipped: network namespaces are not allowed here"
  exit 77
fi
folder=$(mktemp -d "${TMPDIR:-/tmp}/isthmus-shaped.XXXXXX")
trap 'rm -rf "$folder"' EXIT
export PYTHON
NETLAB_NAME=st$$ "$NETLAB" with 2 --rate "$rate" -- bash "$0" inside "$folder"
echo "2 nodes of 2 ranks, $rate between them, microseconds, median of $ROUNDS rounds:"
"$PYTHON" "$root/perf/peers/table.py" "$folder/rows.csv"
