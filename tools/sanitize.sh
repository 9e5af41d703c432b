#!/bin/sh
# sanitize.sh BUILD RACE [JOBS]: compute-sanitizer over the GPU tests, JOBS at a time: memcheck over BUILD/gpu-tests,
# racecheck over RACE/gpu-tests (built with -DHL_RACECHECK, src/cuda/some.cuh). A line for each, the whole in
# RACE/sanitize; status 1 where a test fails, does not end, or something is reported in a kernel of ours. What
# racecheck says of cuBLAS's kernels is counted apart: they are not ours to put in order.
limit=${TEST_SECONDS:-600}
foreign='nvjet|cutlass|cublas|xmma|splitK'
PATH=$PATH:/usr/local/cuda/bin

if [ "$1" = --one ]; then # TOOL PROGRAM LOGS
    log=$4/$2-$(basename "$3").txt
    start=$(date +%s)
    HOLA_SMALL=$([ "$2" = memcheck ] && echo 1 || echo 2) timeout "$limit" compute-sanitizer --tool "$2" --print-limit 100000 \
        $([ "$2" = memcheck ] || echo --racecheck-num-workers 2) "$3" >"$log" 2>&1
    rc=$?
    awk -v tool="$2" -v name="$(basename "$3")" -v rc=$rc -v foreign="$foreign" -v s=$(($(date +%s) - start)) '
        /^\[==========\] Running [0-9]+ test/ { n += $3 }
        /^\[       OK \]/ { ok++ }
        /^\[  SKIPPED \] [0-9]+ test\(s\), listed/ { skipped += $4 }
        /^========= (Error|Warning): Race reported/ && $0 ~ foreign { theirs++ }
        /^========= .*SUMMARY: [0-9]+ / { ended = 1; sub(/.*SUMMARY: /, ""); ours = $1 - theirs }
        END {
            bad = rc || !ended || ours || ok + skipped < n || !n
            printf "%-9s %-20s %3d of %d tests, %d reports%s  %d s%s\n", tool, name, ok, n, ours,
                theirs ? " (" theirs " in cuBLAS)" : "", s, bad ? "  FAILED" (ended ? "" : ", did not end") : ""
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
} | xargs -P "${3:-4}" -I '{}' sh -c "$0 --one {} $logs" || exit 1
