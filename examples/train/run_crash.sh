#!/usr/bin/env bash
# Kills rank 2 of 4 in the middle of a backward pass, and shows what each survivor says.
# Succeeds if all three name rank 2 within 2 seconds.
#   examples/train/run_crash.sh [--backend gloo]
set -euo pipefail
# shellcheck source=examples/train/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
readonly VICTIM=2 STEP=5 STEPS=10

inside() {
  trap 'end_jobs; exit 143' TERM
  train_alone "$STEPS" 2> "$WORK/crash-reference.log" \
    || die "the single-process run failed: $(tail -n 5 "$WORK/crash-reference.log")"
  echo "Rank $VICTIM is killed with SIGKILL in the backward pass of step $STEP."
  if launch crash --backend "$BACKEND" --runs "crash:hsdp:$STEPS" --time-limit 60 \
    --kill-rank "$VICTIM" --kill-step "$STEP" 2> "$WORK/crash-stderr.log"; then
    die "the job ended well, although rank $VICTIM was to be killed"
  fi
  if [[ ! -e $WORK/killed.json ]]; then
    tail -n 20 "$WORK"/crash-*.log >&2
    die "the job failed before rank $VICTIM was killed; what its ranks said is above"
  fi
  "$PYTHON" "$HERE/report.py" crash --work "$WORK" --victim "$VICTIM"
}

parse "$@"
if [[ -n $WORK ]]; then
  inside
else
  enter
fi
