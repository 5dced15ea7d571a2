# The speed part of bench/gpu.sh: training steps of dtrain and of PyTorch, each kernel's share of them, curves, collectives.
#
# Sourced by it, behind gpu_parts.sh. What both sides have to print is said in docs/design/HACKING.md. Uses $out, $pack, $here, $torch,
# $peer, $peers, $works, $python and $root of it.
# shellcheck shell=bash disable=SC2154,SC2086

# A batch of each that fills a GPU; those of bench/peers do not.
declare -A filling=([mlp]=16384 [cnn]=4096 [cnn3d]=512 [gpt]=256)
# How a part of this kind ended, by its ID.
declare -A states
# Kernels that are listed of a step: all there are.
listed=40

# The one batch of those that are measured where they are named; with GPT-2 they are measured in bf16 alone.
declare -A only=([vit]=256 [llama]=32)
is_large() { [[ $1 == gpt2 || ${only[$1]:-} ]]; }
precisions() { if is_large "$1"; then echo bf16; else echo f32 tf32 bf16; fi; }

# speed NAME ID LIMIT COMMAND...: a part that prints rates; it has a row of its own only if it fails.
speed() {
    local name=$1
    shift
    part "$@"
    states[$1]=$state
    [[ $state == ok ]] || row "$name" "$state" "$took" "" "" "" "$said"
}

# named NAME ARGUMENTS...: the name, and the batch that the arguments begin with, if they do.
named() { if [[ ${2:-} == --batch ]]; then echo "$1, batch $3"; else echo "$1"; fi; }

# Seconds that are measured: ten steps at least.
window() { if is_large "$1"; then echo 3; else echo 1; fi; }

# ours ID WORK PRECISION ARGUMENTS...: a rate of dtrain.
ours() {
    local id=$1 work=$2 precision=$3
    shift 3
    [[ $here && -x $pack/train/step ]] || return
    speed "$(named "dtrain: $work $precision" "$@")" "$id" 120 \
        "$pack/train/step" --work "$work" --precision "$precision" --seconds "$(window "$work")" ${libraries[@]+"${libraries[@]}"} "$@"
}

# theirs ID WORK MODE ARGUMENTS...: rates of PyTorch.
theirs() {
    local id=$1 work=$2 mode=$3
    shift 3
    [[ $torch ]] || return
    speed "$(named "PyTorch: $work $mode" "$@")" "$id" 75 "${peer[@]}" --work "$work" --mode "$mode" "$@" $peers
}

# cell ID WORK PRECISION MODE [fill]: the number that a part printed and its unit, or why there is none.
cell() {
    [[ $4 == dtrain && ! -x $pack/train/step ]] && { echo "not yet"; return; }
    [[ ${5:-} && ! $here ]] && { echo skipped; return; }
    local found
    found=$(awk -v want="$2 $3 $4 " -v fill="${filling[$2]:-}" -v wanted="${5:-}" '
        (fill && index($0, " batch " fill) ? "fill" : "") != wanted { next }
        index($0, "rate " want) == 1 { print $5, $6 (/without graphs/ ? " without graphs" : ""); exit }
        index($0, "lost " want "no room") == 1 { print "no room"; exit }' "$out/$1.log" 2>/dev/null)
    [[ $found || ${states[$1]:-} != ok ]] || found="printed no rate"
    [[ $3 == tf32 && $4 == compiled && $found == "printed no rate" && ${late:-} ]] && found="no time was left"
    echo "${found:-${states[$1]:-skipped}}"
}

# batch_of ID: the batch of the first rate that a part printed.
batch_of() { sed -n '/^rate /s/.* batch \([0-9]*\).*/\1/p' "$out/$1.log" 2>/dev/null | head -n 1; }

# times CELL EAGER COMPILED: how often the first number is the others.
times() {
    awk -v ours="$1" -v eager="$2" -v compiled="$3" 'BEGIN {
        if (ours + 0 > 0 && eager + 0 > 0) said = sprintf("%.2f x eager", ours / eager)
        if (ours + 0 > 0 && compiled + 0 > 0) said = said (said ? ", " : "") sprintf("%.2f x compiled", ours / compiled)
        print said
    }'
}

# rates NAME WORD OURS EAGER COMPILED: a row of three cells, or of two.
rates() {
    local said
    said=$(times "$3" "$4" "$5")
    [[ $said && $2 ]] && said+="; "
    row "$1" "" "" "$3" "$4" "$5" "$said$2"
}

# -- GPT-2: everybody's largest batch that fits, and all of them with the least of those
gpt2_alike() {
    local mode batch least='' fits=''
    for mode in dtrain eager compiled; do
        at[$mode]=$(id_of gpt2 bf16 "$mode")
        batch=$(batch_of "${at[$mode]}")
        fits+=" $mode ${batch:-none}"
        [[ $batch ]] && ((batch < ${least:-batch + 1})) && least=$batch
    done
    said_fits="batch ${least:-none}, fit$fits" fits_all=$least
    [[ $least ]] || return
    for mode in dtrain eager compiled; do
        batch=$(batch_of "${at[$mode]}")
        [[ $batch && $batch != "$least" ]] || continue
        at[$mode]=again-gpt2-$mode
        if [[ $mode == dtrain ]]; then ours "${at[$mode]}" gpt2 bf16 --shares $listed --batch "$least"
        else theirs "${at[$mode]}" gpt2 "$mode" --batch "$least"; fi
    done
}
# The batches for the compiler: from the largest that fits the others on.
halves() {
    local ours eager least
    ours=$(batch_of "$(id_of gpt2 bf16 dtrain)") eager=$(batch_of "$(id_of gpt2 "" eager)")
    least=${ours:-${eager:-64}}
    ((${eager:-least} < least)) && least=$eager
    echo "--batches $least $((least / 2 ? least / 2 : 1)) $((least / 4 ? least / 4 : 1))"
}
gpt2_row() {
    local mode cells=() used
    local -A at=()
    local said_fits
    gpt2_alike
    for mode in dtrain eager compiled; do cells+=("$(cell "${at[$mode]}" gpt2 bf16 "$mode")"); done
    used=$(sed -n 's/^model FLOP utilisation \([0-9.]* %\).*/; model FLOP utilisation \1/p' "$out/${at[dtrain]}.log" 2>/dev/null)
    rates "train: gpt2 bf16" "$said_fits$used" "${cells[@]}"
}

# -- in turn: everybody is started and warm, then a window each, round by round, so that what the GPU does meanwhile hits all alike
# side MODE ID: its median and spread.
side() {
    sed -n "s/^turn $1 \(.*\) batch .*/\1/p; /^lost $1 .*\(no room\|out of memory\)/s/.*/no room/p; s/^lost $1 .*/lost/p" "$out/$2.log" 2>/dev/null |
        head -n 1
}
turns() {
    local work mode name cells words id left
    for work in "${works[@]}"; do
        name="in turn: $work bf16" id=turns-$work words=()
        [[ -x $pack/train/step ]] || { skip "$name" "not yet: there is no $pack/train/step"; continue; }
        [[ $here ]] || { skip "$name" "no GPU"; continue; }
        [[ $torch ]] || { skip "$name" "no PyTorch"; continue; }
        [[ $work == gpt2 && ${fits_all:-} ]] && words=(--batch "$fits_all")
        [[ ${only[$work]:-} ]] && words=(--batch "${only[$work]}")
        # It stops by itself in time to tell what it has.
        left=$((deadline - SECONDS - 10))
        part "$id" 150 "$python" "$root/bench/gpu_turns.py" --step "$pack/train/step" --python "$python" --work "$work" --precision bf16 \
            --limit $((left < 140 ? left : 140)) "--ours=${libraries[*]-}" "--peers=--device ${device:-cuda} $peers" ${words[@]+"${words[@]}"}
        cells=()
        for mode in dtrain eager compiled; do cells+=("$(side "$mode" "$id")"); done
        row "$name" "$state" "$took" "${cells[@]}" "$said"
    done
}

# -- losses on the same text from the same start
# close PRECISION: compares the curves; prints a word, fails if they are not close.
#
# PyTorch's own curves in f32 and in bf16 are up to 0.02 % apart (2 blocks, width 192, on a CPU), because one rounding to
# bf16 is up to 0.4 % and many even out. Kernels that round at other places differ as much; with 12 blocks more adds up. So in bf16 no
# two losses may be further apart than 1 %, and the means of the last ten than 0.5 %; in f32, where only the order of sums differs,
# 0.2 % and 0.1 %. A wrong update or a wrong gradient is further off within 60 steps.
close() {
    local most=1 mean=0.5
    [[ $1 == f32 ]] && most=0.2 mean=0.1
    awk -v most=$most -v mean=$mean '
        $1 != "loss" { next }
        FNR == NR { ours[$2] = $3; next }
        $2 in ours {
            n += 1; a[n] = ours[$2]; b[n] = $3
            apart = 100 * (a[n] > b[n] ? a[n] - b[n] : b[n] - a[n]) / b[n]
            if (apart >= worst) { worst = apart; at = $2 }
        }
        END {
            if (n < 50 || length(ours) != n) { printf "%d steps of both, at least 50 are needed\n", n; exit 1 }
            for (i = n - 9; i <= n; i++) { x += a[i] / 10; y += b[i] / 10 }
            apart = 100 * (x > y ? x - y : y - x) / y
            printf "%d steps from %.3f; at most %.2f %% apart (step %d); last ten %.4f and %.4f: %.2f %%\n", n, a[1], worst, at, x, y, apart
            exit !(worst <= most && apart <= mean && y < b[1] - 1)
        }' "$out/curve-$1-dtrain.log" "$out/curve-$1-eager.log"
}
curve() {
    local precision=$1 name="loss curve: gpt2 $1" given
    [[ -x $pack/train/step ]] || { skip "$name" "not yet: there is no $pack/train/step"; return; }
    [[ $here ]] || { skip "$name" "no GPU"; return; }
    [[ $torch ]] || { skip "$name" "no PyTorch"; return; }
    given=(--work gpt2 --curve "$out/text" --steps 60 --batch 4)
    pages >"$out/text"
    if part "curve-$precision-dtrain" 60 "$pack/train/step" "${given[@]}" --precision "$precision" ${libraries[@]+"${libraries[@]}"} &&
        part "curve-$precision-eager" 60 "${peer[@]}" "${given[@]}" --precisions "$precision" $peers; then
        said=$(close "$precision") || state="failed (they differ)"
    fi
    row "$name" "$state" "$took" "" "" "" "$said"
}

# -- exact sums against the library's own, on as many GPUs as there are, or two ranks on one
modes() {
    local name="exact against ncclAllReduce" ranks=$((${here:-0} > 1 ? here : 2))
    [[ -x $pack/nccl/modes ]] || { skip "$name" "not yet: there is no $pack/nccl/modes"; return; }
    [[ $lacks ]] && { skip "$name" "$lacks"; return; }
    ((ranks < 8)) || ranks=8
    told "$name, ranks $ranks" nccl-modes 60 ${together[@]+"${together[@]}"} "$pack/nccl/modes" "$ranks"
}

# -- all of it: the compiler comes last, which takes longest
id_of() { if [[ $3 == dtrain ]]; then echo "train-$1-$2-dtrain"; else echo "train-$1-$3"; fi; }
measure_speed() {
    local work precision cells gpt2='' late='' fits_all=''
    for work in "${works[@]}"; do
        [[ $work == gpt2 ]] && gpt2=1
        for precision in $(precisions "$work"); do
            cells=()
            [[ $work == gpt2 ]] && cells=(--shares "$listed")
            [[ ${only[$work]:-} ]] && cells=(--batch "${only[$work]}" --shares "$listed")
            ours "$(id_of "$work" "$precision" dtrain)" "$work" "$precision" ${cells[@]+"${cells[@]}"}
        done
        [[ ${filling[$work]:-} ]] && ours "fill-$work-dtrain" "$work" bf16 --batch "${filling[$work]}" --shares $listed
    done
    for work in "${works[@]}"; do
        cells=()
        # A CPU would take minutes.
        [[ $here && ${filling[$work]:-} ]] && cells=(--fill "${filling[$work]}")
        [[ ${only[$work]:-} ]] && cells=(--batches "${only[$work]}")
        theirs "$(id_of "$work" "" eager)" "$work" eager ${cells[@]+"${cells[@]}"}
    done
    ((${#works[@]})) && modes
    for work in "${works[@]}"; do
        cells=()
        if [[ $work == gpt2 ]]; then
            read -ra cells <<<"$(halves)"
        elif [[ ${only[$work]:-} ]]; then
            cells=(--batches "${only[$work]}")
        elif ((deadline - SECONDS < 45 * ${#works[@]})); then
            # Its compiler takes longest; the products of tf32 are the same library's in both of its modes.
            late=1 cells=(--precisions f32 bf16)
        fi
        theirs "$(id_of "$work" "" compiled)" "$work" compiled ${cells[@]+"${cells[@]}"}
    done
    rows_of_rates
    [[ $gpt2 ]] && curve f32
    look_closer
    turns
}
rows_of_rates() {
    local work precision mode cells
    for work in "${works[@]}"; do
        [[ $work == gpt2 ]] && { gpt2_row; continue; }
        for precision in $(precisions "$work"); do
            cells=()
            for mode in dtrain eager compiled; do
                cells+=("$(cell "$(id_of "$work" "$precision" "$mode")" "$work" "$precision" "$mode")")
            done
            rates "train: $work $precision" "" "${cells[@]}"
        done
        [[ ${filling[$work]:-} ]] || continue
        cells=("$(cell "fill-$work-dtrain" "$work" bf16 dtrain fill)"
            "$(cell "$(id_of "$work" "" eager)" "$work" bf16 eager fill)")
        rates "train: $work bf16, batch ${filling[$work]}" "" "${cells[@]}" ""
    done
}

# -- tables of kernels, below the table
# The log with the shares of GPT-2: with the batch that was compared, if that was not the first.
gpt2_log() { if [[ -s $out/again-gpt2-dtrain.log ]]; then echo again-gpt2-dtrain; else echo train-gpt2-bf16-dtrain; fi; }

# shares ID: what takes most of a step, if the part told.
shares() {
    awk '
        $1 == "rate" { name = $2 " " $3 ", batch " $NF }
        /^shares: / {
            sub(/^shares: /, "")
            printf "\nA step of %s: %s\n\n| kernel | share | ms a step | launches |\n|---|---|---|---|\n", name, $0
        }
        $1 == "share" { printf "| %s | %s %% | %s | %s |\n", $5, $2, $3, $4 }' "$out/$1.log" 2>/dev/null
}
shares_of_all() {
    local work
    for work in "${works[@]}"; do
        case $work in
            gpt2) shares "$(gpt2_log)" ;;
            vit | llama) shares "$(id_of "$work" bf16 dtrain)" ;;
            *) shares "fill-$work-dtrain" ;;
        esac
    done
}

# -- Nsight Compute: compute and memory of the kernels that take most of GPT-2's step, in percent of what the GPU could do
metrics=(gpu__time_duration.sum sm__throughput.avg.pct_of_peak_sustained_elapsed
    gpu__compute_memory_throughput.avg.pct_of_peak_sustained_elapsed)
look_closer() {
    local tool log names each
    [[ $ncu ]] || return
    tool=$(command -v ncu || command -v "${CUDA_HOME:-/usr/local/cuda}/bin/ncu") || { skip ncu "there is no ncu"; return; }
    log=$out/$(gpt2_log).log
    names=$(awk '$1 == "share" && ++n <= 6 { printf "%s%s", bar, $5; bar = "|" }' "$log" 2>/dev/null)
    [[ $names ]] || { skip ncu "the shares of gpt2 are not known"; return; }
    # One step of them, behind the first two: every launch runs again for each group of counters.
    each=$(awk '$1 == "share" && ++n <= 6 { sum += $4 } END { print int(sum) }' "$log")
    part ncu 180 "$tool" --clock-control none --target-processes all --csv --page raw --metrics "$(IFS=,; echo "${metrics[*]}")" \
        --kernel-name "regex:^($names)\$" --launch-skip $((2 * each)) --launch-count "$each" \
        "$pack/train/step" --work gpt2 --precision bf16 --batch 8 --seconds 0 && said="$each launches, below the table"
    row "ncu" "$state" "$took" "" "" "" "$said"
}

# The table of it: launches weigh as long as they take.
kernels_in_ncu() {
    awk -v wanted="${metrics[*]}" '
        !/^"/ { next }
        { gsub(/^"|"\r?$/, ""); count = split($0, field, "\",\"") }
        !place["Kernel Name"] { for (i = 1; i <= count; i++) place[field[i]] = i; split(wanted, metric, " "); next }
        {
            name = field[place["Kernel Name"]]
            sub(/\(.*/, "", name)
            for (i in metric) { v[i] = field[place[metric[i]]]; gsub(/,/, "", v[i]) }
        }
        name != "" && v[1] > 0 { n[name]++; time[name] += v[1]; compute[name] += v[1] * v[2]; memory[name] += v[1] * v[3] }
        END {
            for (name in n) rows++
            if (rows) print "\nNsight Compute, gpt2 bf16, batch 8:\n\n| kernel | compute % | memory % | launches |\n|---|---|---|---|"
            for (name in n) printf "| %s | %.1f | %.1f | %d |\n", name, compute[name] / time[name], memory[name] / time[name], n[name]
        }' "$out/ncu.log" 2>/dev/null
}
