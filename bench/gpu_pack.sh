#!/usr/bin/env bash
# Builds what bench/gpu.sh needs on a machine without Rust, and packs it: stripped, compressed, at most 64 MiB.
#
#   bench/gpu.sh --pack gpu-pack      (PROFILE=dev packs a quick build)
#
# The folder gets one file, programs.tar.gz, which `--from` unpacks beside itself.
# Beside `dtrain`, what is packed follows from names: of the crates `cuda` and `nccl` and of the binary, a test `on_gpu_NAME` goes to
# conformance/, an example `digest_NAME` to digests/, `train_NAME` to train/, `nccl_NAME` to nccl/; the example `compile_kernels` is `kernels`.
# A fake library is never packed. The other machine's glibc must be at least the one that is printed.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
to=${1:?a folder}
pack=$(mktemp -d) && chmod 755 "$pack"
trap 'rm -rf "$pack"' EXIT
profile=${PROFILE:-release}
most=$((64 << 20))

# The targets of a kind ("test", "example") whose names begin so, as `crate name` lines.
targets() {
    cargo metadata --format-version 1 --no-deps | python3 -c '
import json, sys
kind, start = sys.argv[1:]
for crate in json.load(sys.stdin)["packages"]:
    if crate["name"] in ("dtrain", "dtrain-cuda", "dtrain-nccl"):
        for target in crate["targets"]:
            if kind in target["kind"] and target["name"].startswith(start):
                print(crate["name"], target["name"])
' "$1" "$2"
}

# build AS ARGUMENTS...: builds one target and packs its executable, or the library that it is, as AS.
build() {
    local as=$1 file
    shift
    file=$(cargo build --quiet --profile "$profile" --message-format json-render-diagnostics "$@" | python3 -c '
import json, sys
made = [json.loads(line) for line in sys.stdin if line.startswith("{")]
programs = [one["executable"] for one in made if one.get("executable")]
libraries = [one["filenames"] for one in made if "cdylib" in one.get("target", {}).get("kind", [])]
print(programs[-1] if programs else libraries[-1][0])
')
    mkdir -p "$(dirname "$pack/$as")"
    strip -o "$pack/$as" "$file"
    echo "packed $as" >&2
}

build dtrain -p dtrain --bin dtrain
build kernels -p dtrain-cuda --example compile_kernels
for rule in "test on_gpu_ conformance" "example digest_ digests" "example train_ train" "example nccl_ nccl"; do
    read -r kind start folder <<<"$rule"
    while read -r crate name; do
        build "$folder/${name#"$start"}" -p "$crate" "--$kind" "$name"
    done < <(targets "$kind" "$start")
done
# The Python package, as a folder for PYTHONPATH.
build python/dtrain/_native.abi3.so -p dtrain-python
cp python/dtrain/*.py "$pack/python/dtrain/"
"$pack/dtrain" --version >"$pack/REVISION"

needs=$(find "$pack" -type f -perm -u+x -exec objdump -T {} + 2>/dev/null | grep -o 'GLIBC_[0-9.]*' | sort -uV | tail -n 1)
# Only what an earlier packing, or unpacking, left is removed.
mkdir -p "$to"
rm -rf "$to"/{dtrain,kernels,conformance,digests,train,nccl,python,REVISION,programs.tar.gz}
tar -C "$pack" -czf "$to/programs.tar.gz" .
size=$(du -sb "$to" | cut -f 1)
echo "$to: $(cat "$pack/REVISION"), $((size >> 20)) MiB, needs ${needs:-no glibc}" >&2
if ((size > most)); then
    {
        echo "error: $to has $size bytes, and at most $most can be carried"
        echo "hint: the largest files in it, and in programs.tar.gz before they were compressed:"
        find "$to" "$pack" -type f -printf '%12s  %P\n' | sort -rn | head -n 5
    } >&2
    exit 1
fi
