#!/usr/bin/env bash
# All GPU tests, several at a time, in a fraction of the time that one process takes:
#
#   tests/gpu_side_by_side.sh PROGRAM [AT_ONCE [SECONDS]]    PROGRAM: heddle_gpu_tests; 8 at once unless told
#
# Each test is a process of its own, ended after SECONDS (150 unless told), and has a line with its time as soon as it
# is done. Fails where a test fails or is ended, and where a name was not taken for one test's. What the machine cannot
# run (a second GPU, say) is listed as skipped and not counted as passed. The soak, which asks how much of the device's
# memory is free, runs by itself in the end, for 20 seconds unless HEDDLE_SOAK_SECONDS says more.
set -euo pipefail
program=$1 at_once=${2:-8} limit=${3:-150}
export HEDDLE_SOAK_SECONDS=${HEDDLE_SOAK_SECONDS:-20}
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

# number: line `number` of the list of names.
run_test() {
  local name status=0 begin=$SECONDS output=$folder/output.$1
  name=$(sed -n "$1p" "$folder/names")
  sed 's/,/\\,/g' <<< "$name" > "$folder/name.$1"
  timeout "$limit" "$program" -f "$folder/name.$1" > "$output" 2>&1 || status=$?
  local seconds=$((SECONDS - begin))
  if ((status == 0)) && grep -q "All tests passed (.* in 1 test case)" "$output"; then
    echo "passed $seconds s: $name"
    touch "$folder/passed.$1"
  elif ((status == 0)) && grep -q "test cases: 1 | 1 passed" "$output" && grep -q "assertions: - none -" "$output"; then
    echo "SKIPPED: $name: $(grep -A2 "^warning:" "$output" | tail -n +2 | tr -s '\n ' ' ')"
    touch "$folder/skipped.$1"
  else
    echo "NOT PASSED (exit status $status) $seconds s: $name"
    cat "$output"
  fi
}
export -f run_test
export program limit folder

("$program" --list-test-names-only "[gpu]" || true) |  # its exit status is how many there are
  awk '/^soak/ { soaks[m++] = $0; next } NF { print } END { for (i = 0; i < m; ++i) print soaks[i] }' > "$folder/names"
total=$(wc -l < "$folder/names") soaks=$(grep -c "^soak" "$folder/names" || true)
seq $((total - soaks)) | xargs -P "$at_once" -I{} bash -c 'run_test {}'
seq $((total - soaks + 1)) "$total" | xargs -P 1 -I{} bash -c 'run_test {}'
count() { find "$folder" -name "$1.*" | wc -l; }
passed=$(count passed) skipped=$(count skipped)
echo "$passed of $total GPU tests passed, $skipped skipped."
((passed > 0 && passed + skipped == total))
