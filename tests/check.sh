# check.sh -- what the tests of the program share: a directory that goes, and checks that say what failed.
# shellcheck shell=sh
hola=${HOLA:-./hola}
dir=$(mktemp -d) || exit 1
trap 'rm -rf "$dir"' EXIT
bad=0
check() { # check WHAT CONDITION...
    what=$1
    shift
    "$@" || { echo "FAILED: $what"; bad=1; }
}
refused() { # refused STATUS WORD ARGS...: one line on stderr that has the word, nothing on stdout
    want=$1 word=$2
    shift 2
    "$hola" "$@" >"$dir/out" 2>"$dir/err"
    rc=$?
    check "status $rc instead of $want: $*" [ $rc -eq "$want" ]
    check "'$word' in: $(cat "$dir/err")" grep -q -- "$word" "$dir/err"
    check "one line: $*" [ "$(wc -l <"$dir/err")" -eq 1 ]
    check "nothing on stdout: $*" [ ! -s "$dir/out" ]
}
