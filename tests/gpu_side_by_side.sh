#!/usr/bin/env bash
# All GPU tests, several at a time, in a fraction of the time that one process takes:
#
#   tests/gpu_side_by_side.sh PROGRAM [AT_ONCE [SECONDS]]    PROGRAM: heddle_gpu_tests; 8 at once unless told
#
# Each test is a process of its own, ended after SECONDS (150 unless told), and has a line with its time as soon as it
# is done. Fails where a test fails, is skipped or is ended, and where a name was not taken for one test's. The soak, which
# begins first, runs for 20 seconds unless HEDDLE_SOAK_SECONDS says more.
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
  if ((status == 0)) && grep -q "All tests passed (.* in 1 test case)" "$output"; then
    echo "passed $((SECONDS - begin)) s: $name"
    return
  fi
  echo "NOT PASSED (exit status $status) $((SECONDS - begin)) s: $name"
  cat "$output"
  touch "$folder/failed"
}
export -f run_test
export program limit folder

("$program" --list-test-names-only "[gpu]" || true) |  # its exit status is how many there are
  awk '/^soak/ { print; next } NF { others[n++] = $0 } END { for (i = 0; i < n; ++i) print others[i] }' > "$folder/names"
total=$(wc -l < "$folder/names")
seq "$total" | xargs -P "$at_once" -I{} bash -c 'run_test {}'
if [[ -e $folder/failed ]]; then exit 1; fi
echo "All of $total GPU tests passed."
