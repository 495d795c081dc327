#!/usr/bin/env bash
# Configures (once) and builds heddle, Release, into build/. Quick where nothing has changed.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

if [ ! -e build/build.ninja ]; then
  echo "build: configuring; the log is build/configure.log"
  mkdir -p build
  cmake -S . -B build -G Ninja -DCMAKE_BUILD_TYPE=Release >build/configure.log 2>&1 || {
    cat build/configure.log >&2
    exit 1
  }
fi
echo "build: building into build/"
cmake --build build
