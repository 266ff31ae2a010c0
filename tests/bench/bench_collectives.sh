#!/bin/bash
# All-reduce of Shoal over shared memory and tcp, of Open MPI over both, and of PyTorch's gloo, side by side in interleaved
# rounds of one run, 2 and 4 ranks, 4 KiB to 128 MiB. Prints every round, then medians, and the ratios with what is wanted of
# them. Build the release first. The others come from a folder PEERS with mpi_collectives.c, torch_collectives.py and limits.c
# (the bare ZeroMQ round trip); what is not there, or does not run here, is left out and named.
# What limits shared memory: up to 32 KiB the meetings of all ranks, two an all-reduce: a cache line's way between processors, or
# with fewer processors than ranks the switches of processes (4 ranks on 2: four or five of about 5 us). From there to what the
# caches hold, the lines' changes of owner: an all-reduce whose `whole` was written since by its own rank, as a backward does,
# takes half as long as these repetitions. Beyond, the memory: an element is read P times and written twice a rank. Ranks that
# share a busy machine wait for processors first: a yield finds the other rank only when nobody else is in front.
# usage: [PEERS=DIR] [SIZES=5] [PYTHON=/usr/bin/python3] bench_collectives.sh [rounds] [ms a size] [PEERS]
set -euo pipefail
cd "$(dirname "$0")/../.."
rounds=${1:-3}
ms=${2:-500}
peers=${3:-${PEERS:-}}
python=${PYTHON:-/usr/bin/python3}
seconds=$(awk "BEGIN { print $ms / 1000 }")
sizes=${SIZES:-5} # the first of 4K 64K 1M 16M 128M, as the peers' programs have them; 4 for a busy machine
work=$(mktemp -d)
peer_pid=
# A peer runs in a process group of its own: mpirun and mp.spawn have children.
end_peer() {
    if [[ $peer_pid ]]; then
        kill -TERM -- "-$peer_pid" 2>/dev/null || true
        wait "$peer_pid" 2>/dev/null || true
    fi
    peer_pid=
}
trap 'end_peer; rm -rf "$work"' EXIT
trap 'exit 143' TERM
trap 'exit 130' INT
: >"$work/times"

skip() { echo "left out: $*"; }

# The series that came last, for a person.
tell() {
    echo "round $round, $2 ranks, $1: $(awk -v name="$1" -v ranks="$2" -v last="$3" '$1 == name && $2 == ranks {
        line[n++] = $4 } END { for (i = n > last ? n - last : 0; i < n; i++) printf "%s ", line[i] }' "$work/times")us"
}

shoal() {
    local name=$1 transport=$2 ranks=$3 range
    local last=$((4 << 4 * (sizes < 4 ? sizes - 1 : 3)))K
    local ranges=("-b 4K -e $last -f 16")
    ((sizes < 5)) || ranges+=("-b 128M -e 128M")
    for range in "${ranges[@]}"; do
        # shellcheck disable=SC2086
        build/bin/shoal bench all_reduce --transport "$transport" --ranks "$ranks" --time-ms "$ms" $range >"$work/out" ||
            { cat "$work/out"; exit 1; }
        awk -v name="$name" -v ranks="$ranks" '!/^#/ { print name, ranks, $1, $4 }' "$work/out" >>"$work/times"
    done
    tell "$name" "$ranks" "$sizes"
}

# The all-reduces are what a peer's program measures first; it is ended when it goes on to something else.
peer() {
    local name=$1 ranks=$2 line seen=0
    shift 2
    coproc PEER { exec setsid "$@" 2>"$work/err"; }
    local from=${PEER[0]}
    peer_pid=$!
    while ((seen < sizes)) && read -r line <&"$from"; do
        [[ $line == *allreduce* ]] || continue
        seen=$((seen + 1))
        awk -v name="$name" -v ranks="$ranks" '{ for (i = 1; i < NF; i++) { if ($i == "B") b = $(i - 1); if ($i == "med") t = $(i + 1) }
            print name, ranks, b, t }' <<<"$line" >>"$work/times"
    done
    end_peer
    if ((seen == 0)); then
        skip "$name with $ranks ranks: $(tail -n 1 "$work/err")"
    else
        tell "$name" "$ranks" "$seen"
    fi
}

mpi=()
if [[ -z $peers ]]; then
    skip "Open MPI and gloo: no folder PEERS"
elif ! command -v mpicc >/dev/null || ! command -v mpirun >/dev/null; then
    skip "Open MPI: no mpicc and mpirun (openmpi-bin, libopenmpi-dev)"
elif mpicc -O2 -o "$work/mpi_collectives" "$peers/mpi_collectives.c" 2>"$work/err"; then
    mpi=(mpirun --oversubscribe)
    ((EUID == 0)) && mpi+=(--allow-run-as-root)
else
    skip "Open MPI: $(head -n 1 "$work/err")"
fi
gloo=
if [[ -n $peers && -f $peers/torch_collectives.py ]] && "$python" -c "import torch" 2>/dev/null; then
    gloo=$peers/torch_collectives.py
elif [[ -n $peers ]]; then
    skip "gloo: $python has no torch (python3-torch), or no $peers/torch_collectives.py"
fi
if [[ -n $peers && -f $peers/limits.c ]] &&
    gcc -O3 -march=native -ffast-math -o "$work/limits" "$peers/limits.c" -lzmq -lopenblas -lpthread -lm 2>"$work/err"; then
    limits=$work/limits
else
    limits=
    skip "bare ZeroMQ round trip: no limits.c that builds"
fi

echo "load $(cut -d' ' -f1-3 /proc/loadavg), $(nproc) processors, $rounds rounds"
for ((round = 1; round <= rounds; round++)); do
    for ranks in 2 4; do
        crowded=()
        ((ranks > $(nproc))) && crowded=(--mca mpi_yield_when_idle 1) # or its ranks spin against each other
        shoal shoal-shm shm "$ranks"
        ((${#mpi[@]})) && peer mpi-shm "$ranks" "${mpi[@]}" "${crowded[@]}" -n "$ranks" "$work/mpi_collectives" mpi-shm "$seconds"
        shoal shoal-tcp tcp "$ranks"
        ((${#mpi[@]})) && peer mpi-tcp "$ranks" "${mpi[@]}" "${crowded[@]}" --mca pml ob1 --mca btl tcp,self --mca btl_tcp_if_include lo \
            -n "$ranks" "$work/mpi_collectives" mpi-tcp "$seconds"
        [[ $gloo ]] && peer gloo "$ranks" "$python" "$gloo" "$ranks" "$seconds"
    done
    if [[ $limits ]]; then
        # Its first measurement spins on two processors and takes for ever where they are not free.
        { timeout 60 "$limits" rtt 2>/dev/null || true; } | awk '/^rtt zmq tcp/ { for (i = 1; i < NF; i++) if ($i == "p50") print "zmq", 2, 4096, $(i + 1) }' |
            tail -n 1 >>"$work/times"
    fi
    echo "round $round done, load $(cut -d' ' -f1-3 /proc/loadavg)"
done

"$python" - "$work/times" <<'PYTHON'
import collections, statistics, sys
times = collections.defaultdict(list)
for line in open(sys.argv[1]):
    name, ranks, size, us = line.split()
    times[name, int(ranks), int(size)].append(float(us))
names = ["shoal-shm", "mpi-shm", "shoal-tcp", "mpi-tcp", "gloo", "zmq"]
K, M = 1 << 10, 1 << 20
# (ranks, bytes, the other, ours, at least): the other's time / ours
wanted = [(2, 1 * M, "gloo", "shoal-shm", 5), (2, 16 * M, "gloo", "shoal-shm", 5), (2, 128 * M, "gloo", "shoal-shm", 3),
          (2, 1 * M, "mpi-shm", "shoal-shm", 1.5), (2, 16 * M, "mpi-shm", "shoal-shm", 1.5),
          (2, 128 * M, "mpi-shm", "shoal-shm", 3),
          (4, 4 * K, "gloo", "shoal-shm", 50), (4, 1 * M, "gloo", "shoal-shm", 5), (4, 16 * M, "gloo", "shoal-shm", 5),
          (4, 128 * M, "gloo", "shoal-shm", 2),
          (2, 1 * M, "gloo", "shoal-tcp", 1.2), (2, 16 * M, "gloo", "shoal-tcp", 1.2),
          (2, 128 * M, "gloo", "shoal-tcp", 1.2),
          (2, 4 * K, "zmq", "shoal-tcp", 1 / 2.5)]
print("all-reduce, median us over rounds of medians (in brackets the smallest and largest round):")
for ranks in (2, 4):
    for size in (4 * K, 64 * K, 1 * M, 16 * M, 128 * M):
        cells = []
        for name in names:
            t = times.get((name, ranks, size))
            if t:
                cells.append(f"{name} {statistics.median(t):.1f} ({min(t):.1f}..{max(t):.1f})")
        print(f"  {ranks} ranks {size:>9} B  " + "  ".join(cells))
t = times.get(("shoal-shm", 2, 4 * K))
if t:
    print(f"shoal-shm 2 ranks 4 KiB: {statistics.median(t):.1f} us, wanted under 15: "
          + ("yes" if statistics.median(t) < 15 else "NO"))
for ranks, size, other, ours, least in wanted:
    a, b = times.get((other, ranks, size)), times.get((ours, ranks, size))
    if not a or not b:
        continue
    ratio = statistics.median(a) / statistics.median(b)
    each = sorted(x / y for x, y in zip(a, b))
    print(f"{other} / {ours} {ranks} ranks {size} B: {ratio:.2f} of medians, rounds {each[0]:.2f} to {each[-1]:.2f}, "
          f"wanted {least:g}: {'yes' if ratio >= least else 'NO'}")
PYTHON
