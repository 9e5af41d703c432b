#!/bin/sh
# test_backends.sh -- every version of the CPU code that this processor runs gives the bundled model the same greedy
# ids, and log-probabilities near those of the reference code. The numbers were written down on x86-64, so that the
# test compares processors, too (`make test-arm`).
. "${0%/*}/common.sh"
model=$(cd "${0%/*}/.." && pwd)/models/hola-tiny
[ -e "$model/model.safetensors" ] || { echo 'SKIP backends: models/ is not here' && exit 77; }
ids='13, 282, 577, 281, 604, 275, 264, 753, 15, 200, 200, 3, 42, 608, 388, 456, 362, 373, 264, 440, 15, 200, 200, 3'
printf 'He looked at her for a moment, and then he said that he did not know what to do.' >"$dir/text"
cat >"$dir/want" <<END
-8.40264180167616
-6.31872629886708
-1.36371564971285
-1.17589252998513
-5.45008537399001
-1.03182722145574
-1.01832902811119
-1.47377105113041
-0.795033256855
-2.68047081804471
-1.75721072589215
-3.40778283429336
-3.05957712058475
-1.58304840228699
-3.34190443150829
-0.290226789032172
-2.19461245836564
-1.85515206478996
-2.76225809554387
-1.33325726949809
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
