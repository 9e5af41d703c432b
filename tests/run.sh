#!/bin/sh
# run.sh TEST...: runs them, JOBS at a time, shows what failed or was skipped, and closes with the sums. A cmocka
# program counts as many tests as it holds; any other program or script counts as one (status 0: passed, 77: skipped).
limit=${TEST_SECONDS:-600} # a test that hangs is a failure
# RUNNER: a command that runs programs for another processor (make test-arm)

report() { # TEST: what is shown of it; the line of counts, passed failed skipped, goes to $sums
    start=$(date +%s)
    case $1 in *.sh) runner= ;; *) runner=$RUNNER ;; esac
    # (into a file: a pipe would stay open as long as anything that a test left running)
    file=$(mktemp)
    timeout "$limit" $runner "$1" >"$file" 2>&1
    rc=$?
    out=$(tr -d '\000' <"$file")
    rm -f "$file"
    name=$(basename "$1")
    # as cmocka reports them; empty for other programs
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
    echo "$counts" >>"$sums"
    set -- $counts
    printf '%-28s %4d passed' "$name" "$1"
    [ "$3" -eq 0 ] || printf ', %d skipped' "$3"
    [ "$2" -eq 0 ] || printf ', %d FAILED (status %d)' "$2" $rc
    printf '  %d s\n' $(($(date +%s) - start))
    [ "$2" -eq 0 ] || printf '%s\n' "$out" | grep -v '^\[ RUN\|^\[       OK' | head -n 200
    printf '%s\n' "$out" | grep '^SKIP'
}
if [ "$1" = --one ]; then
    shown=$(report "$2")
    flock "$sums" printf '%s\n' "$shown" # one report after another
    exit
fi

sums=$(mktemp) || exit 1
trap 'rm -f "$sums"' EXIT
export sums
[ $# -eq 0 ] || printf '%s\n' "$@" | xargs -n 1 -P "${JOBS:-1}" "$0" --one
awk -v all=$# '{ p += $1; f += $2; s += $3 }
    END { f += all - NR; printf "%d passed, %d failed, %d skipped\n", p, f, s; exit f > 0 || p == 0 }' "$sums"
