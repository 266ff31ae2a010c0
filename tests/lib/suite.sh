# Functions that tests/run and .ci/run share: build a preset, run its tests, count them. To be sourced, from the top folder.
# shellcheck shell=bash

jobs=$(nproc)
passed_total=0
failed_total=0

# suite_build PRESET [TARGET...]: configures and builds with progress.
suite_build() {
    local preset=$1 targets=() said
    shift
    if (($#)); then
        targets=(--target "$@")
    fi
    echo "== $preset: build"
    if ! said=$(cmake --preset "$preset" 2>&1); then
        echo "$said"
        return 1
    fi
    cmake --build --preset "$preset" -j "$jobs" "${targets[@]}"
}

# Reads ctest's LastTest.log. A cmocka program counts as its tests, any other program as one; a program that fails
# without saying which of its tests did (a crash, a time-out) counts as one failed test more.
suite_count() {
    awk '
        function close_program() {
            if (!open) return
            if (!ok && bad == 0) bad = 1
            if (ok && good == 0 && bad == 0 && skip == 0) good = 1
            passed += good; failed += bad; skipped += skip
            open = 0
        }
        /^[0-9]+\/[0-9]+ Testing: / { close_program(); open = 1; ok = 0; good = bad = skip = 0 }
        match($0, /\[  PASSED  \] [0-9]+ test/) { good += substr($0, RSTART + 13) + 0 }
        match($0, /\[  FAILED  \] [0-9]+ test/) { bad += substr($0, RSTART + 13) + 0 }
        match($0, /\[  SKIPPED \] [0-9]+ test/) { skip += substr($0, RSTART + 13) + 0 }
        /^Test Passed\.$/ { ok = 1 }
        END { close_program(); print passed + 0, failed + 0, skipped + 0 }' "$1"
}

# suite_add PASSED FAILED
suite_add() {
    passed_total=$((passed_total + $1))
    failed_total=$((failed_total + $2))
}

# suite_again FOLDER: one more try of what failed, alone on the machine: real processes with real time-outs share it with
# whatever else runs there. Says which tests needed it; 0 when all of them pass now.
suite_again() {
    local folder=$1
    echo "== a second try, alone, of: $(cut -d : -f 2 "$folder/Testing/Temporary/LastTestsFailed.log" | tr '\n' ' ')"
    ctest --test-dir "$folder" --no-label-summary --output-on-failure -j 1 --rerun-failed
}

# suite_test PRESET FOLDER [ctest options]: runs the tests of a build and adds them to the totals.
suite_test() {
    local preset=$1 folder=$2 status=0 passed failed skipped
    shift 2
    echo "== $preset: tests"
    rm -f "$folder/Testing/Temporary/LastTest.log"
    ctest --test-dir "$folder" --no-label-summary --output-on-failure -j "$jobs" --test-output-size-passed 1048576 \
        --test-output-size-failed 1048576 "$@" || status=$?
    read -r passed failed skipped < <(suite_count "$folder/Testing/Temporary/LastTest.log" || echo "0 1 0")
    if ((status != 0 && failed > 0)); then
        suite_again "$folder" && status=0 passed=$((passed + failed)) failed=0
    fi
    if ((status != 0 && failed == 0)) || ((passed == 0 && failed == 0)); then
        failed=1
    fi
    echo "== $preset: $passed passed, $failed failed, $skipped skipped"
    suite_add "$passed" "$failed"
}

# suite_end: the countable last line; fails unless something passed and nothing failed.
suite_end() {
    echo "$passed_total passed, $failed_total failed"
    ((passed_total > 0 && failed_total == 0))
}
