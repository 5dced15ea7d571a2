#!/bin/sh
# Fetches NVRTC from PyPI, so that the tests of this crate compile every kernel for real GPUs. No GPU and no CUDA needed.
#
#   crates/cuda/fetch-nvrtc.sh        about 60 MB, into $XDG_CACHE_HOME/dtrain/nvrtc (or ~/.cache/dtrain/nvrtc)
#
# pip compares the package with the hash of the index. What came is loaded and asked for its version before it gets its place,
# so what lies there is whole. The library is NVIDIA's and must not be committed. To use one that is there already:
# DTRAIN_NVRTC=/path/libnvrtc.so.13
set -eu
version=13.5.37
folder="${XDG_CACHE_HOME:-$HOME/.cache}/dtrain/nvrtc"
if [ -f "$folder/libnvrtc.so.13" ]; then
    echo "NVRTC is in $folder already"
    exit 0
fi
mkdir -p "$folder"
room=$(mktemp -d "$folder/fetch.XXXXXX")
trap 'rm -rf "$room"' EXIT
trap 'exit 1' HUP INT TERM
if ! python3 -m pip download --quiet --no-deps --dest "$room" "nvidia-cuda-nvrtc==$version"; then
    echo "PyPI cannot be reached; the compile check of kernels will be skipped" >&2
    exit 1
fi
python3 -m zipfile -e "$room"/*.whl "$room"
python3 - "$room/nvidia/cu13/lib/libnvrtc.so.13" <<'PYTHON'
import ctypes, sys
major, minor = ctypes.c_int(), ctypes.c_int()
assert ctypes.CDLL(sys.argv[1]).nvrtcVersion(ctypes.byref(major), ctypes.byref(minor)) == 0
assert major.value == 13, f"NVRTC {major.value}.{minor.value} is not the one that was asked for"
PYTHON
# The library last: it is what is looked for, and it needs the others.
mv "$room"/nvidia/cu13/lib/libnvrtc-builtins.so.* "$folder/"
mv "$room"/nvidia/cu13/lib/libnvrtc.so.13 "$folder/"
echo "NVRTC $version is in $folder"
