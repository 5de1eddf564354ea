#!/usr/bin/env bash
# Programs of accelerate, transformers and DeepSpeed over isthmus: tests/long/engines, in an
# environment of their own, build/engines-venv, which borrows .venv's packages by hard links.
# What DeepSpeed compiles on its first use stays in build/engines-extensions.
# Expects the package in .venv (make package).
set -euo pipefail
cd "$(dirname "$0")/../.."

readonly PYTHON=${PYTHON:-.venv/bin/python}
readonly VENV=build/engines-venv
readonly STAMP=$VENV/.isthmus-engines
# Pinned: what they do with a backend that they do not know is their own affair, and changes.
readonly PACKAGES=(accelerate==1.15.0 transformers==5.24.0 deepspeed==0.19.8)

site_of() { "$1" -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])'; }

if [[ ! -f $STAMP || $(< "$STAMP") != "${PACKAGES[*]}" ]]; then
  rm -rf "$VENV"
  "$PYTHON" -m venv "$VENV"
  cp -rlf "$(site_of "$PYTHON")/." "$(site_of "$VENV/bin/python")"
  # DeepSpeed's setup imports torch, which pip's isolation would hide.
  "$VENV/bin/python" -m pip --disable-pip-version-check install --no-input -q \
    --no-build-isolation "${PACKAGES[@]}"
  printf '%s' "${PACKAGES[*]}" > "$STAMP"
fi
# The package as it is now, whatever was borrowed then.
readonly FROM=$(site_of "$PYTHON") TO=$(site_of "$VENV/bin/python")
rm -rf "$TO"/isthmus "$TO"/isthmus-*
cp -rl "$FROM"/isthmus "$FROM"/isthmus-* "$TO"

export TORCH_EXTENSIONS_DIR=$PWD/build/engines-extensions
mkdir -p "$TORCH_EXTENSIONS_DIR"
# Left by a build that was killed, one makes every later run wait for ever.
find "$TORCH_EXTENSIONS_DIR" -name lock -delete
exec "$VENV/bin/python" -m pytest -q tests/long/engines
