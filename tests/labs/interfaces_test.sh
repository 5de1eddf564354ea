#!/usr/bin/env bash
# Goal: nodes find the link between them by themselves (cases O-16, O-17): past a host name that
# resolves to loopback, a container's bridge with one address on both sides, and a port without a
# link; and they say what is wrong where there is none, or where ISTHMUS_IFACE names one that a
# node lacks.
# Method: 2 nodes of 2 ranks, all_reduce_perf over them, with interfaces and hosts files made for
# each scene. PERF_PROGRAMS is the folder of the built perf programs (default build/dev/perf). Exit
# 77 (skipped) where network namespaces are not allowed.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
# shellcheck source=tests/labs/launch.sh
source "$here/launch.sh"
program=${PERF_PROGRAMS:-$here/../../build/dev/perf}/all_reduce_perf

# Runs 2+2 ranks within so many seconds: their exit code, and what they said in $folder/said.
job() { # LIMIT VARIABLE=VALUE...
  local limit=$1
  shift
  launch 2 2 "$limit" env "$@" "$program" -b 64K -e 64K -n 2 -w 0 -c 1 --json "$folder/rows" \
    > "$folder/said" 2>&1
}

right() { # SCENE LIMIT VARIABLE=VALUE...
  local scene=$1
  shift
  rm -f "$folder/rows"
  job "$@" || fail "$scene: $(tail -n 3 "$folder/said")"
  python3 -c 'import json, sys
rows = json.load(open(sys.argv[1]))["rows"]
assert rows and all(row["wrong"] == 0 for row in rows), rows' "$folder/rows"
  grep -q "$link" "$folder/said" || fail "$scene: the log does not name $link"
  echo "$scene: passed after $SECONDS s"
}

# All four ranks say the words, and before the limit ends them.
wrong() { # SCENE LIMIT WORDS VARIABLE=VALUE...
  local scene=$1 limit=$2 words=$3 word
  shift 3
  if job "$limit" "$@"; then
    cat "$folder/said"
    fail "$scene: no error"
  fi
  for word in $words; do
    (($(grep -c "^rank [0-3]: .*$word" "$folder/said") == 4)) || fail "$scene: no '$word' in: $(tail -n 5 "$folder/said")"
  done
  echo "$scene: passed after $SECONDS s"
}

inside() {
  local node name
  link=rail0
  export ISTHMUS_LOG=info
  for node in 0 1; do
    "$NETLAB" exec "$node" ip link add docker0 type bridge
    "$NETLAB" exec "$node" ip address add 172.17.0.1/16 dev docker0
    "$NETLAB" exec "$node" ip link set docker0 up
    # A pair of which one end is down has no link.
    "$NETLAB" exec "$node" ip link add eno2 type veth peer name eno2far
    "$NETLAB" exec "$node" ip address add "10.99.0.$((node + 1))/24" dev eno2
    "$NETLAB" exec "$node" ip link set eno2 up
  done
  right "nothing set" 30
  right "docker0 left out" 30 ISTHMUS_IFACE=^docker0
  wrong "an interface that is not there" 15 "rail7 ISTHMUS_IFACE rail0" ISTHMUS_IFACE=rail7
  wrong "only loopback is left" 15 "loopback ISTHMUS_IFACE" ISTHMUS_IFACE=^rail0
  # Each node's own name is 127.0.1.1 to itself, as Debian's installer writes it.
  name=$("$NETLAB" exec 0 hostname)
  for node in 0 1; do
    printf '127.0.0.1 localhost\n127.0.1.1 %s\n10.70.0.1 %s\n' \
      "$("$NETLAB" exec "$node" hostname)" "$name" > "$folder/hosts$node"
    "$NETLAB" exec "$node" mount --bind "$folder/hosts$node" /etc/hosts
  done
  right "own name is loopback" 30 "MASTER_ADDR=$name"
}

if [[ ${1:-} == inside ]]; then
  folder=$2
  inside
  exit
fi
need_lab "$program"
folder=$(mktemp -d "${TMPDIR:-/tmp}/isthmus-interfaces-test.XXXXXX")
trap 'rm -rf "$folder"' EXIT
NETLAB_NAME=it$$ "$NETLAB" with 2 -- bash "$0" inside "$folder"
echo "interfaces_test: passed"
