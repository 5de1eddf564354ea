#!/usr/bin/env bash
# `make check`: everything a change must pass beside `make test`. CI and people call the same.
#   TIDY=changed|all|off  which files clang-tidy reads (default: changed, and all where CI is set)
#   ANALYZER=on|off       with the paths of clang-analyzer (default: on, and off where CI is set:
#                         there it is a sixth of all time; `make long` reads everything with it)
#   STAGES="name..."      runs only these: format layers style env headers clang-tidy asan tsan labs
#   JOBS                  compilers at once (default 2)
set -uo pipefail
cd "$(dirname "$0")/.."
source tools/stages.sh
readonly JOBS=${JOBS:-2}
readonly VENV_PYTHON=.venv/bin/python
readonly STAGES=${STAGES:-format layers style env headers clang-tidy asan tsan labs}
if [[ -n ${CI:-} ]]; then
  readonly TIDY=${TIDY:-all} ANALYZER=${ANALYZER:-off}
else
  readonly TIDY=${TIDY:-changed} ANALYZER=${ANALYZER:-on}
fi

wanted() { [[ " $STAGES " == *" $1 "* ]]; }

configure() {
  cmake --preset "$1" -Wno-dev > "build/$1.log" 2>&1 || { cat "build/$1.log"; return 1; }
}

format() {
  git ls-files -z --cached --others --exclude-standard -- '*.cc' '*.h' \
    | xargs -0 -r .venv/bin/clang-format --dry-run -Werror
}

headers() {
  configure dev && cmake --build --preset dev -j "$JOBS" \
    --target all_verify_interface_header_sets -- --quiet
}

clang_tidy() {
  if [[ $TIDY == off ]]; then
    echo "TIDY=off"
    return 77
  fi
  local options=(--build build/dev --jobs "$JOBS" --files "$TIDY")
  if [[ $ANALYZER == off ]]; then
    options+=(--no-analyzer)
  fi
  configure dev && "$VENV_PYTHON" tools/run_clang_tidy.py "${options[@]}"
}

# The thread sanitizer's preset builds only the tests that run several threads: see tests/CMakeLists.txt.
sanitized() {
  configure "$1" && cmake --build --preset "$1" -j "$JOBS" -- --quiet && ctest --preset "$1"
}

# Labs are made of network namespaces: as root or, where that is allowed, as any user.
labs() {
  local lab
  stage "programs for the labs" lab_programs
  for lab in tests/labs/*_test.sh; do
    stage "lab $(basename "$lab" .sh)" env PERF_PROGRAMS="$PWD/build/dev/perf" \
      timeout --kill-after=10 300 bash "$lab"
  done
}

lab_programs() {
  configure dev && cmake --build --preset dev -j "$JOBS" --target all_reduce_perf sendrecv_perf -- --quiet
}

mkdir -p build
wanted format && stage "format" format
wanted layers && stage "layers" "$VENV_PYTHON" tools/check_layers.py
wanted style && stage "style" "$VENV_PYTHON" tools/tidy.py
wanted env && stage "docs/env.md" "$VENV_PYTHON" tools/env_docs.py --check
wanted headers && stage "headers compile alone" headers
wanted clang-tidy && stage "clang-tidy ($TIDY)" clang_tidy
wanted asan && stage "address and undefined-behaviour sanitizers" sanitized asan
wanted tsan && stage "thread sanitizer" sanitized tsan
wanted labs && labs
summary check
