# common.sh -- what the tests of the program share; they begin with: . "${0%/*}/common.sh"
# HOLA names the program. Everything that a test needs it writes itself, into $dir.
hola=${HOLA:-./hola}
export HOLA_MODEL= # none: a test names its models
[ -x "$hola" ] || { echo "$hola: no such program" && exit 1; }
dir=$(mktemp -d) || exit 1
trap 'rm -rf "$dir"' EXIT
checks=0 failures=0
bad() { failures=$((failures + 1)) && echo "FAILED: $*"; }
ok() { # COMMAND...: it must succeed
    checks=$((checks + 1))
    "$@" >/dev/null 2>"$dir/said" || bad "$*: $(head -n 5 "$dir/said")"
}
check() { # check WHAT CONDITION...
    checks=$((checks + 1)) && what=$1
    shift
    "$@" || bad "$what"
}
# ended WHAT GOT WANT TEXT: the status of WHAT, and of a failure: one line in $dir/err that begins with "hola: " and
# holds TEXT, and no result in $dir/out.
ended() {
    checks=$((checks + 1))
    [ "$2" = "$3" ] || bad "$1: status $2, not $3: $(cat "$dir/err")"
    [ "$3" = 0 ] && return
    [ "$(wc -l <"$dir/err")" -eq 1 ] && grep -q '^hola: ' "$dir/err" || bad "$1: not one line of hola: $(cat "$dir/err")"
    grep -qF -e "$4" "$dir/err" || bad "$1: no '$4' in: $(cat "$dir/err")"
    [ -s "$dir/out" ] && bad "$1: printed a result though it failed"
    return 0
}
refused() { # refused STATUS TEXT ARGS...: hola with these ends so
    want=$1 text=$2
    shift 2
    "$hola" "$@" >"$dir/out" 2>"$dir/err"
    ended "$*" $? "$want" "$text"
}
# noted WHAT TEXT: of a success: nothing in $dir/err, TEXT in $dir/out
noted() {
    [ -s "$dir/err" ] && bad "$1: noise on stderr: $(cat "$dir/err")"
    grep -qF -e "$2" "$dir/out" || bad "$1: no '$2' in: $(cat "$dir/out")"
}
finish() {
    echo "$checks checks, $failures failed"
    [ "$failures" -eq 0 ]
}
