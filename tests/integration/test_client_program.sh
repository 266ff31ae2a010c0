#!/bin/bash
# Client programs against real daemons: the example trains with two ranks on one and on two servers; libshoal exports
# shoal_* only and links no BLAS; an installed copy compiles with pkg-config, shared and static.
# Usage: test_client_program.sh SOURCE_DIR BINARY_DIR
set -euo pipefail
source_dir=$1
binary_dir=$2
work=$(mktemp -d)
started=()
finish() {
    for pid in "${started[@]}"; do
        kill "$pid" 2>/dev/null || true
    done
    rm -rf "$work"
}
trap finish EXIT
fail() {
    echo "test_client_program: $*" >&2
    cat "$work"/*.log >&2 2>/dev/null || true
    exit 1
}

exported=$(nm -D --defined-only "$binary_dir/lib/libshoal.so" | awk '$3 !~ /^shoal_[a-z_]*$/ && $3 !~ /^__(asan|ubsan|tsan)/ {print $3}')
[[ -z $exported ]] || fail "libshoal exports $exported"
! ldd "$binary_dir/lib/libshoal.so" | grep -iE 'blas|lapack|gfortran' || fail "libshoal links BLAS"
! nm -D --undefined-only "$binary_dir/lib/libshoal.so" | grep -E 'cblas_|openblas|[[:space:]]dlopen' ||
    fail "libshoal asks for BLAS"

# train PROGRAM SERVERS: a whole cluster of processes on this machine.
train() {
    local program=$1 servers=$2 address= pid
    local pids=()
    printf 'name: client\ndata: {kind: none}\nmodel: {kind: none}\noptimizer: {kind: sgd, lr: 0.1}\ncluster: {workers: 2, servers: %d}\n' \
        "$servers" >"$work/client.yaml"
    rm -f "$work"/*.log
    "$binary_dir/bin/shoal-server" --coordinator --job "$work/client.yaml" --listen tcp://127.0.0.1:0 --once \
        >"$work/coordinator.log" 2>&1 &
    pids+=($!)
    started+=($!)
    for ((i = 0; i < 600; i++)); do
        address=$(sed -n 's/.*listening address=\([^ ]*\).*/\1/p' "$work/coordinator.log")
        [[ -n $address ]] && break
        sleep 0.05
    done
    [[ -n $address ]] || fail "the coordinator does not listen"
    for ((s = 0; s < servers; s++)); do
        "$binary_dir/bin/shoal-server" --cluster "$address" --once >"$work/server$s.log" 2>&1 &
        pids+=($!)
        started+=($!)
    done
    for r in 0 1; do
        "$program" "$address" >"$work/client$r.log" 2>&1 &
        pids+=($!)
        started+=($!)
    done
    for pid in "${pids[@]}"; do
        wait "$pid" || fail "process $pid ended with $?"
    done
    started=()
    grep -q 'rank [01] of 2: weight 3.0[0-9]* -[12].[09][0-9]* bias [01].[09]' "$work/client0.log" ||
        fail "client 0 learnt something else"
    grep -q 'report card' "$work/coordinator.log" || fail "no report card"
    ! grep -q 'numbers differ' "$work/coordinator.log" || fail "the books do not balance"
}

train "$binary_dir/deploy/examples/client_sgd" 1
train "$binary_dir/deploy/examples/client_sgd" 2

# As a program of somebody else: from an installed copy. Sanitizer builds install no archive.
if [[ -f $binary_dir/lib/libshoal.a ]]; then
    foreign=$(nm -g --defined-only "$binary_dir/lib/libshoal.a" | awk 'NF == 3 && $3 !~ /^shoal_[a-z_]*$/ {print $3}')
    [[ -z $foreign ]] || fail "libshoal.a exports $foreign"
    DESTDIR=$work/root cmake --install "$binary_dir" >"$work/install.log" 2>&1 || fail "install"
    pc=$(find "$work/root" -name shoal.pc)
    root=${pc%/lib*}
    export PKG_CONFIG_PATH=${pc%/shoal.pc}
    read -ra flags <<<"$(pkg-config --define-variable=prefix="$root" --cflags --libs shoal)"
    cc -std=c11 -Wall -Werror "$source_dir/deploy/examples/client_sgd.c" "${flags[@]}" -lm -o "$work/shared"
    libraries=$(dirname "$(find "$root" -name libshoal.so)")
    LD_LIBRARY_PATH=$libraries ldd "$work/shared" | grep -q "$libraries/libshoal.so" || fail "not linked to the installed library"
    read -ra private <<<"$(pkg-config --define-variable=prefix="$root" --static --libs-only-l shoal)"
    cc -std=c11 -Wall -Werror -I"$root/include" "$source_dir/deploy/examples/client_sgd.c" "$libraries/libshoal.a" \
        "${private[@]/#-lshoal/-lm}" -o "$work/static"
    ! ldd "$work/static" | grep -E 'libshoal|blas' || fail "the static program links libshoal.so or BLAS"
    train "$work/static" 1
fi
