#!/bin/sh
# sanitize.sh BUILD RACE [JOBS]: compute-sanitizer over the GPU tests, JOBS at a time: memcheck over
# BUILD/gpu-tests, racecheck over RACE/gpu-tests (built with RACE=1: src/cuda/named_barrier.cuh, tests/race). Prints
# a line per test, full output in RACE/sanitize; status 1 if a test fails or hangs, or a tool reports something.
limit=${TEST_SECONDS:-600}
PATH=$PATH:/usr/local/cuda/bin

if [ "$1" = --one ]; then # LOGS TOOL PROGRAM
    name=$(basename "$4") log=$2/$3-$(basename "$4").txt start=$(date +%s)
    case $3-$name in # the emulator's cases; fewer if each takes long (tests/cuda.h)
    memcheck-cuda_decode_* | memcheck-cuda_model | memcheck-cuda_prelaunch | racecheck-*) HOLA_SMALL=2 ;;
    *) HOLA_SMALL=1 ;;
    esac
    export HOLA_SMALL
    timeout "$limit" compute-sanitizer --tool "$3" --print-limit 100000 "$4" >"$log" 2>&1
    awk -v rc=$? -v tool="$3" -v name="$name" -v s=$(($(date +%s) - start)) '
        /^\[==========\] Running [0-9]+ test/ { n += $3 }
        /^\[       OK \]/ { ok++ }
        /^\[  SKIPPED \] [0-9]+ test\(s\), listed/ { skipped += $4 }
        /^========= .*SUMMARY: [0-9]+ / { ended = 1; sub(/.*SUMMARY: /, ""); reports = $1 }
        END {
            bad = rc || !ended || reports || !n || ok + skipped < n
            printf "%-9s %-20s %3d of %d tests, %d reports  %d s%s\n", tool, name, ok, n, reports, s,
                !ended ? "  FAILED: it did not end" : bad ? "  FAILED" : ""
            exit bad
        }' "$log"
    exit
fi

command -v compute-sanitizer >/dev/null || { echo 'compute-sanitizer: not found' >&2; exit 1; }
logs=$2/sanitize
mkdir -p "$logs" || exit 1
{
    for p in "$1"/gpu-tests/cuda_*; do [ ! -x "$p" ] || echo memcheck "$p"; done
    for p in "$2"/gpu-tests/cuda_*; do [ ! -x "$p" ] || echo racecheck "$p"; done
} | xargs -P "${3:-4}" -L 1 sh "$0" --one "$logs" || exit 1
