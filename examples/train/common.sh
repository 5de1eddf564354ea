# Sourced by run.sh and run_crash.sh: the lab, and a job of 4 ranks on 2 nodes in it.
# Sets PYTHON, BACKEND, WORK (a folder of this run's own) and LINK (how the nodes are joined).

HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
ROOT=$(cd "$HERE/../.." && pwd)
OUTPUT=$ROOT/run-output
NETLAB=$ROOT/tests/labs/netlab
PYTHON=${PYTHON:-$ROOT/.venv/bin/python}
BACKEND=isthmus
WORK=
LINK=
readonly RATE=500mbit
readonly NODES=2 RANKS_PER_NODE=2
# Two cores are enough: a rank has one thread, the process that trains alone has two.
readonly ALONE_THREADS=2
# No job of the example takes this long on 2 cores; one that does hangs.
readonly JOB_LIMIT_S=600

die() {
  printf '%s: %s\n' "$(basename "$0")" "$*" >&2
  exit 1
}

parse() {
  while (($#)); do
    case $1 in
      --backend)
        [[ -n ${2:-} ]] || die "--backend needs a name, isthmus or gloo"
        BACKEND=$2
        shift
        ;;
      --inside)
        WORK=$2
        LINK=$3
        shift 2
        ;;
      *) die "unknown option $1; the only one is --backend NAME" ;;
    esac
    shift
  done
}

check_python() {
  local said
  [[ -x $PYTHON ]] || PYTHON=$(command -v "$PYTHON") \
    || die "there is no Python environment in .venv; make one with: make setup"
  said=$("$PYTHON" -c 'import matplotlib, torch, tqdm' 2>&1) \
    || die "$PYTHON lacks a package (${said##*$'\n'}); install it with: make setup"
  if [[ $BACKEND == isthmus ]]; then
    said=$("$PYTHON" -c 'import isthmus; isthmus.torch_version' 2>&1) \
      || die "isthmus is not built for $PYTHON (${said##*$'\n'}); build it with: make package"
  fi
}

# Runs this script once more, between two nodes where that is allowed, and cleans up after it.
enter() {
  local child code=0 front=()
  check_python
  mkdir -p "$OUTPUT"
  WORK=$(mktemp -d "$OUTPUT/.work.XXXXXX")
  trap 'rm -rf "$WORK"' EXIT
  if "$NETLAB" can > /dev/null; then
    LINK=lab
    front=("$NETLAB" with "$NODES" --rate "$RATE" --)
  else
    LINK=loopback
    echo "Network namespaces are not allowed here, so the two nodes talk over the loopback" \
      "interface, which is not shaped to 500 Mbit/s."
  fi
  export PYTHON
  # With more threads than free cores, threads that spin for one another cost whole time slices.
  export OMP_WAIT_POLICY=PASSIVE
  # Else c10d warns that the nodes' addresses have no names: the lab has no name server.
  export TORCH_CPP_LOG_LEVEL=ERROR
  NETLAB_NAME=isthmus$$ setpriv --pdeathsig TERM "${front[@]}" bash "$0" --backend "$BACKEND" \
    --inside "$WORK" "$LINK" < /dev/null &
  child=$!
  # shellcheck disable=SC2064  # the number is known now
  trap "kill -TERM $child 2> /dev/null; wait $child; exit 130" INT TERM HUP
  wait "$child" || code=$?
  exit "$code"
}

# Becomes a command on a node.
on_node() { # NODE CMD...
  local node=$1
  shift
  if [[ $LINK == lab ]]; then
    GLOO_SOCKET_IFNAME=rail0 exec "$NETLAB" exec "$node" "$@"
  fi
  # Without namespaces the ranks are told which node they are on: those of two never share memory.
  GLOO_SOCKET_IFNAME=lo ISTHMUS_NODE_ID=node$node exec "$@"
}

free_port() {
  "$PYTHON" -c 'import socket
with socket.create_server(("127.0.0.1", 0)) as server:
    print(server.getsockname()[1])'
}

# The reference: the same model trained by one process.
train_alone() { # STEPS
  OMP_NUM_THREADS=$ALONE_THREADS "$PYTHON" "$HERE/train.py" reference --out "$WORK" \
    --threads "$ALONE_THREADS" --steps "$1" &
  wait $!  # A shell that waits like this hears a signal at once.
}

# One torchrun per node, all four ranks in one job. Rank 0's node speaks on stderr; the rest goes
# to logs. Returns non-zero when a node fails.
launch() { # NAME TRAIN-ARGUMENTS...
  local name=$1 address=127.0.0.1 port=29500 node code=0 job
  local running=()
  shift
  if [[ $LINK == lab ]]; then
    read -r address < <("$NETLAB" hosts)
  else
    port=$(free_port)
  fi
  for ((node = 0; node < NODES; node++)); do
    (
      exec > "$WORK/$name-node$node.log"
      if ((node > 0)); then
        exec 2>&1
      fi
      OMP_NUM_THREADS=1 on_node "$node" \
        timeout --kill-after=10 "$JOB_LIMIT_S" "$PYTHON" -m torch.distributed.run \
        --nnodes "$NODES" --node-rank "$node" --nproc-per-node "$RANKS_PER_NODE" \
        --master-addr "$address" --master-port "$port" \
        "$HERE/train.py" worker --out "$WORK" "$@"
    ) &
    running+=($!)
  done
  for job in "${running[@]}"; do
    wait "$job" || code=1
  done
  return "$code"
}

# Ends the jobs of a loopback run; those of a lab go with the lab.
end_jobs() {
  local job
  for job in $(jobs -p); do
    kill -TERM "$job" 2> /dev/null || true
  done
  wait
}
