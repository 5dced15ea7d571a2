# Parts of bench/gpu.sh and their rows: each has a limit of its own, and what hangs or fails costs only itself.
#
# Sourced by it. Uses $out, $pack, $deadline, $grace and $most of it.
# shellcheck shell=bash disable=SC2154

# One row: part, state, seconds, dtrain, eager, compiled, last word. No field may break the table.
row() {
    local field line=
    for field in "$@"; do line+="| $(tr -d '\000-\037\177' <<<"${field//|//}" | cut -c 1-160) "; done
    echo "$line|" >>"$out/rows"
}

last_line() { grep -av '^[[:space:]]*$' "$1" 2>/dev/null | tail -n 1; }

# part ID LIMIT COMMAND...: runs a command, its output in ID.log; sets `state`, `took` and `said`, and fails as it does.
part() {
    local id=$1 mine=$2 left=$((deadline - SECONDS)) begun=$SECONDS code skipped
    shift 2
    state="skipped" took=0 said="no time was left"
    ((left > 0)) || return 1
    ((mine < most)) || mine=$most
    ((mine < left)) || mine=$left
    echo "== $id (${SECONDS}s, at most ${mine}s)" >&2
    # In the background, so that a signal to this script is not kept waiting by a part that hangs.
    timeout -k "$grace" "$mine" "$@" </dev/null >"$out/$id.log" 2>&1 &
    doing=$id
    wait $!
    code=$? doing=
    took=$((SECONDS - begun)) said=$(last_line "$out/$id.log")
    # What ignores the signal at its limit is killed, and so is `timeout` with it.
    if ((code == 124)) || ((code == 137 && took >= mine)); then
        state="timed out after $mine s"
    elif ((code)); then
        state="failed (exit code $code)"
    else
        state=ok
        # Tests that find something missing say so and pass.
        skipped=$(grep -ac 'skipped: ' "$out/$id.log")
        ((skipped)) && state="ok, $skipped skipped" said=$(grep -ao -m 1 'skipped: .*' "$out/$id.log")
    fi
    return "$code"
}

# told NAME ID LIMIT COMMAND...: a part and its row.
told() {
    local name=$1
    shift
    part "$@"
    row "$name" "$state" "$took" "" "" "" "$said"
}

# The project's own pages, one behind the other: a text that is there.
pages() { (export LC_ALL=C && find "$root/docs" -name "*.md" -print0 | sort -z | xargs -0 cat); }

skip() { row "$1" skipped "" "" "" "" "$2"; }

# The executables of a folder of the pack.
programs() { find "$pack/$1" -maxdepth 1 -type f -perm -u+x 2>/dev/null | sort; }

# The words of `dtrain doctor` on a library ("2.32.3 at /lib/libnccl.so.2 (origin)"), if there is a usable one.
library() {
    grep -as "\"check\":\"$1\"" "$out/doctor-json.log" | grep -av '"verdict":"missing"' |
        grep -o '"found":"[^"]*"' | head -n 1 | cut -d '"' -f 4
}
path_in() { sed -n 's/^.* at \(.*\) (.*$/\1/p' <<<"$1"; }
