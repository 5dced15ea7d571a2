#!/usr/bin/env bash
# Every table of docs/benchmarks/README.md that needs no GPU, one after the other.
#
#     bench/all.sh --python .venv/bin/python            all of them: an hour or two on two cores
#     bench/all.sh --quick --python .venv/bin/python    the same tables from few samples: for looking, not for the page
#     bench/all.sh --only collectives,start             some of them
#     bench/all.sh --list                               their names, and which section of the page each belongs to
#
# Nothing else should run on the machine meanwhile. Each table goes to standard output and to a file of its own in
# bench-results (--out), with what its program said beside it. A part that fails or lacks something (PyTorch, an MPI, a data
# set) is named at the end and costs the others nothing; then the exit code is 1.
set -u
cd "$(dirname "$0")/.."

python=python3 out=bench-results only="" quick=0 data=/usr/share/datasets/fashion-mnist text=input.txt list=0
while [ $# -gt 0 ]; do
    case $1 in
        --python) python=$2; shift 2 ;;
        --out) out=$2; shift 2 ;;
        --only) only=,$2,; shift 2 ;;
        --data) data=$2; shift 2 ;;
        --text) text=$2; shift 2 ;;
        --quick) quick=1; shift ;;
        --list) list=1; shift ;;
        -h|--help) sed -n '2,13s/^# \{0,1\}//p' "$0"; exit 0 ;;
        *) echo "error: there is no option $1" >&2; echo "hint: bench/all.sh --help" >&2; exit 2 ;;
    esac
done

dtrain=target/release/dtrain
# With --quick the second of two numbers counts.
pick() { if [ "$quick" = 1 ]; then echo "$2"; else echo "$1"; fi; }

# A part is a function; the line above it is its section in docs/benchmarks/README.md.
parts="ddp steps threads together micro collectives scaling results start kills overhead simulation programs hosts overlap kernels predictions scrapes shards month"
section() {
    case $1 in
        steps|threads|together) echo "Training steps against PyTorch" ;;
        ddp) echo "PyTorch programs against DDP" ;;
        micro) echo "What small micro-batches cost" ;;
        collectives) echo "Collectives between processes" ;;
        scaling) echo "More ranks" ;;
        results) echo "Training to a result" ;;
        start) echo "Start" ;;
        kills|overhead) echo "When ranks die" ;;
        simulation) echo "A simulated cluster" ;;
        programs) echo "Programs under dtrain run" ;;
        hosts) echo "All-reduce between hosts" ;;
        overlap) echo "Training over a slow path" ;;
        kernels) echo "Parts" ;;
        predictions) echo "Predictions of a table" ;;
        scrapes) echo "Scrapes" ;;
        shards) echo "A state in shards" ;;
        month) echo "A month of steps" ;;
    esac
}

torch() { "$python" -c 'import torch' 2>/dev/null || { echo "missing: PyTorch (--python)"; return 1; }; }
fashion() { [ -e "$data/train-images-idx3-ubyte.gz" ] || { echo "missing: Fashion-MNIST in $data (--data)"; return 1; }; }

ddp() { torch && "$python" -c "import dtrain" && "$python" bench/against_ddp.py --rounds "$(pick 5 1)" --seconds "$(pick 5 2)"; }
steps() { torch && bench/against_pytorch.py --dtrain $dtrain --python "$python" --pairs "$(pick 7 1)" --seconds "$(pick 5 1)"; }
threads() {
    torch || return 1
    bench/against_pytorch.py --dtrain $dtrain --python "$python" --ranks 1 --threads 2 --pairs "$(pick 7 1)" --seconds "$(pick 5 1)"
}
together() {
    cargo build --release --quiet -p dtrain-engine --example lockstep || return 1
    bench/together.py --dtrain $dtrain --limit target/release/examples/lockstep --pairs "$(pick 7 1)" --seconds "$(pick 5 1)"
}
predictions() { torch && bench/predictions.py --dtrain $dtrain --python "$python" --pairs "$(pick 5 1)"; }
micro() { torch && bench/micro_batches.py --dtrain $dtrain --python "$python" --pairs "$(pick 3 1)" --seconds "$(pick 3 1)"; }
collectives() {
    bench/collectives.py --dtrain $dtrain --python "$python" --ranks 2 4 --pairs "$(pick 7 1)" --samples "$(pick 0 3)"
}
scaling() {
    local work
    for work in mlp gpt cnn; do
        $dtrain bench scaling --work $work --ranks "$(nproc)" --seconds "$(pick 5 1)" || return 1
    done
}
results() {
    local seed folder
    folder=$(mktemp -d)
    for seed in $(pick "1 2 3 4 5" 1); do
        $dtrain train -q --json seed="$seed" run_dir="$folder/$seed" | tail -n 1 |
            "$python" -c 'import json, sys; s = json.load(sys.stdin); print("digits", s["val_accuracy"], s["seconds"], "s")' || return 1
    done
    rm -rf "$folder"
    if [ "$quick" = 1 ]; then echo "left out: Fashion-MNIST and Shakespeare (--quick)"; return 0; fi
    fashion && $dtrain train -c examples/fashion-mnist.yaml run_dir="$folder/fashion" 2>&1 | tail -n 3 || return 1
    $dtrain train -c examples/shakespeare.yaml run_dir="$folder/shakespeare" 2>&1 | tail -n 3
    rm -rf "$folder"
}
start() {
    local i begun folder
    for i in $(seq "$(pick 7 3)"); do
        folder=$(mktemp -du)
        begun=$(date +%s%N)
        $dtrain train -q steps=1 schedule.warmup=none run_dir="$folder" || return 1
        echo "$(( ($(date +%s%N) - begun) / 1000000 )) ms"
        rm -rf "$folder"
    done | sort -n
}
kills() { fashion && "$python" bench/kill.py --dtrain $dtrain --data "$data" --kills "$(pick 50 3)"; }
overhead() { fashion && "$python" bench/overhead.py --dtrain $dtrain --data "$data" --seconds "$(pick 60 5)"; }
simulation() {
    $dtrain simulate --minutes "$(pick 2 0.1)" && cargo test --release -p dtrain-simulations --test thousand -- --nocapture
}
programs() {
    torch || return 1
    local launcher
    for launcher in dtrain torchrun; do
        bench/kill_ddp.py --dtrain $dtrain --python "$python" --launcher $launcher --kills "$(pick 20 1)"
    done
}
root() { [ "$(id -u)" = 0 ] || { echo "missing: root, for network namespaces"; return 1; }; }
hosts() {
    root && torch && cargo build -q --release -p dtrain-transport --example between_hosts &&
        bench/between_hosts.py --python "$python" --runs "$(pick 4 1)" --pairs "$(pick 6 2)"
}
overlap() {
    root || return 1
    [ -e "$text" ] || { echo "missing: a text to train on in $text (--text)"; return 1; }
    bench/overlap.py --dtrain $dtrain --text "$text" --pairs "$(pick 5 1)" --steps "$(pick 40 10)"
}
shards() {
    root || return 1
    local what
    for what in pace memory kills; do
        bench/sharded.py --dtrain $dtrain --what $what --rounds "$(pick 5 1)" --kills "$(pick 50 3)" --steps "$(pick 40000 4000)" || return 1
    done
}
month() { bench/month.py $dtrain --steps "$(pick 8000000 200000)"; }
scrapes() { bench/scrapes.py $dtrain --pairs "$(pick 10 2)" --seconds "$(pick 3 1)"; }
kernels() { cargo bench -p dtrain-engine && cargo bench -p dtrain-transport && cargo bench -p dtrain-cuda; }

for name in ${only//,/ }; do
    case " $parts " in *" $name "*) ;; *) echo "error: there is no part $name" >&2; echo "hint: bench/all.sh --list" >&2; exit 2 ;; esac
done
if [ "$list" = 0 ]; then
    cargo build --release || exit 1
    mkdir -p "$out" && { $dtrain --version; date -u +%F; nproc; uptime; } >"$out/machine.txt"
fi
failed=""
for part in $parts; do
    if [ -n "$only" ] && [ "${only/,$part,/}" = "$only" ]; then continue; fi
    if [ "$list" = 1 ]; then printf '%-12s docs/benchmarks/README.md, "%s"\n' "$part" "$(section "$part")"; continue; fi
    printf '\n## %s: for docs/benchmarks/README.md, "%s"\n\n' "$part" "$(section "$part")"
    # The pipe must not hide the exit code.
    if "$part" 2>"$out/$part.log" | tee "$out/$part.txt"; [ "${PIPESTATUS[0]}" != 0 ]; then
        failed="$failed $part"
        tail -n 5 "$out/$part.log"
    fi
done
[ "$list" = 1 ] && exit 0
if [ -n "$failed" ]; then printf '\nwithout a result:%s; why is in %s/NAME.log or .txt\n' "$failed" "$out"; exit 1; fi
