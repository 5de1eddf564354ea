# Sourced by programs that run inside a lab (netlab with N ... -- PROGRAM): starts ranks on its
# nodes. Sets NETLAB, the lab's command.

NETLAB=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)/netlab

# Runs a command as every rank of a job, dealt out to the nodes in blocks, with the variables of
# torchrun. Rank 0's stdout is ours, the others' joins stderr. Non-zero when a rank fails; all have
# ended then.
launch() { # NODES RANKS-PER-NODE LIMIT-IN-SECONDS CMD...
  local nodes=$1 locals=$2 limit=$3 address rank code=0 one
  local running=()
  shift 3
  read -r address < <("$NETLAB" hosts)
  for ((rank = 0; rank < nodes * locals; rank++)); do
    (
      if ((rank > 0)); then
        exec 1>&2
      fi
      RANK=$rank WORLD_SIZE=$((nodes * locals)) LOCAL_RANK=$((rank % locals)) \
        MASTER_ADDR=$address MASTER_PORT=29500 GLOO_SOCKET_IFNAME=rail0 \
        exec "$NETLAB" exec $((rank / locals)) timeout --kill-after=5 "$limit" "$@"
    ) &
    running+=($!)
  done
  for one in "${running[@]}"; do
    wait "$one" || code=1
  done
  return "$code"
}

# Bytes that a node has sent over rail 0 so far.
sent_bytes() { # NODE
  # shellcheck disable=SC2016  # awk's fields
  "$NETLAB" exec "$1" awk '$1 == "rail0:" {print $10}' /proc/net/dev
}

# For tests, which are programs that run themselves again inside their lab.

fail() {
  echo "$(basename "$0" .sh): $*" >&2
  exit 1
}

# Ends the test as skipped where there can be no lab; fails where a built program is missing.
need_lab() { # PROGRAM...
  local program
  for program; do
    [[ -x $program ]] || fail "no $program: build it first"
  done
  if ! "$NETLAB" can > /dev/null; then
    echo "skipped: network namespaces are not allowed here"
    exit 77
  fi
}
