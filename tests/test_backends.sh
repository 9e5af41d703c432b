#!/bin/sh
# test_backends.sh -- every version of the CPU code that this processor runs gives the bundled model the same greedy
# ids, and log-probabilities near those of the reference code. The numbers were written down on x86-64, so that the
# test compares processors, too (`make test-arm`).
. "${0%/*}/common.sh"
model=$(cd "${0%/*}/.." && pwd)/models/hola-tiny
[ -e "$model/model.safetensors" ] || { echo 'SKIP backends: models/ is not here' && exit 77; }
ids='13, 291, 533, 940, 13, 315, 291, 533, 345, 260, 440, 289'
ids="$ids, 260, 440, 480, 613, 471, 260, 440, 289, 260, 440, 480, 613"
printf 'He looked at her for a moment, and then he said that he did not know what to do.' >"$dir/text"
cat >"$dir/want" <<END
-3.94872036430933
-3.44652208799664
-1.04101202859179
-1.74316799370439
-3.94423356425
-0.419927078295425
-0.28803210659995
-1.21326480528948
-1.37200080846962
-1.84832243446082
-1.86233539391717
-2.85154344703147
-5.27030261281807
-1.14400263055995
-3.00421566133373
-0.145108984829365
-2.28231920677771
-1.28728108732646
-1.28231203415888
-1.2702355780545
END
far() { # FILE: the largest difference of its log-probabilities from the wanted ones; quantised rows of x: about 1e-4
    sed 's/.*"logprobs": \[\([^]]*\)\].*/\1/' "$dir/$1" | tr ',' '\n' | paste - "$dir/want" | awk '
        NR <= 20 { d = $1 - $2; if (d < 0) d = -d; if (d > most || $1 == "") most = $1 == "" ? 99 : d }
        END { print NR < 20 ? 99 : most }'
}
below() { awk -v x="$1" -v y="$2" 'BEGIN { exit !(x < y) }'; }

ran=
for b in $([ -n "$HOLA_EMULATED" ] || echo cpu-ref) cpu-base cpu-avx2 cpu-avx512 cpu-neon; do
    if ! "$hola" score -m "$model" --backend $b -f "$dir/text" --json >"$dir/score" 2>"$dir/err"; then
        check "$b: $(cat "$dir/err")" grep -q "'$b' is unknown, or not for this processor" "$dir/err"
        continue
    fi
    ran="$ran $b"
    check "$b: log-probabilities differ by $(far score)" below "$(far score)" 0.001
    "$hola" score -m "$model" --backend $b -f "$dir/text" --json --mode decode -t 1 >"$dir/score"
    check "$b: token by token they differ by $(far score)" below "$(far score)" 0.001
    "$hola" generate -m "$model" --backend $b -p 'Once upon a time' --temp 0 -n 24 --json >"$dir/out" 2>"$dir/err"
    check "$b: ids $(cat "$dir/out" "$dir/err")" grep -qF "\"ids\": [$ids]" "$dir/out"
done
case $(uname -m)$HOLA_EMULATED in aarch64* | *aarch64) check "ran:$ran" test "${ran%neon}" != "$ran" ;; esac
# the comparison sees another text
printf 'He looked at him for a moment, and then he said that he did not know what to do.' >"$dir/text"
"$hola" score -m "$model" --backend cpu -f "$dir/text" --json >"$dir/score"
check "another text differs by $(far score) only" below 0.01 "$(far score)"
finish
