#!/bin/sh
# run.sh TEST...: runs each, shows what failed or was skipped, and closes with the sums. A cmocka program counts
# as many tests as it holds; any other program or script counts as one (status 0: passed, 77: skipped).
passed=0 failed=0 skipped=0
limit=${TEST_SECONDS:-600} # a test that hangs is a failure
for t in "$@"; do
    start=$(date +%s)
    out=$(timeout "$limit" "$t" 2>&1)
    rc=$?
    # ${counts}: passed failed skipped, as cmocka reports them; empty for other programs
    counts=$(printf '%s\n' "$out" | awk '
        /^\[==========\] Running [0-9]+ test/ { n += $3 }
        /^\[       OK \]/ { p++ }
        /^\[  SKIPPED \] [0-9]+ test\(s\), listed/ { s += $4 }
        END { if (n) print p + 0, n - p - s, s + 0 }') # what did not run has failed
    if [ -z "$counts" ]; then
        case $rc in
        0) counts='1 0 0' ;;
        77) counts='0 0 1' ;;
        *) counts='0 1 0' ;;
        esac
    elif [ $rc -ne 0 ] && [ "${counts#* 0 }" != "$counts" ]; then
        counts="${counts%% *} 1 ${counts##* }" # all passed, then the program failed (a leak)
    fi
    set -- $counts
    passed=$((passed + $1)) failed=$((failed + $2)) skipped=$((skipped + $3))
    printf '%-28s %4d passed' "$(basename "$t")" "$1"
    [ "$3" -eq 0 ] || printf ', %d skipped' "$3"
    [ "$2" -eq 0 ] || printf ', %d FAILED (status %d)' "$2" $rc
    printf '  %d s\n' $(($(date +%s) - start))
    [ "$2" -eq 0 ] || printf '%s\n' "$out" | grep -v '^\[ RUN\|^\[       OK' | head -n 200
    printf '%s\n' "$out" | grep '^SKIP'
done
echo "$passed passed, $failed failed, $skipped skipped"
[ "$failed" -eq 0 ] && [ "$passed" -gt 0 ]
