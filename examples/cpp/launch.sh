#!/usr/bin/env bash
# Starts RANKS processes of a program on this machine, as torchrun would:
#   examples/cpp/launch.sh RANKS PROGRAM [ARGUMENT...]
# Exit code: 0, or that of a rank that failed. MASTER_PORT may be given; else one is drawn.
set -uo pipefail
if (($# < 2)); then
  sed -n '2,4s/^# //p' "$0" >&2
  exit 2
fi
readonly ranks=$1
shift
export WORLD_SIZE=$ranks MASTER_ADDR=127.0.0.1
export MASTER_PORT=${MASTER_PORT:-$((20000 + (RANDOM * 32768 + RANDOM) % 12000))}
pids=()
trap 'kill "${pids[@]}" 2> /dev/null' INT TERM
for ((rank = 0; rank < ranks; ++rank)); do
  RANK=$rank LOCAL_RANK=$rank "$@" &
  pids+=($!)
done
code=0
for pid in "${pids[@]}"; do
  wait "$pid" || code=$?
done
exit "$code"
