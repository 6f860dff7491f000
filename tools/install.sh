#!/usr/bin/env bash
# Make .venv and install sparkstral into it. Usage: tools/install.sh [EXTRAS]   (EXTRAS: "test" or nothing)
#
# torch comes first, because a plain "pip install torch" on Linux is a CUDA build of several GB:
#   - with an NVIDIA GPU: torch 2.14 (CUDA 13.0, Triton 3.8: what driver 580 and GB10 need);
#   - without one: the CPU build, from the sources that pip is set up with or else through uv, which knows where the
#     CPU builds are; only when neither has one, the large build, and that is said.
set -euo pipefail
cd "$(dirname "$0")/.."
extras=${1:-}
cpu_torch=2.13.0
say() { printf '[install] %s\n' "$*" >&2; }

python=${PYTHON:-}
if [ -z "$python" ]; then
  for candidate in python3.12 python3.13 python3.11 python3; do
    if "$candidate" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' 2>/dev/null; then
      python=$candidate
      break
    fi
  done
fi
if [ -z "$python" ]; then
  say "No Python 3.11, 3.12 or 3.13 found. On Ubuntu: sudo apt install python3 python3-venv; or name one: make PYTHON=/path/to/python3.12 ..."
  exit 1
fi

if [ ! -x .venv/bin/python ] || ! .venv/bin/python -m pip --version >/dev/null 2>&1; then
  say "making .venv with $("$python" --version)"
  rm -rf .venv
  if ! "$python" -m venv .venv; then
    say "Python's venv module is missing. On Ubuntu: sudo apt install python3-venv"
    exit 1
  fi
fi
pip=".venv/bin/python -m pip --disable-pip-version-check"
$pip install --quiet --upgrade "pip>=24" || say "pip could not be upgraded; going on with $($pip --version | cut -d' ' -f2)"

has_nvidia_gpu() { [ -e /dev/nvidiactl ] || [ -e /proc/driver/nvidia/version ] || nvidia-smi -L >/dev/null 2>&1; }

if ! .venv/bin/python -c 'import torch' 2>/dev/null; then
  if has_nvidia_gpu; then
    say "NVIDIA GPU found: torch 2.14 with CUDA 13 (about 3 GB to download)"
    $pip install --quiet "torch>=2.14,<2.15"
  elif $pip install --quiet "torch==$cpu_torch+cpu" 2>/dev/null; then
    say "no NVIDIA GPU: CPU build of torch $cpu_torch"
  elif [ "$(uname -s)" = Darwin ]; then
    $pip install --quiet "torch==$cpu_torch"
  else
    say "no NVIDIA GPU: looking for the CPU build of torch $cpu_torch through uv"
    if ! { $pip install --quiet "uv>=0.6" &&
      .venv/bin/uv pip install --quiet --python .venv/bin/python --torch-backend=cpu "torch==$cpu_torch"; }; then
      say "No CPU build could be had; installing the CUDA build (several GB). It works, it is only large."
      $pip install --quiet "torch>=$cpu_torch,<2.15"
    fi
  fi
fi
say "installing sparkstral${extras:+ with [$extras]}"
$pip install --quiet --editable ".${extras:+[$extras]}"
