#!/usr/bin/env bash
# The host's tests under sanitizers, each in a build folder of its own.
#
#   tests/sanitize.sh quick    address and undefined, over the rooms that read what others wrote: some minutes
#   tests/sanitize.sh address  the same, over all host tests, the command's and the mock driver's too
#   tests/sanitize.sh thread   over the tests that start threads
#   tests/sanitize.sh races PROGRAM    as ctest does: tests that were built under the thread sanitizer; 77 where it
#                              cannot start, as addresses are too random for it
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

# NVRTC keeps memory until the process ends. What a test forks ends without a look at leaks.
export LSAN_OPTIONS=suppressions=$PWD/tests/leaks.txt:print_suppressions=0
# Tests that count allocations replace new and delete, but not new's nothrow form.
export ASAN_OPTIONS=alloc_dealloc_mismatch=0
export UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1
# Tests fork while threads run, and children start threads of their own.
export TSAN_OPTIONS=halt_on_error=1:die_after_fork=0

export HEDDLE_PATIENCE=250

build() {  # build PRESET ROOM...
  local preset=$1
  shift
  cmake --preset "$preset" >"/dev/null"
  cmake --build "build-$preset" -t "${@/%/_tests}"
}

run() {  # run PRESET ROOM [TESTS]
  echo "sanitize: $2 tests ${3:-} ($1)"
  "build-$1/heddle_$2_tests" ${3:+"$3"}
}

races() {
  local calm=()
  setarch -R true 2>"/dev/null" && calm=(setarch -R)
  "${calm[@]}" "$1" --list-test-names-only >"/dev/null" 2>&1 || [ $? -ne 66 ] || exit 77
  exec "${calm[@]}" "$1"
}

case ${1:-} in
  races) races "$2" ;;
  quick) preset=asan rooms=(runtime variants planner) ;;
  address) preset=asan rooms=(runtime variants planner mock tools engine) ;;
  thread) preset=tsan rooms=(runtime engine) ;;
  *) sed -n '2,8s/^# \?//p' "$0" >&2 && exit 2 ;;
esac
build "$preset" "${rooms[@]/#/heddle_}"
for room in "${rooms[@]}"; do
  tests=
  [ "$preset $room" = "tsan engine" ] && tests="[cache],[soak],[threads]"
  run "$preset" "$room" "$tests"
done
