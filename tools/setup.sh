#!/usr/bin/env bash
# Brings what a build of heddle needs and this machine lacks, and says so. Quick where nothing is
# missing. Run by tools/demo and tools/test; may be run alone.
#
#   compiler, cmake, ninja, libraries  Debian / Ubuntu packages (root, or sudo)
#   cuda.h, nvrtc.h and NVRTC          a CUDA toolkit where there is one, else the PyPI packages
#                                      nvidia-cuda-nvrtc and nvidia-cuda-runtime, in .deps/cuda
#   nanobind, numpy, pytest            PyPI packages for the Python package and its tests, in .deps/python
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

say() { echo "setup: $*"; }

has_header() {  # has_header fmt/core.h
  local dir
  for dir in /usr/include /usr/local/include "/usr/include/$(uname -m)-linux-gnu"; do
    [ -e "$dir/$1" ] && return 0
  done
  return 1
}

missing=()
need_tool() { command -v "$1" >/dev/null 2>&1 || missing+=("$2"); }
need_header() { has_header "$1" || missing+=("$2"); }

install_packages() {
  [ ${#missing[@]} -eq 0 ] && return 0
  if ! command -v apt-get >/dev/null 2>&1; then
    say "this machine has no apt-get; please install these yourself: ${missing[*]}" >&2
    exit 1
  fi
  local as_root=()
  if [ "$(id -u)" -ne 0 ]; then
    if ! command -v sudo >/dev/null 2>&1; then
      say "neither root nor sudo; please have these packages installed: ${missing[*]}" >&2
      exit 1
    fi
    as_root=(sudo)
  fi
  say "installing Debian packages: ${missing[*]}"
  "${as_root[@]}" apt-get -qq update
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive \
    apt-get -qq install -y --no-install-recommends "${missing[@]}" >/dev/null
}

has_cuda() {
  local dir
  for dir in "${CUDA_HOME:-/usr/local/cuda}" "${CUDA_PATH:-/usr/local/cuda}" /usr/local/cuda \
             /usr/local /usr .deps/cuda; do
    [ -e "$dir/include/cuda.h" ] && [ -e "$dir/include/nvrtc.h" ] && return 0
  done
  return 1
}

# NVRTC is loaded at run time, so only the headers are needed to build; the wheels bring both.
# 13.0 is the version that the numbers in this repository were measured with.
install_cuda() {
  has_cuda && return 0
  if ! python3 -m pip --version >/dev/null 2>&1; then
    missing=(python3-pip)
    install_packages
  fi
  say "no CUDA toolkit here: fetching nvidia-cuda-nvrtc and nvidia-cuda-runtime into .deps/cuda"
  local work=.deps/unpack.$$
  rm -rf "$work"
  mkdir -p "$work"
  if ! python3 -m pip download -q --no-deps --disable-pip-version-check -d "$work" \
      'nvidia-cuda-nvrtc==13.0.*' 'nvidia-cuda-runtime==13.0.*'; then
    rm -rf "$work"
    say "the two packages could not be fetched; install a CUDA 13 toolkit, or set CUDA_HOME to one" >&2
    exit 1
  fi
  local wheel
  for wheel in "$work"/*.whl; do python3 -m zipfile -e "$wheel" "$work"; done
  # Into place by one rename, so that an interrupted run leaves nothing half done.
  rm -rf .deps/cuda
  mv "$work/nvidia/cu13" .deps/cuda
  rm -rf "$work"
}

# For the Python package; numpy belongs to the interpreter's version, so another one fetches anew.
install_python_packages() {
  local version
  version=$(python3 -c 'import sys; print("%d.%d" % sys.version_info[:2], int(sys.version_info >= (3, 10)))')
  if [ "${version#* }" = 0 ]; then
    say "CPython ${version% *} is older than 3.10: the Python package is left out"
    return 0
  fi
  [ -e ".deps/python/for-${version% *}" ] && return 0
  if ! python3 -m pip --version >/dev/null 2>&1; then
    missing=(python3-pip)
    install_packages
  fi
  say "fetching nanobind, numpy and pytest into .deps/python"
  local work=.deps/python.$$
  rm -rf "$work"
  if ! python3 -m pip install -q --disable-pip-version-check --root-user-action=ignore --target "$work" \
      'nanobind>=2.4' numpy pytest; then
    rm -rf "$work"
    say "they could not be fetched: the Python package is left out" >&2
    return 0
  fi
  touch "$work/for-${version% *}"
  rm -rf .deps/python
  mv "$work" .deps/python
}

need_tool g++ g++
need_tool cmake cmake
need_tool ninja ninja-build
need_tool python3 python3
python3 -c 'import os, sysconfig; os.stat(sysconfig.get_path("include") + "/Python.h")' 2>/dev/null || missing+=(python3-dev)
has_header catch2/catch_all.hpp || need_header catch2/catch.hpp catch2  # version 3, or 2
need_header fmt/core.h libfmt-dev
need_header nlohmann/json.hpp nlohmann-json3-dev
need_header CLI/CLI.hpp libcli11-dev
need_header xxhash.h libxxhash-dev
need_header benchmark/benchmark.h libbenchmark-dev
install_packages
install_cuda
install_python_packages
