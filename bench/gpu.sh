#!/usr/bin/env bash
# Everything that only a machine with an NVIDIA GPU can show, in one run of less than 8 minutes and one table.
#
#   bench/gpu.sh --pack gpu-pack      here: builds and packs what the other machine needs, which has no Rust and no network
#   bench/gpu.sh --from gpu-pack      there, in a checkout with that folder: runs it all
#
# Each part runs with a limit of its own, and all of them with one deadline: a part that hangs or fails costs only itself, and is
# named in the table with its last line. The table goes to standard output and, with a log of every part, into $OUT
# (./gpu-results). Nothing on the machine is changed. The exit code is 0 whenever the table was written.
#
# What takes most of a step is listed below the table, kernel by kernel.
#
# What lies in the packed folder is run by its place; docs/design/HACKING.md says what each is given and has to print:
#   dtrain, kernels, conformance/*, digests/*, train/step, nccl/modes
#
#   --limit S        seconds for all of it (460)        --device auto|cuda|cpu   cpu tries the peers without a GPU
#   --part-limit S   no part may take longer            --peers "..."            more arguments for bench/peers/torch_gpu.py
#   --python FILE    a Python with PyTorch (python3)                --works "mlp vit"       only these workloads, or none: "";
#                    vit and llama are measured where they are named
#   --sanitize "memcheck racecheck initcheck"   operations under these tools of compute-sanitizer too, which takes minutes: a run
#                    of its own, with --works ""
#   --ncu            what limits the kernels that take most of GPT-2's step, by Nsight Compute: with --works gpt2 or a longer --limit
set -uo pipefail
SECONDS=0
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

pack=$root/gpu-pack limit=460 most=3600 device=auto python=${PYTHON:-python3} peers= works=(gpt2 mlp gpt cnn cnn3d) tools=() ncu=
while (($#)); do
    [[ $1 != --ncu ]] || { ncu=1; shift; continue; }
    (($# > 1)) || { echo "error: $1 needs a value" >&2; exit 2; }
    case $1 in
        --pack) exec "$root/bench/gpu_pack.sh" "$2" ;;
        --from) pack=$2 ;;
        --limit) limit=$2 ;;
        --part-limit) most=$2 ;;
        --device) device=$2 ;;
        --python) python=$2 ;;
        --peers) peers=$2 ;;
        --works) read -ra works <<<"$2" ;;
        --sanitize) read -ra tools <<<"$2" ;;
        *) echo "error: there is no $1; the top of bench/gpu.sh says what there is" >&2; exit 2 ;;
    esac
    shift 2
done
"$root/bench/gpu_unpack.sh" "$pack" || exit 2
out=${OUT:-./gpu-results}
mkdir -p "$out" && out=$(cd "$out" && pwd) || exit 2
rm -f "$out"/*.log "$out/table.md"
: >"$out/rows"
# Compiled kernels are kept there, and the home folder of another's machine stays as it was.
export XDG_CACHE_HOME=$out/cache

# What is left after the last part has been killed: the table, and nothing that can hang.
reserve=5
# How long a part may take to obey, before it is killed.
grace=2
deadline=$((limit - reserve - grace))

# shellcheck source=bench/gpu_parts.sh
. "$root/bench/gpu_parts.sh"
# shellcheck source=bench/gpu_speed.sh
. "$root/bench/gpu_speed.sh"

finish() {
    trap - EXIT INT TERM HUP
    local left
    left=$(jobs -rp)
    # shellcheck disable=SC2086
    [[ $left ]] && kill $left 2>/dev/null
    rm -rf "${TORCHINDUCTOR_CACHE_DIR:-}"
    [[ ${doing:-} ]] && row "$doing" interrupted "" "" "" "" "$(last_line "$out/$doing.log")"
    {
        echo "$(date -u '+%Y-%m-%d %H:%M UTC') · ${gpu:-no GPU} · $(cat "$pack/REVISION" 2>/dev/null || echo 'no pack') ·" \
            "${torch:-no PyTorch} · $SECONDS s"
        echo
        echo "| part | state | s | dtrain | PyTorch eager | PyTorch compiled | last word |"
        echo "|---|---|---|---|---|---|---|"
        cat "$out/rows"
        shares_of_all
        kernels_in_ncu
    } | tee "$out/table.md"
    exit 0
}
trap finish EXIT INT TERM HUP

# -- the machine
gpu= torch= here=
if command -v nvidia-smi >/dev/null; then
    told "GPUs" gpus 20 nvidia-smi -L
    [[ $state == ok ]] && here=$(grep -ac '^GPU ' "$out/gpus.log")
    fields=name,compute_cap,driver_version,clocks.sm,clocks.mem,power.draw,temperature.gpu,memory.used
    told "clocks before" clocks-before 20 nvidia-smi --query-gpu=$fields --format=csv,noheader
    gpu=$(head -n 1 "$out/clocks-before.log" 2>/dev/null | cut -d , -f 1)
else
    skip "GPUs" "there is no nvidia-smi"
    skip "clocks before" "there is no nvidia-smi"
fi
((${here:-0})) || here=
[[ $device == auto ]] && device=${here:+cuda}
# compute_cap 9.0 is sm_90; what only Hopper and Blackwell have is behind the letter.
arch=$(head -n 1 "$out/clocks-before.log" 2>/dev/null | cut -d , -f 2 | tr -cd 0-9)
case $arch in 9? | 1??) arch+=a ;; esac

# -- what dtrain says of it
if [[ -x $pack/dtrain ]]; then
    told "dtrain doctor" doctor 60 "$pack/dtrain" doctor
    part doctor-json 60 "$pack/dtrain" doctor --json
    nvrtc=$(library nvrtc) nccl=$(library nccl) cublaslt=$(library cublaslt) cudnn=$(library cudnn)
else
    skip "dtrain doctor" "there is no $pack/dtrain: bench/gpu.sh --pack"
    nvrtc= nccl= cublaslt= cudnn=
fi
if [[ $nccl ]]; then row "NCCL, by dtrain's own search" ok "" "" "" "" "$nccl"; else
    skip "NCCL, by dtrain's own search" "dtrain doctor found none"
fi
DTRAIN_NVRTC=$(path_in "$nvrtc")
[[ $DTRAIN_NVRTC ]] && export DTRAIN_NVRTC || unset DTRAIN_NVRTC
DTRAIN_NCCL=$(path_in "$nccl")
[[ $DTRAIN_NCCL ]] && export DTRAIN_NCCL || unset DTRAIN_NCCL
DTRAIN_CUBLASLT=$(path_in "$cublaslt")
[[ $DTRAIN_CUBLASLT ]] && export DTRAIN_CUBLASLT || unset DTRAIN_CUBLASLT
DTRAIN_CUDNN=$(path_in "$cudnn")
[[ $DTRAIN_CUDNN ]] && export DTRAIN_CUDNN || unset DTRAIN_CUDNN
# What is measured may have them do what they are faster at.
libraries=()
[[ ${DTRAIN_CUBLASLT:-}${DTRAIN_CUDNN:-} ]] && libraries=(--library 1)

if [[ ! -x $pack/kernels ]]; then
    skip "kernels by NVRTC" "there is no $pack/kernels"
elif [[ ! $here ]]; then
    skip "kernels by NVRTC" "no GPU"
elif [[ ! ${DTRAIN_NVRTC:-} ]]; then
    skip "kernels by NVRTC" "dtrain doctor found no NVRTC"
else
    told "kernels by NVRTC for sm_$arch" kernels 90 "$pack/kernels" "$DTRAIN_NVRTC" "sm_$arch"
fi

# -- correctness
export RUST_TEST_NOCAPTURE=1 RUST_BACKTRACE=1
mapfile -t found < <(programs conformance)
((${#found[@]})) || skip "conformance" "there is nothing in $pack/conformance"
for program in "${found[@]}"; do
    name=$(basename "$program")
    if [[ $here ]]; then told "conformance: $name" "conformance-$name" 240 "$program"; else skip "conformance: $name" "no GPU"; fi
done

# Under the tools every access costs a hundredfold: operations alone, no real sizes and no training.
sanitizer=$(command -v compute-sanitizer || command -v "${CUDA_HOME:-/usr/local/cuda}/bin/compute-sanitizer")
for tool in ${tools[@]+"${tools[@]}"}; do
    [[ $here && ! $sanitizer ]] && skip "$tool" "there is no compute-sanitizer"
    [[ $here ]] || skip "$tool" "no GPU"
    [[ $here && $sanitizer ]] || continue
    for program in "${found[@]}"; do
        name=$(basename "$program")
        told "$tool: $name" "$tool-$name" 180 "$sanitizer" --tool "$tool" --error-exitcode 9 --target-processes all \
            "$program" --skip real_sizes --skip models --test-threads 1
    done
done

digests=
# digest NAME RANKS COMMAND...: a part that prints `digest HEX`, or a summary in JSON.
digest() {
    local name=$1 ranks=$2
    shift 2
    part "digest-$name-$ranks" 60 "$@"
    local hex find='s/^digest //p; /"event":"summary"/s/.*"digest":"\([0-9a-f]*\)".*/\1/p'
    hex=$(sed -n "$find" "$out/digest-$name-$ranks.log" 2>/dev/null | tail -n 1)
    [[ $state == ok && ! $hex ]] && state="failed (it printed no digest)"
    digests+="$name $hex"$'\n'
    row "digest: $name, ranks $ranks" "$state" "$took" "" "" "" "${hex:-$said}"
}
# Ranks that share one GPU: their gradients go through the host.
alone=(train --json data.kind=digits model.kind=cnn steps=20 devices=cuda:0 backend=host)
if [[ ! -x $pack/dtrain ]]; then skip "digest: host" "not yet: there is no $pack/dtrain"
elif [[ ! $here ]]; then skip "digest: host" "no GPU"
else for ranks in 1 2 4; do
    rm -rf "$out/run-$ranks"
    digest host $ranks "$pack/dtrain" "${alone[@]}" "ranks=$ranks" "run_dir=$out/run-$ranks"
    rm -rf "$out/run-$ranks"
done; fi
# The product as people start it: a transformer in bf16, whatever the ranks, and with one that is killed.
halves=(train --json data.kind=text "data.path=$out/text" model.kind=gpt model.layers=2 model.width=64 model.heads=4 data.context=64
    micro_batch=8 global_batch=32 steps=60 devices=cuda:0 precision=bf16 backend=host)
if [[ -x $pack/dtrain && $here ]]; then
    pages >"$out/text"
    for ranks in 1 2 4; do
        rm -rf "$out/run-$ranks"
        digest bf16 $ranks "$pack/dtrain" "${halves[@]}" "ranks=$ranks" "run_dir=$out/run-$ranks"
        [[ $ranks == 2 ]] && told "profile: bf16, ranks 2" profile-bf16 60 "$pack/dtrain" "${halves[@]}" ranks=2 "run_dir=$out/run-profile" --profile
        rm -rf "$out/run-$ranks" "$out/run-profile"
    done
    # Each rank keeps two thirds of the optimizer's state, then of the gradient too, then of the parameters.
    for shard in optimizer gradients parameters; do
        digest bf16 "3-$shard" "$pack/dtrain" "${halves[@]}" ranks=3 state=sharded shard=$shard "run_dir=$out/run-3"
        rm -rf "$out/run-3"
    done
    told "killed ranks: bf16, ranks 3" kill-bf16 120 "$pack/dtrain" drill kill "${halves[@]:2}" ranks=3
    # The same with matrices that a library multiplies: in every world, with parameters in shards, and taken up again after all was killed.
    large=("${halves[@]}" model.layers=4 model.width=768 model.heads=12 data.context=256 micro_batch=8 steps=40)
    for ranks in 1 2 4; do
        digest library $ranks "$pack/dtrain" "${large[@]}" "ranks=$ranks" "run_dir=$out/run-$ranks"
        [[ $ranks == 1 ]] && cp "$out/run-1/libraries.json" "$out/libraries.log" 2>/dev/null
        rm -rf "$out/run-$ranks"
    done
    # And in f32, of which the library multiplies what it can as TF32.
    for ranks in 1 2; do
        digest tf32 $ranks "$pack/dtrain" "${large[@]}" precision=tf32 "ranks=$ranks" "run_dir=$out/run-$ranks"
        rm -rf "$out/run-$ranks"
    done
    digest library 3-parameters "$pack/dtrain" "${large[@]}" ranks=3 state=sharded shard=parameters "run_dir=$out/run-3"
    rm -rf "$out/run-3"
    digest library 2-resumed "$root/bench/gpu_killed.sh" "$pack/dtrain" "$out/run-killed" "${large[@]}" ranks=2
    rm -rf "$out/run-killed"
    told "killed ranks: library, ranks 3" kill-library 120 "$pack/dtrain" drill kill "${large[@]:2}" ranks=3
    # The whole of GPT-2 small, from bytes: what the program makes of a GPU.
    told "product: 12 layers of 768, 64 x 1024 bytes" product-gpt2 60 "$pack/dtrain" "${halves[@]:0:4}" model.kind=gpt model.layers=12 \
        model.width=768 model.heads=12 data.context=1024 micro_batch=64 global_batch=64 steps=40 devices=cuda:0 precision=bf16 \
        ranks=1 "run_dir=$out/run-gpt2"
    rm -rf "$out/run-gpt2"
else
    skip "digest: bf16" "$([[ $here ]] && echo "there is no $pack/dtrain" || echo "no GPU")"
fi
# What a GPU can do at all, while nothing else runs there.
if [[ $here ]]; then told "ceilings, by PyTorch" ceilings 60 "$python" "$root/bench/peers/torch_ceilings.py"; fi
# Ranks that meet over NCCL: on as many GPUs as there are, or two on one; or what they lack.
together=() lacks=
several=$(printf '2.30.3\n%s\n' "${nccl%% *}" | sort -V | head -n 1)
if [[ ! $here ]]; then lacks="no GPU"
elif [[ ! $nccl ]]; then lacks="no NCCL"
elif ((here == 1)) && [[ $several != 2.30.3 ]]; then lacks="two ranks on one GPU need NCCL 2.30.3, this is ${nccl%% *}"
elif ((here == 1)); then together=(env NCCL_MULTI_RANK_GPU_ENABLE=1); fi
if [[ ! -x $pack/digests/nccl ]]; then skip "digest: nccl" "not yet: there is no $pack/digests/nccl"
elif [[ $lacks ]]; then skip "digest: nccl" "$lacks"
else for ranks in 1 2; do digest nccl $ranks ${together[@]+"${together[@]}"} "$pack/digests/nccl" $ranks; done; fi
if [[ $digests ]]; then
    # A digest of each kind: what is trained is not the same.
    printed=$(grep -v ' $' <<<"${digests%$'\n'}" | sort -u)
    different=$(grep -c . <<<"$printed") kinds=$(cut -d ' ' -f 1 <<<"$printed" | sort -u | wc -l)
    if ((different == kinds)); then row "digests agree" ok "" "" "" "" "$(wc -l <<<"${digests%$'\n'}") runs"; else
        row "digests agree" "failed ($different digests)" "" "" "" "" ""
    fi
fi

# -- the compiler of PyTorch takes a minute a workload the first time: it fills its cache beside what is not timed
peer=("$python" "$root/bench/peers/torch_gpu.py" --device "${device:-cuda}")
TORCHINDUCTOR_CACHE_DIR=$(mktemp -d) && export TORCHINDUCTOR_CACHE_DIR
warming=()
if [[ ! $device ]]; then
    skip "PyTorch" "no GPU"
elif part torch 40 "$python" -c 'import torch; print("PyTorch", torch.__version__)'; then
    torch=$said
    warm=$((deadline - SECONDS < 150 ? deadline - SECONDS : 150))
    ((warm < most)) || warm=$most
    for work in "${works[@]}"; do
        ((warm > 0)) || break
        # shellcheck disable=SC2086
        timeout -k "$grace" "$warm" "${peer[@]}" --work "$work" --mode compiled --warm $peers \
            </dev/null >"$out/warm-$work.log" 2>&1 &
        warming+=($!)
    done
else
    row "PyTorch" "$state" "$took" "" "" "" "$said"
fi

# What is not timed goes beside the compiler too.
[[ " ${works[*]} " == *" gpt2 "* ]] && curve bf16

# -- speed: ours, PyTorch's eager, PyTorch's compiled; nothing else runs meanwhile
((${#warming[@]})) && wait "${warming[@]}"
measure_speed

if command -v nvidia-smi >/dev/null; then
    told "clocks after" clocks-after 20 nvidia-smi --query-gpu=$fields --format=csv,noheader
else
    skip "clocks after" "there is no nvidia-smi"
fi
