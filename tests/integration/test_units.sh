#!/bin/bash
# The systemd units: systemd-analyze verify finds nothing to say about them, and they are hardened.
# Usage: test_units.sh SOURCE_DIR BIN_DIR
set -euo pipefail
source_dir=$1
bin_dir=$2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
fail() {
    echo "test_units: $*" >&2
    exit 1
}

# verify wants programs that exist: those just built stand in for the installed ones.
cp "$source_dir"/deploy/systemd/*.service "$source_dir"/deploy/systemd/*.target "$work"
for unit in "$work"/*.service; do
    grep -q '^ExecStart=/usr/bin/shoal-' "$unit" || fail "$(basename "$unit") does not start /usr/bin/shoal-*"
done
sed -i "s|^ExecStart=/usr/bin/|ExecStart=$bin_dir/|" "$work"/*.service

# It exits with 0 on unknown keys, so that any word is a failure. Other units of this machine are not ours to judge.
verify() {
    systemd-analyze verify --recursive-errors=no "$@" 2>&1 || echo "exit status $?"
}
said=$(verify "$work"/*)
[[ -z $said ]] || fail "verify: $said"

sed 's/^WatchdogSec=/WatchdagSec=/' "$work/shoal-coordinator.service" >"$work/shoal-broken.service"
[[ $(verify "$work/shoal-broken.service") == *WatchdagSec* ]] || fail "verify does not notice an unknown key"
rm "$work/shoal-broken.service"

for unit in "$work"/*.service; do
    # 20 stands for 2.0 of 10.
    systemd-analyze security --offline=true --threshold=20 --no-pager "$unit" >"$work/report" ||
        fail "$(basename "$unit"): $(tail -n 1 "$work/report")"
    for line in Type=notify Restart=on-failure RestartPreventExitStatus=2 'SuccessExitStatus=143 130' DynamicUser=yes \
        NoNewPrivileges=yes ProtectSystem=strict TimeoutStopSec=10; do
        grep -qx "$line" "$unit" || fail "$(basename "$unit"): no $line"
    done
    grep -q '^WatchdogSec=' "$unit" || fail "$(basename "$unit"): no WatchdogSec"
done
echo "units in order"
