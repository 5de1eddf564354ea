#!/usr/bin/env bash
# Installs a copy of the tree with pip in each way that README names, into environments of their
# own, and uses what came: without torch, with torch from pip's isolated build, and without
# isolation. The first two share a build folder: a torch that is new there must be found.
# Expects .venv (make setup), whose torch the second environment borrows by hard links.
set -euo pipefail
cd "$(dirname "$0")/../.."

readonly HERE=$PWD/build/pip_installs
readonly TREE=$HERE/tree
readonly PYTHON=${PYTHON:-.venv/bin/python}
export PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_INPUT=1
export CMAKE_BUILD_PARALLEL_LEVEL=${JOBS:-2}

fail() {
  echo "pip_installs: $*" >&2
  exit 1
}

installs() {  # ENVIRONMENT PIP-ARGUMENTS...
  local environment=$1
  shift
  "$environment/bin/python" -m pip install -q "$@" "$TREE" > "$HERE/pip.log" 2>&1 \
    || { tail -n 40 "$HERE/pip.log" >&2; fail "pip install $* failed"; }
}

# The command, a perf program and the C++ library need no torch.
uses_programs() {
  "$1/bin/isthmus" info --json > /dev/null || fail "isthmus info failed"
  "$1/bin/all_reduce_perf" --ranks 2 -b 8 -e 8 -n 1 -w 0 > /dev/null || fail "all_reduce_perf failed"
  compgen -G "$1/lib/python3*/site-packages/isthmus/lib/libisthmus.so*" > /dev/null \
    || fail "the package has no libisthmus.so"
}

uses_torch() {
  timeout 120 "$1/bin/python" -m torch.distributed.run --standalone --nproc-per-node 2 \
    "$HERE/reduces.py" || fail "init_process_group(\"isthmus\") does not work"
}

rm -rf "$HERE"
mkdir -p "$TREE"
git ls-files -z --cached --others --exclude-standard | xargs -0 cp --parents -t "$TREE"
cat > "$HERE/reduces.py" << 'END'
import torch
import torch.distributed as dist

dist.init_process_group("isthmus")
value = torch.ones(5)
dist.all_reduce(value)
assert value.tolist() == [2.0] * 5, value
dist.destroy_process_group()
END

"$PYTHON" -m venv "$HERE/plain"
installs "$HERE/plain"
uses_programs "$HERE/plain"
said=$("$HERE/plain/bin/python" -c 'import isthmus' 2>&1) || fail "import without torch failed: $said"
[[ $said == *"pip install torch"* ]] || fail "import without torch does not say what to do: $said"
echo "without torch: the programs run, and the import says how to get it"

"$PYTHON" -m venv "$HERE/torch"
site=$("$PYTHON" -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])')
cp -rlf "$site/." "$("$HERE/torch/bin/python" -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])')"
"$HERE/torch/bin/python" -m pip uninstall -q -y isthmus > /dev/null
installs "$HERE/torch"
uses_programs "$HERE/torch"
uses_torch "$HERE/torch"
echo "isolated build: the shim was built for the torch of the environment"

"$HERE/torch/bin/python" -m pip uninstall -q -y isthmus > /dev/null
installs "$HERE/torch" --no-build-isolation --no-deps
uses_torch "$HERE/torch"
echo "without isolation: the same"
rm -rf "$HERE"
