#!/usr/bin/env bash
# Compiles the shim for several releases of torch, checks its symbols and lets two ranks use it; one
# line a release says how that went:
#   tools/torch_matrix.sh [--no-run] [VERSION...]      default: every minor version from 2.8
# tools/torch_release.py fetches what is not there: most of a gigabyte a release.
#   JOBS  compilers at once for the library (default 2); the shim is one file
set -euo pipefail
cd "$(dirname "$0")/.."
readonly PYTHON=${PYTHON:-.venv/bin/python}
readonly BUILD=build/torch_matrix
run=true
if [[ ${1:-} == --no-run ]]; then
  run=false
  shift
fi
versions=("$@")
if ((${#versions[@]} == 0)); then
  versions=(2.8.0 2.9.1 2.10.0 2.11.0 2.12.1 2.13.0 2.14.1)
fi

# What a command that fails said, its first error if there is one.
first_error() {  # LOG
  grep -m 1 -E 'error: |Error: |FAILED|asks for|shows ' "$1" || tail -n 1 "$1"
}

# Prints what became of one release; the log has the rest.
check() {  # VERSION TORCH
  local minor=${1%.*} log=$BUILD/$1.log
  local shim=$BUILD/python/isthmus/_torch/_C_${minor/./_}.so
  if ! cmake --build "$BUILD" --target "isthmus_torch_${minor/./_}" -- --quiet > "$log" 2>&1; then
    echo "does not compile: $(first_error "$log")"
    return 1
  fi
  if ! "$PYTHON" tools/check_symbols.py "$shim" "$2" > "$log" 2>&1; then
    echo "symbols: $(first_error "$log")"
    return 1
  fi
  if ! $run; then
    echo "compiles"
    return
  fi
  # Ahead of the torch and the isthmus that the environment has.
  if ! PYTHONPATH=$PWD/$BUILD/python:$2 timeout --kill-after=10 300 \
    "$PYTHON" tests/long/torch_smoke.py > "$log" 2>&1; then
    echo "does not run: $(first_error "$log")"
    return 1
  fi
  echo "compiles, runs"
}

mkdir -p "$BUILD"
folders=()
for version in "${versions[@]}"; do
  folders+=("$("$PYTHON" tools/torch_release.py "$version")")
done
paths=$(IFS=';' && echo "${folders[*]}")
cmake -S . -B "$BUILD" -G Ninja -Wno-dev -DCMAKE_BUILD_TYPE=Release -DISTHMUS_TESTS=OFF \
  -DISTHMUS_PERF=OFF -DISTHMUS_TORCH=on "-DISTHMUS_TORCH_PATH=$paths" > "$BUILD/configure.log" 2>&1 \
  || { cat "$BUILD/configure.log" >&2; exit 1; }
cmake --build "$BUILD" -j "${JOBS:-2}" --target isthmus isthmus_torch_worlds -- --quiet \
  > "$BUILD/library.log" 2>&1 || { cat "$BUILD/library.log" >&2; exit 1; }

failed=0
for i in "${!versions[@]}"; do
  begin=$SECONDS
  said=$(check "${versions[i]}" "${folders[i]}") || failed=$((failed + 1))
  printf 'torch %-8s %4d s  %s\n' "${versions[i]}" $((SECONDS - begin)) "$said"
done
if ((failed > 0)); then
  echo "torch_matrix: $failed of ${#versions[@]} releases failed; logs are in $BUILD" >&2
  exit 1
fi
