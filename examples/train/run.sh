#!/usr/bin/env bash
# Trains a byte-level GPT on 4 ranks of 2 nodes that a 500 Mbit/s link joins, over isthmus, and
# checks every loss against a single process. Then the same over Gloo, for comparison.
#   examples/train/run.sh [--backend gloo]
# PYTHON names the interpreter (default: .venv/bin/python). The results go to run-output/.
set -euo pipefail
# shellcheck source=examples/train/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
readonly STEPS=150 COMPARED_STEPS=20

# Runs a phase and notes how long it took.
phase() { # NAME COMMAND...
  local name=$1 begin=$SECONDS
  shift
  "$@" || return
  printf '%s\t%s\n' "$name" $((SECONDS - begin)) >> "$WORK/phases"
}

failed() { # NAME
  tail -n 20 "$WORK/$1"-node*.log >&2
  if [[ -e $WORK/failure ]]; then
    die "$(< "$WORK/failure")"
  fi
  die "the job '$1' failed; what its ranks said is above"
}

inside() {
  trap 'end_jobs; exit 143' TERM
  phase "single process" train_alone "$STEPS"
  phase "$BACKEND" launch "$BACKEND" --backend "$BACKEND" \
    --runs "main:hsdp:$STEPS" --finish || failed "$BACKEND"
  phase "Gloo" launch gloo-compared --backend gloo \
    --runs "gloo_flat:flat:$COMPARED_STEPS" "gloo_hsdp:hsdp:$COMPARED_STEPS" \
    || failed gloo-compared
  "$PYTHON" "$HERE/report.py" summary --work "$WORK" --out "$OUTPUT" --link "$LINK"
}

parse "$@"
if [[ -n $WORK ]]; then
  inside
else
  enter
fi
