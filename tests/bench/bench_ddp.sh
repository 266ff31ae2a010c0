#!/bin/bash
# The MLP 784-512-512-10 with AdamW at batch 128 a rank, 2 ranks of 1 thread: samples/s of `shoal run` in ddp and zero1 to zero3,
# of the same two workers without any exchange (two jobs of one worker at the same time), and of PyTorch: DDP over gloo, and two
# processes that never talk, by torch_train.py of a folder PEERS. Interleaved rounds of one run; prints every round, medians, and
# the ratios with what is wanted of them. Build the release first.
# usage: [PEERS=DIR] [PYTHON=/usr/bin/python3] [CORE_TYPE=SkylakeX] bench_ddp.sh [rounds] [steps] [PEERS]
set -euo pipefail
cd "$(dirname "$0")/../.."
rounds=${1:-5}
steps=${2:-400}
peers=${3:-${PEERS:-}}
python=${PYTHON:-/usr/bin/python3}
core_type=${CORE_TYPE:-SkylakeX} # PyTorch's: OpenBLAS takes newer processors for old ones; Shoal chooses by itself
unset OPENBLAS_CORETYPE          # whatever the surroundings say
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
: >"$work/rates"
cat >"$work/job.yaml" <<'YAML'
name: bench-ddp
seed: 1
batch_size: 128
log_every: 1000000
data: {kind: synthetic, samples: 4096, features: 784, classes: 10}
model: {kind: mlp, hidden: [512, 512], activation: relu}
optimizer: {kind: adamw, lr: 0.001}
YAML

# run NAME WORKERS MODE: trains; its metrics are in $work/NAME.jsonl.
run() {
    build/bin/shoal run "$work/job.yaml" --workers "$2" --threads 1 --set "parallel.data=$3" --set "steps=$steps" \
        --set "batch_size=$((128 * $2))" --metrics "$work/$1.jsonl" >"$work/$1.log" 2>&1 || { cat "$work/$1.log" >&2; exit 1; }
}

# Samples a second of the steps after the first quarter: of each file, added.
rate() {
    "$python" - "$@" <<'PYTHON'
import json, sys
total = 0
for path in sys.argv[1:]:
    steps = [e for e in map(json.loads, open(path)) if e["event"] == "step"]
    steps = steps[len(steps) // 4:]
    total += sum(s["samples"] for s in steps) / sum(s["step_s"] for s in steps)
print(round(total))
PYTHON
}

note() {
    echo "round $round: $1 $2 samples/s"
    echo "$1 $2" >>"$work/rates"
}

torch=
if [[ -z $peers || ! -f $peers/torch_train.py ]]; then
    echo "left out: PyTorch: no folder PEERS with torch_train.py"
elif ! "$python" -c "import torch" 2>/dev/null; then
    echo "left out: PyTorch: $python has no torch (python3-torch)"
else
    torch=$peers/torch_train.py
fi
echo "load $(cut -d' ' -f1-3 /proc/loadavg), $(nproc) processors, $rounds rounds of $steps steps; core type of PyTorch: $core_type"
for ((round = 1; round <= rounds; round++)); do
    run one 1 ddp &
    other=$!
    run two 1 ddp
    wait "$other"
    ((round > 1)) || grep '^core type' "$work/one.log" || true
    note shoal-alone "$(rate "$work/one.jsonl" "$work/two.jsonl")"
    for mode in ddp zero1 zero2 zero3; do
        run "$mode" 2 "$mode"
        note "shoal-$mode" "$(rate "$work/$mode.jsonl")"
    done
    if [[ $torch ]]; then
        OPENBLAS_CORETYPE=$core_type "$python" "$torch" mlp 1 "$steps" noddp2,ddp2 >"$work/torch" 2>"$work/err" ||
            { cat "$work/err" >&2; exit 1; }
        while read -r mode persecond; do
            note "torch-$mode" "$persecond"
        done < <(awk '/^round/ { for (i = 2; i <= NF; i++) if ($i == "samples/s") print $4, $(i - 1) }' "$work/torch")
    fi
done
echo "load $(cut -d' ' -f1-3 /proc/loadavg)"

"$python" - "$work/rates" <<'PYTHON'
import collections, statistics, sys
rates = collections.defaultdict(list)
for line in open(sys.argv[1]):
    name, rate = line.split()
    rates[name].append(float(rate))
for name, each in rates.items():
    print(f"{name:<12} {statistics.median(each):9.0f} samples/s, rounds {min(each):.0f} to {max(each):.0f}")
def ratio(a, b, least=None):
    if a not in rates or b not in rates:
        return
    value = statistics.median(rates[a]) / statistics.median(rates[b])
    each = sorted(x / y for x, y in zip(rates[a], rates[b]))
    wanted = "" if least is None else f", wanted {least:g}: {'yes' if value >= least else 'NO'}"
    print(f"{a} / {b}: {value:.2f} of medians, rounds {each[0]:.2f} to {each[-1]:.2f}{wanted}")
ratio("shoal-ddp", "torch-ddp2", 1.4)
ratio("shoal-ddp", "shoal-alone", 0.9)
for mode in ("zero1", "zero2", "zero3"):
    ratio(f"shoal-{mode}", "shoal-alone")
ratio("torch-ddp2", "torch-noddp2")
ratio("shoal-alone", "torch-noddp2")
PYTHON
