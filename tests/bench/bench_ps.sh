#!/bin/bash
# `ps`, one server: samples/s of 2 workers of 1 thread over 1 worker of 1 thread at the same batch per worker, in
# interleaved rounds of one run. Prints each round, then the ratio of medians with its spread. Build the release first.
# usage: bench_ps.sh [rounds] [steps]
set -euo pipefail
cd "$(dirname "$0")/../.."
rounds=${1:-5}
steps=${2:-400}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# Samples a second of the steps after the first quarter, from the metrics file.
rate() {
    local workers=$1
    build/bin/shoal run deploy/examples/fashion.yaml --workers "$workers" --servers 1 --threads 1 \
        --set "steps=$steps" --set "batch_size=$((128 * workers))" --set log_every=100000 \
        --metrics "$work/m.jsonl" >"$work/log" 2>&1 || { cat "$work/log" >&2; exit 1; }
    python3 - "$work/m.jsonl" <<'PYTHON'
import json, sys
steps = [e for e in map(json.loads, open(sys.argv[1])) if e["event"] == "step"]
steps = steps[len(steps) // 4:]
print(round(sum(s["samples"] for s in steps) / sum(s["step_s"] for s in steps)))
PYTHON
}

: >"$work/pairs"
for ((round = 1; round <= rounds; round++)); do
    one=$(rate 1)
    two=$(rate 2)
    echo "round $round: 1 worker $one samples/s, 2 workers $two samples/s"
    echo "$one $two" >>"$work/pairs"
done
python3 - "$work/pairs" <<'PYTHON'
import statistics, sys
pairs = [tuple(map(float, line.split())) for line in open(sys.argv[1])]
ratios = sorted(b / a for a, b in pairs)
medians = statistics.median(b for _, b in pairs) / statistics.median(a for a, _ in pairs)
print(f"2 workers / 1 worker: {medians:.2f} of medians, rounds {ratios[0]:.2f} to {ratios[-1]:.2f}")
PYTHON
