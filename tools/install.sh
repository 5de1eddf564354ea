#!/usr/bin/env bash
# Installs the Python package from this tree into .venv. The build folder build/wheel is kept, so
# that the next run compiles only what changed. Says nothing unless it fails.
set -uo pipefail
cd "$(dirname "$0")/.."
mkdir -p build
export CMAKE_BUILD_PARALLEL_LEVEL=${JOBS:-2}
# The name that cmake finds by itself: to ccache another name is another compiler.
export CXX=${CXX:-c++}
if ! .venv/bin/python -m pip --disable-pip-version-check install --no-input --no-deps \
  --no-build-isolation --force-reinstall . > build/wheel.log 2>&1 < /dev/null; then
  tail -n 60 build/wheel.log
  exit 1
fi
