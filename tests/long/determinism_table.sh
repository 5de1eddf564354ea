#!/usr/bin/env bash
# The bits of one sum by isthmus with and without ISTHMUS_DETERMINISTIC, Gloo and Open MPI, on 2, 4
# and 6 ranks, and what they take: on 2 nodes that a shaped link joins, Open MPI on one.
#   tests/long/determinism_table.sh [RATE]     (1gbit)
# LOCALS are the ranks of a node (1 2 3), PYTHON names the interpreter (.venv/bin/python). Fails
# unless isthmus's deterministic lines have one hash. Without mpirun Open MPI is left out; exit 77
# (skipped) where network namespaces are not allowed.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
# shellcheck source=tests/labs/launch.sh
source "$root/tests/labs/launch.sh"
PYTHON=${PYTHON:-$root/.venv/bin/python}
LOCALS=${LOCALS:-1 2 3}
readonly LIMIT_S=120 LOCALS
export OMP_NUM_THREADS=1 TORCH_CPP_LOG_LEVEL=ERROR

inside() {
  local locals mode
  for locals in $LOCALS; do
    for mode in 0 1; do
      ISTHMUS_DETERMINISTIC=$mode launch 2 "$locals" "$LIMIT_S" "$PYTHON" \
        "$root/perf/determinism.py" isthmus
    done
    launch 2 "$locals" "$LIMIT_S" "$PYTHON" "$root/perf/determinism.py" gloo
  done
}

mpi() {
  local locals
  command -v mpirun > /dev/null || return 0
  for locals in $LOCALS; do
    OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 timeout "$LIMIT_S" \
      mpirun --oversubscribe -n "$((2 * locals))" "$PYTHON" "$root/perf/determinism.py" openmpi
  done
}

if [[ ${1:-} == inside ]]; then
  inside
  exit
fi
if ! "$NETLAB" can > /dev/null; then
  echo "skipped: network namespaces are not allowed here"
  exit 77
fi
rows=$(mktemp "${TMPDIR:-/tmp}/isthmus-determinism.XXXXXX")
trap 'rm -f "$rows"' EXIT
export PYTHON LOCALS
NETLAB_NAME=dt$$ "$NETLAB" with 2 --rate "${1:-1gbit}" -- bash "$0" inside > "$rows"
mpi >> "$rows"
"$PYTHON" - "$rows" << 'END'
import collections
import csv
import sys

hashes = collections.defaultdict(set)
with open(sys.argv[1]) as file:
    for library, ranks, length, text, milliseconds in csv.reader(file):
        hashes[library].add(text)
        print(f"{library:24} {ranks} ranks {length:>8} float32  {text}  {float(milliseconds):8.2f} ms")
for library, found in hashes.items():
    print(f"{library}: {len(found)} different results")
assert len(hashes["isthmus, deterministic"]) == 1
END
