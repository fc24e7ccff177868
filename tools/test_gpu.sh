#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# All tests that need a GPU, with a log under bench/results/. `make test-gpu` runs it.
#
#   tools/test_gpu.sh [--steps cpp,python,faults,sanitize] [--filter GTEST_FILTER] [--log FILE]
#
# cpp       build/gpu's hpcattn_gpu_tests: every operator against the float64 reference
# python    pytest tests/gpu: torch's operators, graphs, the drop-in, models
# faults    tools/break_kernels.py: faults put into kernels on purpose must be found
# sanitize  compute-sanitizer (memcheck, racecheck, initcheck) over a subset of cpp
#
# The first three are the default. The Python is .venv's where there is one, else PYTHON, else
# python3. hpcattn_gpu_tests is built by CMake, unless build/gpu holds one that was built elsewhere.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

steps=cpp,python,faults
filter='*'
log=bench/results/test_gpu_$(date +%Y-%m-%d).log
while (($# > 0)); do
  case $1 in
    --steps) steps=$2 ;;
    --filter) filter=$2 ;;
    --log) log=$2 ;;
    *) echo "test_gpu: unknown option $1" >&2 && exit 2 ;;
  esac
  shift 2
done

python=${PYTHON:-python3}
[[ -x .venv/bin/python ]] && python=.venv/bin/python
# A path that holds in other folders too.
python=$(command -v "$python") || { echo "test_gpu: no Python; set PYTHON" >&2 && exit 2; }

if ! nvidia-smi --query-gpu=name --format=csv,noheader >/dev/null 2>&1; then
  echo "test_gpu: no NVIDIA GPU here (nvidia-smi finds none)" >&2
  exit 77
fi

# The libnvrtc of torch's wheel; the library finds the system's by itself.
if [[ -z ${HPCATTN_NVRTC:-} ]]; then
  nvrtc=$("$python" -c 'import sys; sys.path.insert(0, "tests/kernels"); import cubins; print(cubins.find_nvrtc() or "")')
  [[ -n $nvrtc ]] && export HPCATTN_NVRTC=$nvrtc
fi
export HPCATTN_CACHE_DIR=${HPCATTN_CACHE_DIR:-$PWD/build/gpu/cache}
mkdir -p "$HPCATTN_CACHE_DIR" && chmod 700 "$HPCATTN_CACHE_DIR"

mkdir -p "$(dirname "$log")"
# No paths of this machine: the log is kept in the repository.
exec > >(sed -u 's#[^ ]*/site-packages/#site-packages/#' | tee "$log") 2>&1
tee_pid=$!
trap 'exec >&- 2>&-; wait "$tee_pid"' EXIT

say() { printf '==> %s\n' "$*"; }
failed=()
begin=$SECONDS

say "hpcattn $(sed -n 's/^project(hpcattn VERSION \([0-9.]*\).*/\1/p' CMakeLists.txt), GPU tests, $(date -u +'%Y-%m-%d %H:%M UTC')"
say "commit: ${HPCATTN_COMMIT:-$(git rev-parse --short HEAD 2>/dev/null || echo unknown)$(git diff --quiet HEAD 2>/dev/null || echo ', changed')}"
say "GPU, memory, driver: $(nvidia-smi --query-gpu=name,memory.total,driver_version --format=csv,noheader | head -n 1)"
say "libnvrtc: $(basename "${HPCATTN_NVRTC:-of the system}")"
say "Python: $("$python" -c 'import sys, torch; print(sys.version.split()[0], "torch", torch.__version__, "CUDA", torch.version.cuda)' 2>/dev/null || echo "without torch")"

binary=build/gpu/hpcattn_gpu_tests
if [[ -x $binary && ! -e build/gpu/CMakeCache.txt ]]; then
  say "C++ tests: $binary, built elsewhere, $(date -u -r "$binary" +'%Y-%m-%d %H:%M UTC')"
elif [[ $steps == *cpp* || $steps == *faults* || $steps == *sanitize* ]]; then
  say "building the C++ tests"
  cmake -S . -B build/gpu -DCMAKE_BUILD_TYPE=Release -DHPCATTN_BUILD_TESTS=ON >/dev/null
  cmake --build build/gpu --parallel "$(nproc)" --target hpcattn_gpu_tests hpcattn_variants | tail -n 1
  binary=build/gpu/src/hpcattn_gpu_tests
fi

# run NAME COMMAND...: counts a step that fails, and goes on.
run() {
  local name=$1 start=$SECONDS status=0
  shift
  say "$name"
  "$@" || status=$?
  if ((status == 0)); then
    say "$name: passed, $((SECONDS - start)) s"
  else
    say "$name: FAILED with status $status, $((SECONDS - start)) s"
    failed+=("$name")
  fi
}

if [[ ,$steps, == *,cpp,* ]]; then
  run "C++ tests" "$binary" --gtest_filter="$filter"
  # The variants of kernels that check page ids and lengths.
  [[ $filter != '*' ]] || run "C++ tests, device checks" \
    env HPCATTN_DEVICE_CHECKS=1 "$binary" --gtest_filter='GpuDeviceChecks.*:GpuQuick.*'
fi

if [[ ,$steps, == *,python,* ]]; then
  if ! "$python" -c 'import hpcattn' 2>/dev/null; then
    # A wheel that was built here or elsewhere; nothing is installed into the Python itself.
    wheel=$(ls -t dist/hpcattn-*.whl 2>/dev/null | head -n 1 || true)
    if [[ -n $wheel ]]; then
      say "Python package: $wheel"
      rm -rf build/gpu/site
      "$python" -m pip install --quiet --no-index --no-deps --target build/gpu/site "$wheel"
      export PYTHONPATH=$PWD/build/gpu/site${PYTHONPATH:+:$PYTHONPATH}
    fi
  fi
  if "$python" -c 'import hpcattn, pytest' 2>/dev/null; then
    run "Python tests" "$python" -m pytest tests/gpu -q -m "long or not long" -p no:cacheprovider
  else
    say "Python tests: SKIPPED, this Python has no hpcattn or no pytest (\`make package\` builds and installs it)"
    failed+=("Python tests (not run)")
  fi
fi

if [[ ,$steps, == *,faults,* ]]; then
  run "faults on purpose" "$python" tools/break_kernels.py --tests "$binary"
fi

if [[ ,$steps, == *,sanitize,* ]]; then
  export HPCATTN_TEST_APART=1 HPCATTN_TEST_THREADS=1
  export HPCATTN_LINE_INFO=1 HPCATTN_SANITIZER=1
  # Compiled before: under the sanitizer the compiler is slow too.
  run "before sanitizers" "$binary" --gtest_filter='GpuQuick.*' --gtest_brief=1
  for tool in memcheck racecheck initcheck; do
    # Room for all mbarriers of a cta. What racecheck took for races is gone by HPCATTN_SANITIZER,
    # not by this.
    run "compute-sanitizer $tool" compute-sanitizer --tool "$tool" --error-exitcode 9 \
      --launch-timeout 60 --num-cuda-barriers 64 "$binary" --gtest_filter='GpuQuick.*' --gtest_brief=1
  done
fi

say "$((SECONDS - begin)) s in all"
if ((${#failed[@]} > 0)); then
  printf -v list '%s, ' "${failed[@]}"
  say "FAILED: ${list%, }"
  exit 1
fi
say "all passed"
