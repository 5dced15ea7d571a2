#!/usr/bin/env bash
# A run whose every process is killed behind its first checkpoint, and that goes on: its summary in JSON, and how far it had come.
#
#   bench/gpu_killed.sh DTRAIN FOLDER ARGUMENTS...
set -uo pipefail
dtrain=$(realpath "$1") run=$2
shift 2

# All processes of this very binary: the supervisor, who holds the ranks, and the ranks.
every() { for exe in /proc/[0-9]*/exe; do [[ $(readlink "$exe") == "$dtrain" ]] && basename "$(dirname "$exe")"; done; }

setsid "$dtrain" "$@" "checkpoint.every=10 steps" "run_dir=$run" >/dev/null 2>&1 &
leader=$!
for ((tries = 0; tries < 300; tries++)); do
    compgen -G "$run/checkpoints/g*-s*/manifest.json" >/dev/null && break
    kill -0 "$leader" 2>/dev/null || break
    sleep 0.05
done
# shellcheck disable=SC2046
kill -9 $(every)
wait "$leader" 2>/dev/null
[[ ! $(every) ]] || { echo "error: somebody lives"; exit 1; }
tail -n 1 "$run/ledger.jsonl" 2>/dev/null
exec "$dtrain" train --json --resume "$run"
