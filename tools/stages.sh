# Sourced by test.sh, check.sh and run_long.sh: runs named stages, times them, counts the outcomes.
# A stage that exits with 77 is skipped; its last line says why.

passed=0
failed=0
skipped=0
failures=()

# stage NAME COMMAND...
stage() {
  local name=$1 begin=$SECONDS code=0
  shift
  printf '\n== %s\n' "$name"
  "$@" < /dev/null || code=$?
  case $code in
    0) passed=$((passed + 1)) && printf '== %s: passed, %d s\n' "$name" $((SECONDS - begin)) ;;
    77) skipped=$((skipped + 1)) && printf '== %s: skipped\n' "$name" ;;
    *)
      failed=$((failed + 1))
      failures+=("$name")
      printf '== %s: FAILED with exit code %d, %d s\n' "$name" "$code" $((SECONDS - begin))
      ;;
  esac
}

# Prints the sum; the exit status of a script that ends with it.
summary() {
  printf '\n'
  if ((failed > 0)); then
    printf 'failed: %s\n' "${failures[@]}"
  fi
  printf '%s: %d passed, %d failed, %d skipped (%d s)\n' "$1" "$passed" "$failed" "$skipped" \
    "$SECONDS"
  ((failed == 0))
}
