#!/usr/bin/env bash
# `make long`: the tests labelled long, then tools/long.sh where the tree has one.
set -uo pipefail
cd "$(dirname "$0")/.."
source tools/stages.sh

build() {
  cmake --preset dev -Wno-dev > build/dev.log 2>&1 || { cat build/dev.log; return 1; }
  cmake --build --preset dev -j "${JOBS:-2}" -- --quiet
}

stage "build" build
stage "long tests" ctest --test-dir build/dev -L '^long$' --output-on-failure
if [[ -x tools/long.sh ]]; then
  stage "tools/long.sh" tools/long.sh
fi
summary long
