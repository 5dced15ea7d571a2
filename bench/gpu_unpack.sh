#!/usr/bin/env bash
# Unpacks what bench/gpu.sh --pack has packed into a folder, there: gpu.sh and gpu_torch.sh do it by themselves. Programs that lie there
# unpacked are taken as they are.
set -euo pipefail
pack=${1:?a folder}
[[ ! -f $pack/programs.tar.gz ]] || tar -C "$pack" -xzf "$pack/programs.tar.gz" || {
    echo "error: $pack/programs.tar.gz cannot be unpacked" >&2
    echo "hint: pack it again with bench/gpu.sh --pack, and see that there is room" >&2
    exit 2
}
