#!/usr/bin/env bash
# `make long`: what takes longer than a change should wait for; more than an hour on 2 cores.
#   STAGES="name..."  runs only these: pip torch wheels python engines multiprocess determinism soak kills rails net_plugin shaped clang tidy
#   SOAK_S            seconds of each of the four soaks (default 90)
#   REPEAT            how often each multi-process test runs (default 10)
#   JOBS              compilers at once (default 2)
# Expects the package in .venv (make package).
set -uo pipefail
cd "$(dirname "$0")/.."
source tools/stages.sh
readonly JOBS=${JOBS:-2} SOAK_S=${SOAK_S:-90} REPEAT=${REPEAT:-10}
readonly STAGES=${STAGES:-pip torch wheels python engines multiprocess determinism soak kills rails net_plugin shaped clang tidy}
readonly PYTHON=${PYTHON:-.venv/bin/python}
readonly KILLS=10

wanted() { [[ " $STAGES " == *" $1 "* ]]; }

build() {
  mkdir -p build
  cmake --preset dev -Wno-dev > build/dev.log 2>&1 || { cat build/dev.log; return 1; }
  cmake --build --preset dev -j "$JOBS" -- --quiet
}

repeated() {
  ctest --test-dir build/dev -L '^multiprocess$' --no-tests=error --output-on-failure \
    --repeat "until-fail:$REPEAT"
}

find_clang() {
  local compiler
  for compiler in clang++-15 clang++; do
    if command -v "$compiler" > /dev/null \
      && "$compiler" -dumpversion | grep -qE '^(1[5-9]|[2-9][0-9])'; then
      echo "$compiler"
      return
    fi
  done
  return 1
}

# The oldest clang that is supported: every part, warnings as errors, and the C++ tests.
clang() {
  local compiler root=()
  ((EUID == 0)) || root=(sudo -n)
  if ! compiler=$(find_clang); then
    "${root[@]}" apt-get install -y --no-install-recommends clang-15 > build/clang.log 2>&1 < /dev/null
    compiler=$(find_clang) || { echo "no clang 15 or newer; run: apt-get install clang-15"; return 77; }
  fi
  cmake --preset dev -Wno-dev -B build/clang -DCMAKE_CXX_COMPILER="$compiler" > build/clang.log 2>&1 \
    || { cat build/clang.log; return 1; }
  cmake --build build/clang -j "$JOBS" -- --quiet && ctest --test-dir build/clang --output-on-failure
}

# pytest ends with 5, a failure, where no test is marked.
wanted python && stage "Python tests marked long" "$PYTHON" -m pytest -q -m long tests/python
wanted engines && stage "engines from outside" env PYTHON="$PYTHON" tests/long/engines.sh
# NCCL's rules in every version of the interface.
net_plugin() {
  build && build/dev/perf/net_plugin_perf --test \
    --plugin build/dev/plugins/nccl/libnccl-net-isthmus.so
}
wanted net_plugin && stage "NCCL's rules" net_plugin
if wanted multiprocess; then
  stage "build" build
  stage "multi-process tests, $REPEAT times" repeated
fi
if wanted determinism; then
  stage "build" build
  stage "24 operands, 100 shuffles" env DETERMINISM_SHUFFLES=100 \
    build/dev/tests/multiprocess_determinism_test --gtest_filter='*SameBits*'
  stage "determinism table" env PYTHON="$PYTHON" tests/long/determinism_table.sh
fi
if wanted soak; then
  stage "soak, one node" "$PYTHON" tests/long/soak.py --seconds "$SOAK_S"
  stage "soak, two nodes" "$PYTHON" tests/long/soak.py --seconds "$SOAK_S" --nodes aabb
  stage "soak, uneven nodes" "$PYTHON" tests/long/soak.py --seconds "$SOAK_S" --nodes aaab
  stage "soak, a node each" "$PYTHON" tests/long/soak.py --seconds "$SOAK_S" --nodes abcd
fi
if wanted kills; then
  stage "kills, one node" "$PYTHON" tests/long/soak.py --kills "$KILLS"
  stage "kills, two nodes" "$PYTHON" tests/long/soak.py --kills "$KILLS" --nodes aabb
fi
if wanted rails; then
  stage "build" build
  stage "20 cuts of rails" env SEQUENCES=20 tests/labs/failover_test.sh
fi
wanted pip && stage "pip installs" env PYTHON="$PYTHON" tests/long/pip_installs.sh
wanted torch && stage "releases of torch" tools/torch_matrix.sh
wanted wheels && stage "a wheel for two releases of torch" env PYTHON="$PYTHON" tests/long/wheels.sh
wanted clang && stage "clang" clang
wanted tidy && stage "clang-tidy with the analyzer" \
  env STAGES=clang-tidy TIDY=all ANALYZER=on tools/check.sh
wanted shaped && stage "shaped table" env PYTHON="$PYTHON" tests/long/shaped_table.sh
if ((passed + failed + skipped == 0)); then
  echo "long: STAGES='$STAGES' names no stage of: pip torch wheels python engines multiprocess determinism soak kills rails net_plugin shaped clang tidy" >&2
  exit 2
fi
summary long
