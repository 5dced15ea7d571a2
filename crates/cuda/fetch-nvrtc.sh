#!/bin/sh
# Fetches NVRTC from PyPI, so that the tests of this crate compile every kernel for real GPUs, and the oldest one that dtrain
# takes, which has to take every kernel too. No GPU and no CUDA needed.
#
#   crates/cuda/fetch-nvrtc.sh        about 85 MB, into $XDG_CACHE_HOME/dtrain/nvrtc (or ~/.cache/dtrain/nvrtc)
#
# pip compares a package with the hash of the index. What came is loaded and asked for its version before it gets its place,
# so what lies there is whole. The library is NVIDIA's and must not be committed. To use one that is there already:
# DTRAIN_NVRTC=/path/libnvrtc.so.13
set -eu
top="${XDG_CACHE_HOME:-$HOME/.cache}/dtrain/nvrtc"
mkdir -p "$top"
room=$(mktemp -d "$top/fetch.XXXXXX")
trap 'rm -rf "$room"' EXIT
trap 'exit 1' HUP INT TERM

# fetch PACKAGE VERSION LIBRARIES NAME FOLDER: the wheel's folder of libraries, the name of the library
fetch() {
    if [ -f "$5/$4" ]; then
        echo "NVRTC $2 is in $5 already"
        return
    fi
    mkdir -p "$5" "$room/$1"
    if ! python3 -m pip download --quiet --no-deps --dest "$room/$1" "$1==$2"; then
        echo "PyPI cannot be reached; the compile check of kernels will be skipped" >&2
        exit 1
    fi
    python3 -m zipfile -e "$room/$1"/*.whl "$room/$1"
    LD_LIBRARY_PATH="$room/$1/$3" python3 - "$room/$1/$3/$4" "$2" <<'PYTHON'
import ctypes, sys
major, minor = ctypes.c_int(), ctypes.c_int()
assert ctypes.CDLL(sys.argv[1]).nvrtcVersion(ctypes.byref(major), ctypes.byref(minor)) == 0
version = f"{major.value}.{minor.value}"
assert sys.argv[2].startswith(f"{version}."), f"NVRTC {version} is not the one that was asked for"
PYTHON
    # The library last: it is what is looked for, and it needs the others.
    mv "$room/$1/$3"/libnvrtc-builtins.so.* "$5/"
    mv "$room/$1/$3/$4" "$5/"
    echo "NVRTC $2 is in $5"
}

fetch nvidia-cuda-nvrtc 13.5.37 nvidia/cu13/lib libnvrtc.so.13 "$top"
fetch nvidia-cuda-nvrtc-cu12 12.0.140 nvidia/cuda_nvrtc/lib libnvrtc.so.12 "$top/oldest"
