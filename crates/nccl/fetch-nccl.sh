#!/bin/sh
# Fetches NCCL from PyPI, so that a test of this crate opens the real library. No GPU and no CUDA needed.
#
#   crates/nccl/fetch-nccl.sh        291 MB, into $XDG_CACHE_HOME/dtrain/nccl (or ~/.cache/dtrain/nccl)
#   DTRAIN_TEST_NCCL=that/libnccl.so.2 cargo test -p dtrain-nccl
#
# pip compares the package with the hash of the index. What came is loaded and asked for its version before it gets its place,
# so what lies there is whole. The library is NVIDIA's and must not be committed.
set -eu
version=2.32.3
folder="${XDG_CACHE_HOME:-$HOME/.cache}/dtrain/nccl"
if [ -f "$folder/libnccl.so.2" ]; then
    echo "NCCL is in $folder already"
    exit 0
fi
mkdir -p "$folder"
room=$(mktemp -d "$folder/fetch.XXXXXX")
trap 'rm -rf "$room"' EXIT
trap 'exit 1' HUP INT TERM
if ! python3 -m pip download --quiet --no-deps --dest "$room" "nvidia-nccl-cu13==$version"; then
    echo "PyPI cannot be reached; the test of the real NCCL will be skipped" >&2
    exit 1
fi
python3 - "$room" <<'PYTHON'
import ctypes, glob, sys, zipfile
room = sys.argv[1]
with zipfile.ZipFile(glob.glob(f"{room}/*.whl")[0]) as package:
    library = package.extract("nvidia/nccl/lib/libnccl.so.2", room)
version = ctypes.c_int()
assert ctypes.CDLL(library).ncclGetVersion(ctypes.byref(version)) == 0
assert version.value == 23203, f"NCCL {version.value} is not the one that was asked for"
PYTHON
mv "$room"/nvidia/nccl/lib/libnccl.so.2 "$folder/"
echo "NCCL $version is in $folder"
