#!/usr/bin/env bash
# Makes one wheel for two releases of torch, installs it beside each of them into an environment of
# its own and lets two ranks use it there; a third release must be refused in one sentence.
# Expects .venv (make setup), whose packages the environments borrow.
set -euo pipefail
cd "$(dirname "$0")/../.."

readonly HERE=$PWD/build/wheels
readonly PYTHON=${PYTHON:-.venv/bin/python}
readonly CARRIED=(2.12.1 2.13.0) OTHER=2.14.1
export PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_INPUT=1

fail() {
  echo "wheels: $*" >&2
  exit 1
}

site_of() {  # PYTHON
  "$1" -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])'
}

# An environment with the wheel and one torch; what torch needs lies in .venv.
environment() {  # VERSION
  local folder=$HERE/$1 torch
  torch=$("$PYTHON" tools/torch_release.py "$1")
  "$PYTHON" -m venv "$folder"
  "$folder/bin/python" -m pip install -q --no-deps "$wheel"
  printf '%s\n' "$torch" "$(site_of "$PYTHON")" > "$(site_of "$folder/bin/python")/torch.pth"
}

rm -rf "$HERE"
mkdir -p "$HERE"
wheel=$(tools/wheel.sh "${CARRIED[@]}")
echo "$wheel, $(($(stat -c %s "$wheel") / 1000)) kB, carries ${CARRIED[*]}"
"$PYTHON" -m auditwheel show "$wheel" > "$HERE/show.log"
grep -q 'constrains the platform tag to "manylinux_2_3' "$HERE/show.log" || fail "auditwheel says: $(cat "$HERE/show.log")"

for version in "${CARRIED[@]}"; do
  environment "$version"
  got=$("$HERE/$version/bin/python" -c 'import isthmus; print(isthmus.torch_version)')
  [[ $got == "$version"* ]] || fail "beside torch $version the shim of $got was chosen"
  "$HERE/$version/bin/python" tests/long/torch_smoke.py || fail "torch $version: the ranks failed"
  "$HERE/$version/bin/isthmus" info --json > /dev/null || fail "isthmus info failed"
  "$HERE/$version/bin/all_reduce_perf" --ranks 2 -b 8 -e 8 -n 1 -w 0 > /dev/null \
    || fail "all_reduce_perf failed"
  echo "torch $version: installed, two ranks ran"
done

environment "$OTHER"
if said=$("$HERE/$OTHER/bin/python" tests/long/torch_smoke.py 2>&1); then
  fail "torch $OTHER was not refused"
fi
grep -q "built for torch 2.12, 2.13 and cannot be used with torch $OTHER" <<< "$said" \
  || fail "torch $OTHER was not refused by name: $said"
echo "torch $OTHER: refused, $(grep -m 1 -o 'Build it for this torch with: .*' <<< "$said")"
rm -rf "$HERE"
