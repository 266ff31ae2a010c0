#!/bin/bash
# The rules a compiler does not know: who may include whom, own header first, sizes, words that mean unfinished work.
# Prints every offence as file:line: reason and fails if there is one. Usage: check.sh [top folder]
set -euo pipefail
cd "${1:-$(dirname "$0")/../..}"

mapfile -t sources < <(find common server worker deploy tests proto -name '*.[ch]' | LC_ALL=C sort)
mapfile -t scripts < <(find .ci deploy tests proto -type f \( -name '*.sh' -o -name '*.py' -o -name '*.txt' -o -name run \
    -o -name '*.proto' -o -name '*.md' -o -name '*.yaml' -o -name install-deps -o -name quickstart \) | LC_ALL=C sort)
if ((${#sources[@]} < 10)); then
    echo "check.sh: no sources below $PWD"
    exit 2
fi

# Lines "room: rooms it may include". A room may always include itself; proto's generated header goes with wire.
allowed='
base:
config: base
tensor: base
wire: base
files: base
cluster: base tensor
optim: base config tensor
owner: base config tensor optim cluster files
step: base config cluster
net: base wire cluster
server: base config tensor optim files cluster wire net owner step
worker: base config tensor optim files cluster wire net owner step
worker/client: base config wire net cluster
worker/data: base config files
worker/model: base config tensor files cluster
deploy/cli: base config tensor optim files cluster wire net owner step server worker
deploy/examples: optim owner worker/client
'

check_includes() {
    awk -v allowed="$allowed" '
        BEGIN {
            lines = split(allowed, line, "\n")
            for (i = 1; i <= lines; i++) {
                if (split(line[i], part, ":") != 2) continue
                known[part[1]] = 1
                count = split(part[2], names, " ")
                for (k = 1; k <= count; k++) may[part[1] " " names[k]] = 1
            }
        }
        # The room of a path as written in an #include or below common/: the longest known prefix.
        function room_of(path,    name) {
            for (name = path; sub(/\/[^\/]*$/, "", name); ) if (name in known) return name
            return ""
        }
        # Part of a larger module, a row or a table: its declarations are in the header of the module or of the ops.
        function close_file() {
            if (lonely) print lonely ":1: has no header of its own and includes none of its room"
            lonely = ""
        }
        FNR == 1 {
            close_file()
            file = FILENAME
            sub(/^common\//, "", file)
            room = file ~ /^tests\// ? "" : room_of(file)
            own = file
            sub(/\.[ch]$/, ".h", own)
            stem = FILENAME
            sub(/\.c$/, ".h", stem)
            folder = file
            sub(/\/[^\/]*$/, "", folder)
            has_own = FILENAME ~ /\.c$/ && (getline junk < stem) >= 0
            if (FILENAME ~ /\.c$/) close(stem)
            first = 1
            if (FILENAME ~ /\.c$/ && room != "" && !has_own && file !~ /(^|[\/_])main\.c$/ && room != "deploy/examples")
                lonely = FILENAME
        }
        room != "" && match($0, /^ *# *include "[^"]*"/) {
            path = substr($0, RSTART, RLENGTH - 1)
            sub(/^[^"]*"/, "", path)
            if (path ~ /^common\//) print FILENAME ":" FNR ": include \"" path "\" without common/"
            if (first && FILENAME ~ /\.c$/ && folder != "deploy/examples") {
                if (has_own && path != own) print FILENAME ":" FNR ": its own header comes first: " own
            }
            first = 0
            if (path ~ /\.pb-c\.h$/) next
            to = room_of(path)
            if (to == room) lonely = ""
            if (to == "" || to == room) next
            if ((room " " to) in may) next
            top = to
            sub(/\/.*/, "", top)
            outer = room
            sub(/\/.*/, "", outer)
            # Inside worker/ and server/ the rooms below common order themselves; client, data and model stay apart.
            if ((room == "worker" || room == "server" || room == "deploy/cli") && (top == outer || (room " " top) in may)) next
            print FILENAME ":" FNR ": " room " may not include " to
        }
        END { close_file() }' "$@"
}

check_sizes() {
    awk '
        FNR > 600 && !(FILENAME in long) { long[FILENAME] = 1; print FILENAME ":600: more than 600 lines" }
        FNR == 1 { start = 0 }
        /^\{/ { start = FNR }
        /^\}/ {
            if (start && FNR - start + 1 > 70)
                print FILENAME ":" start ": function of " FNR - start + 1 " lines, 70 at most"
            start = 0
        }' "$@"
}

check_words() {
    # Built from pieces, so that this file does not accuse itself.
    grep -nwE "TO""DO|FIX""ME|X""XX|HA""CK" "$@" | sed 's/:\([0-9]*\):.*/:\1: a word that means unfinished work/' || true
}

check_places() {
    local offence
    for offence in "ZMQ_F""D:zsock_watch.c" "cblas_sg""emm:gemm.c"; do
        grep -nw "${offence%%:*}" "$@" | grep -v ':[0-9]*:\(/\*\| \*\)' | grep -v "^common/[a-z]*/${offence##*:}:" | grep -v '^tests/' |
            sed "s/:\([0-9]*\):.*/:\1: only ${offence##*:} may use ${offence%%:*}/" || true
    done
}

found=$(
    check_includes "${sources[@]}"
    check_sizes "${sources[@]}"
    check_words "${sources[@]}" "${scripts[@]}"
    check_places "${sources[@]}"
)
if [[ -n $found ]]; then
    echo "$found"
    exit 1
fi
echo "${#sources[@]} sources in order"
