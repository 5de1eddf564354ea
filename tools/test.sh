#!/usr/bin/env bash
# `make test`: builds, runs the C++ tests, installs the Python package, runs the Python tests.
# JOBS is the number of compilers at once (default 2). Expects tools/setup.sh to have run.
set -uo pipefail
cd "$(dirname "$0")/.."
source tools/stages.sh
readonly JOBS=${JOBS:-2}

build() {
  cmake --preset dev -Wno-dev > build/dev.log 2>&1 || { cat build/dev.log; return 1; }
  cmake --build --preset dev -j "$JOBS" -- --quiet
}

python_tests() {
  local folders=() folder
  for folder in tests/python tests/tools; do
    if [[ -d $folder ]]; then
      folders+=("$folder")
    fi
  done
  # Files side by side: most of a test is processes that start, import torch and wait.
  .venv/bin/python -m pytest -q -n "$JOBS" --dist loadfile "${folders[@]}"
}

mkdir -p build
stage "build" build
stage "C++ tests" ctest --preset dev
# With the flags of the preset dev the package's objects come out of ccache.
export SKBUILD_CMAKE_DEFINE="ISTHMUS_WERROR=ON"
stage "Python package" tools/install.sh
stage "Python tests" python_tests
summary test
