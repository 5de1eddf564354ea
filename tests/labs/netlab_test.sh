#!/usr/bin/env bash
# Goal: netlab gives nodes that reach each other at the shaped rate, share no memory, and leave
# nothing behind, however they end, as root and as a plain user.
# Method: brings labs up both ways, moves 8 MiB over a 100 Mbit/s link, kills labs with TERM and
# KILL, and looks for what is left. Exit 77 (skipped) where network namespaces are not allowed.
set -euo pipefail
cd "$(dirname "$0")"
# A copy, since a plain user may not be let into the folder this one is in.
dir=$(mktemp -d "${TMPDIR:-/tmp}/netlab-test.XXXXXX")
trap 'rm -rf "$dir"' EXIT
chmod 755 "$dir"
cp netlab "$dir/netlab"
lab=$dir/netlab
export NETLAB_NAME=nt$$ TMPDIR=$dir/tmp
mkdir -m 1777 "$TMPDIR"
if ! way=$("$lab" can); then
  echo "skipped: network namespaces are not allowed here"
  exit 77
fi

fail() {
  echo "netlab_test: $*" >&2
  exit 1
}

# What the lab must offer, run inside it.
cat >"$dir/inside" <<'END'
set -euo pipefail
lab=$1
[[ $("$lab" hosts | paste -sd' ') == "10.70.0.1 10.70.0.2" ]]
"$lab" exec 0 touch /dev/shm/mine
! "$lab" exec 1 test -e /dev/shm/mine
[[ $("$lab" exec 1 hostname) == "$NETLAB_NAME-1" ]]
code=0
"$lab" exec 0 sh -c 'exit 7' || code=$?
((code == 7))
[[ $("$lab" all sh -c 'echo $NETLAB_NODE' | sort | paste -sd' ') == "0 1" ]]
"$lab" exec 0 bash -c 'head -c 8388608 /dev/zero | timeout 20 python3 -c "
import socket, sys
server = socket.create_server((\"10.70.0.1\", 5000))
print(\"ready\", flush=True)
connection, _ = server.accept()
connection.sendall(sys.stdin.buffer.read())
connection.close()"' >"$2" &
until [[ -s $2 ]]; do sleep 0.05; done
"$lab" exec 1 timeout 20 python3 -c '
import socket, time
connection = socket.create_connection(("10.70.0.1", 5000))
begin, total = time.monotonic(), 0
while piece := connection.recv(1 << 16):
    total += len(piece)
rate = total * 8 / (time.monotonic() - begin) / 1e6
print(f"{total} bytes at {rate:.0f} Mbit/s")
assert total == 8388608 and rate < 110, rate'
wait
END

left_behind() { pgrep -af "$dir" || ls -A "$TMPDIR" | grep . || false; }

whole() { # WHO PREFIX...
  local who=$1 signal front
  shift
  "$@" "$lab" with 2 --rate 100mbit -- bash "$dir/inside" "$lab" "$TMPDIR/ready-$who"
  rm -f "$TMPDIR/ready-$who"
  ! left_behind || fail "left behind by a lab that ended ($who)"
  local code=0
  "$@" "$lab" with 1 -- sh -c 'exit 9' || code=$?
  ((code == 9)) || fail "exit code $code, expected 9"
  for signal in TERM KILL; do
    "$@" "$lab" with 2 -- sh -c "echo up >$TMPDIR/up; exec sleep 600" 2>/dev/null &
    front=$!
    for _ in {1..200}; do [[ -s $TMPDIR/up ]] && break || sleep 0.05; done
    rm "$TMPDIR/up" || fail "no lab within 10 s ($who)"
    kill -"$signal" "$front"
    wait "$front" 2>/dev/null || true
    [[ $signal == TERM ]] || rm -rf "$TMPDIR"/netlab.*
    for _ in {1..100}; do left_behind >/dev/null && sleep 0.05 || break; done
    ! left_behind || fail "left behind after $signal ($who)"
  done
}

nobody=(setpriv --reuid 65534 --regid 65534 --clear-groups --)
whole self env
if ((EUID == 0)) && [[ $("${nobody[@]}" "$lab" can) == user ]]; then
  whole nobody "${nobody[@]}"
else
  echo "a user's own lab: not tried here"
fi
if [[ $way == root ]] && ((EUID == 0)); then
  export NETLAB_DIR=$TMPDIR/state
  trap '"$lab" down; rm -rf "$dir"' EXIT
  "$lab" up 2 --rails 2 --rate 100mbit
  [[ $("$lab" status | grep -c 'tbf .* 100Mbit') == 4 ]] || fail "status: $("$lab" status)"
  "$lab" rate none 1
  [[ $("$lab" status | grep -c 'tbf .* 100Mbit') == 2 ]] || fail "rate none: $("$lab" status)"
  bash "$dir/inside" "$lab" "$TMPDIR/ready"
  rm "$TMPDIR/ready"
  "$lab" down
  [[ $("$lab" status) == down ]] || fail "still up"
  ! left_behind || fail "left behind by down"
fi
echo "netlab_test: passed"
