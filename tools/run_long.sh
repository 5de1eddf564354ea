#!/usr/bin/env bash
# `make long`: what takes longer than a change should wait for; more than an hour on 2 cores.
#   STAGES="name..."  runs only these: pip python engines multiprocess soak kills shaped
#   SOAK_S            seconds of each of the four soaks (default 90)
#   REPEAT            how often each multi-process test runs (default 10)
#   JOBS              compilers at once (default 2)
# Expects the package in .venv (make package).
set -uo pipefail
cd "$(dirname "$0")/.."
source tools/stages.sh
readonly JOBS=${JOBS:-2} SOAK_S=${SOAK_S:-90} REPEAT=${REPEAT:-10}
readonly STAGES=${STAGES:-pip python engines multiprocess soak kills shaped}
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

# pytest ends with 5, a failure, where no test is marked.
wanted python && stage "Python tests marked long" "$PYTHON" -m pytest -q -m long tests/python
wanted engines && stage "engines from outside" env PYTHON="$PYTHON" tests/long/engines.sh
if wanted multiprocess; then
  stage "build" build
  stage "multi-process tests, $REPEAT times" repeated
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
wanted pip && stage "pip installs" env PYTHON="$PYTHON" tests/long/pip_installs.sh
wanted shaped && stage "shaped table" env PYTHON="$PYTHON" tests/long/shaped_table.sh
if ((passed + failed + skipped == 0)); then
  echo "long: STAGES='$STAGES' names no stage of: pip python engines multiprocess soak kills shaped" >&2
  exit 2
fi
summary long
