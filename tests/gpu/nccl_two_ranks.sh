#!/bin/bash
# Goal: NCCL itself, driven by torch, uses the plug-in and gets right results. Method: two ranks on
# one GPU count as two hosts when their NCCL_HOSTID differs, so that all traffic is the network's;
# the log must name NET/isthmus. Skips (77) with a reason where there is no GPU or no torch.
#
# Usage: tests/gpu/nccl_two_ranks.sh [FOLDER of libnccl-net-isthmus.so]; PYTHON names the interpreter.
set -eu
cd "$(dirname "$0")/../.."
folder=$(realpath "${1:-build/dev/plugins/nccl}")
python=${PYTHON:-python3}

skip() {
  echo "skipped: $1"
  exit 77
}

[ -e "$folder/libnccl-net-isthmus.so" ] ||
  skip "no libnccl-net-isthmus.so in $folder (cmake --build build/dev --target nccl_net_isthmus)"
command -v nvidia-smi > /dev/null && nvidia-smi -L > /dev/null 2>&1 || skip "no GPU (nvidia-smi)"
"$python" -c 'import torch, sys; sys.exit(not torch.cuda.is_available())' 2> /dev/null ||
  skip "$python has no torch that sees a GPU"

logs=$(mktemp -d)
trap 'rm -rf "$logs"' EXIT
export LD_LIBRARY_PATH="$folder:${LD_LIBRARY_PATH:-}"
export NCCL_NET_PLUGIN=isthmus NCCL_NET=isthmus NCCL_DEBUG=INFO NCCL_MNNVL_ENABLE=0
export NCCL_SOCKET_IFNAME=lo ISTHMUS_IFACE=lo
export RENDEZVOUS="file://$logs/rendezvous" WORLD_SIZE=2
pids=()
for rank in 0 1; do
  # The time limit is below the 4 minutes that the machine may be held.
  RANK=$rank NCCL_HOSTID=isthmus-$rank NCCL_DEBUG_FILE="$logs/nccl.$rank" \
    timeout 200 "$python" tests/gpu/nccl_two_ranks.py &
  pids+=($!)
done
failed=0
for pid in "${pids[@]}"; do
  wait "$pid" || failed=1
done
for rank in 0 1; do
  if ! grep -q "NET/isthmus" "$logs/nccl.$rank"; then
    echo "rank $rank: NCCL's log does not name NET/isthmus"
    failed=1
  fi
done
grep -h "isthmus" "$logs"/nccl.* | head -20 || true
if [ $failed -ne 0 ]; then
  tail -n 40 "$logs"/nccl.*
fi
exit $failed
