#!/usr/bin/env bash
# PyTorch programs on a GPU, by what bench/gpu.sh --pack has packed: digests for every place of the state and number of ranks, with a rank
# that is killed too, and the pace beside PyTorch's own loop. Some minutes; a row each on standard output, logs in $OUT.
#
#   bench/gpu_torch.sh gpu-pack [PYTHON]
#
# DEVICE=cpu tries it without a GPU, with fewer ways. All digests of a work have to be equal: the last line says whether they are.
set -uo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
"$(dirname "${BASH_SOURCE[0]}")/gpu_unpack.sh" "${1:?a folder that bench/gpu.sh --pack made}" || exit 2
pack=$(cd "$1" && pwd) python=${2:-python3} device=${DEVICE:-cuda:0}
out=${OUT:-./gpu-results}
mkdir -p "$out" && out=$(cd "$out" && pwd) || exit 2
export PYTHONPATH=$pack/python${PYTHONPATH:+:$PYTHONPATH} XDG_CACHE_HOME=${XDG_CACHE_HOME:-$out/cache} NCCL_MULTI_RANK_GPU_ENABLE=1
digests=

# way WORK NAME RANKS STEPS SETTINGS...: trains, and prints what the program says of it.
way() {
    local work=$1 name=$2 ranks=$3 steps=$4 log=$out/torch-$1-$2-$3.log folder hex
    shift 4
    folder=$(mktemp -d)
    (cd "$folder" && timeout -k 2 120 "$python" "$root/bench/torch_works.py" "$work" 1 "$steps" "$ranks" "devices=$device" "$@") \
        </dev/null >"$log" 2>&1
    local code=$?
    rm -rf "$folder"
    hex=$(sed -n 's/^digest //p' "$log")
    digests+="$work $hex"$'\n'
    echo "| $work | $name | $ranks | $code | ${hex:0:16} | $(tail -n 1 "$log" | tr '|' '/' | cut -c 1-160) |"
}

echo "| work | way | ranks | exit | digest | last word |"
echo "|---|---|---|---|---|---|"
places=(none state)
[[ $device != cpu ]] || places=(auto)
for work in mlp cnn; do
    for place in "${places[@]}"; do
        for ranks in 1 2; do way "$work" "$place" "$ranks" 20 "offload=$place" backend=host global_batch=256; done
    done
    [[ $device == cpu ]] || way "$work" nccl 2 20 offload=none backend=nccl global_batch=256
done
# A rank is killed: the program of the README on two ranks, drilled.
folder=$(mktemp -d)
(cd "$folder" && timeout -k 2 120 "$pack/dtrain" drill kill -- "$python" "$root/examples/train_pytorch.py" ranks=2 "devices=$device") \
    </dev/null >"$out/torch-drill.log" 2>&1
echo "| digits | drill kill | 2 | $? | | $(tail -n 1 "$out/torch-drill.log" | tr '|' '/' | cut -c 1-160) |"
rm -rf "$folder"
# The pace: dtrain's place of the state, the host's, and PyTorch alone, in turn. Samples are rows of a batch.
if [[ $device != cpu ]]; then
    for round in 1 2; do
        for place in none state; do way gpt2 "bf16, $place, round $round" 1 60 "offload=$place" precision=bf16; done
        for mode in eager compiled; do
            timeout -k 2 150 "$python" "$root/bench/peers/torch_gpu.py" --work gpt2 --mode "$mode" --batches 16 --seconds 1 \
                </dev/null >"$out/torch-gpt2-$mode-$round.log" 2>&1
            echo "| gpt2 | PyTorch $mode, round $round | 1 | $? | | $(tail -n 1 "$out/torch-gpt2-$mode-$round.log" | cut -c 1-160) |"
        done
    done
fi
kinds=$(grep . <<<"$digests" | cut -d ' ' -f 1 | sort -u | wc -l)
if [[ $(grep . <<<"$digests" | sort -u | wc -l) == "$kinds" ]]; then echo "digests agree"; else echo "DIGESTS DIFFER"; exit 1; fi
