#!/usr/bin/env bash
# All GPU tests in several processes side by side, in a fraction of the time that one takes:
#
#   tests/gpu_side_by_side.sh PROGRAM [PROCESSES]    PROGRAM: heddle_gpu_tests; 6 processes unless told
#
# Fails where a test fails, where one is skipped, and where a name was not taken for a test's. The soak runs for 20
# seconds unless HEDDLE_SOAK_SECONDS says more: eight minutes of it would hold up all others.
set -euo pipefail
export HEDDLE_SOAK_SECONDS=${HEDDLE_SOAK_SECONDS:-20}
program=$1 processes=${2:-6}
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

# Catch2's exit status of a list is how many it has.
names_of() { "$program" --list-test-names-only "$@" | sed '/^$/d' || true; }

names_of "[gpu]" | sed 's/,/\\,/g' > "$folder/names"
for ((i = 0; i < processes; ++i)); do
  awk -v n="$processes" -v i="$i" 'NR % n == i' "$folder/names" > "$folder/names.$i"
done
taken=0
for ((i = 0; i < processes; ++i)); do taken=$((taken + $(names_of -f "$folder/names.$i" | wc -l))); done
total=$(wc -l < "$folder/names")
if ((taken != total)); then
  echo "$program has $total GPU tests, but $taken are found again by their names." >&2
  exit 1
fi

pids=()
for ((i = 0; i < processes; ++i)); do
  "$program" -f "$folder/names.$i" > "$folder/output.$i" 2>&1 &
  pids+=($!)
done
status=0
for ((i = 0; i < processes; ++i)); do
  wait "${pids[$i]}" || status=$?
  tail -n 2 "$folder/output.$i" | sed '/^$/d'
  if grep -q "FAILED" "$folder/output.$i"; then cat "$folder/output.$i"; fi
done
echo "$total GPU tests in $processes processes: $([[ $status == 0 ]] && echo "all passed" || echo "exit status $status")"
exit "$status"
