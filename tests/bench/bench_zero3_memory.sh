#!/bin/bash
# Resident memory of zero3: an MLP of 205 million parameters on 4 ranks with Adam, a few steps of made data. For each rank the
# peak of its resident memory beside 1.15 x (4M floats + buffers + activations + 40 MB), M being the parameters that it owns;
# and whether the model state is 4M floats to the byte. Needs about 7 GB of memory and some minutes. Build the release first.
# usage: bench_zero3_memory.sh [steps] [hidden layers of 4096] [auto | tcp | shm]
set -euo pipefail
cd "$(dirname "$0")/../.."
steps=${1:-3}
layers=${2:-13}
transport=${3:-auto}
python=${PYTHON:-/usr/bin/python3}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
hidden=$(printf ', 4096%.0s' $(seq "$layers"))
cat >"$work/job.yaml" <<YAML
name: bench-zero3
seed: 1
batch_size: 32
steps: $steps
log_every: 1
data: {kind: synthetic, samples: 256, features: 784, classes: 10}
model: {kind: mlp, hidden: [${hidden:2}], activation: relu}
optimizer: {kind: adam, lr: 0.0001}
parallel: {data: zero3, transport: $transport}
YAML
echo "load $(cut -d' ' -f1-3 /proc/loadavg), $(free -m | awk '/^Mem/ { print $7 }') MiB of memory available"
SHOAL_LOG=${SHOAL_LOG:-error} build/bin/shoal run "$work/job.yaml" --workers 4 --threads 1 --metrics "$work/m.jsonl"
"$python" - "$work/m.jsonl" "$layers" <<'PYTHON'
import json, sys
summary = [e for e in map(json.loads, open(sys.argv[1])) if e["event"] == "summary"][-1]
widths = [784] + [4096] * int(sys.argv[2]) + [10]
sizes = [a * b + b for a, b in zip(widths, widths[1:])]
workers = [r for r in summary["ranks"] if r["role"] == "worker"]
P, ok = len(workers), True
def part(n, rank):
    m = -(-n // P)
    m = -(-m // 16) * 16
    return min((rank + 1) * m, n) - min(rank * m, n)
print(f"{sum(sizes):,} parameters, {P} ranks")
for r in workers:
    state = sum(r["model_state_bytes"].values())
    formula = 16 * sum(part(n, r["rank"]) for n in sizes)
    bound = 1.15 * (formula + r["buffer_bytes"] + r["activation_bytes"] + 40e6)
    good = r["peak_rss_bytes"] <= bound and state == formula
    ok = ok and good
    print(f"rank {r['rank']}: peak RSS {r['peak_rss_bytes'] / 1e6:.1f} MB, bound {bound / 1e6:.1f} MB "
          f"({r['peak_rss_bytes'] / (bound / 1.15):.3f} of the sum, 1.15 allowed); model state {state:,} B, "
          f"4M floats {formula:,} B; buffers {r['buffer_bytes'] / 1e6:.1f} MB, activations "
          f"{r['activation_bytes'] / 1e6:.1f} MB: {'yes' if good else 'NO'}")
sys.exit(0 if ok else 1)
PYTHON
