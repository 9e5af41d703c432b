#!/bin/sh
# test_published_model.sh -- the model that comes with hola: found without -m, it writes English, and it has the figures
# that its card says, models/README.md, with every instruction set.
. "${0%/*}/common.sh"
here=$(cd "${0%/*}/.." && pwd)
card=$here/models/README.md
[ -e "$here/models/hola-46m/model.safetensors" ] || { echo 'SKIP published model: models/ is not here' && exit 77; }
unset HOLA_MODEL
perplexity() { "$hola" score -f "$1" | awk '/^ppl/ { print $2 }'; }

echo 'He looked at her for a moment, and then he said that he did not know what to do, and she went to the door.' >"$dir/text"
tr ' ' '\n' <"$dir/text" | sort | tr '\n' ' ' >"$dir/shuffled" # the same words
plain=$(perplexity "$dir/text") shuffled=$(perplexity "$dir/shuffled")
check "English: $plain, its words sorted: $shuffled" \
    awk -v a="$plain" -v b="$shuffled" 'BEGIN { exit !(a > 1 && a < 60 && b > 5 * a) }'
"$hola" generate -p 'Once upon a time' -n 60 -s 1 >"$dir/out" 2>"$dir/err"
check "it writes words: $(cat "$dir/out")" [ "$(grep -oE '\b(the|and|of|to|a|he|she|it|I|was|in|that)\b' "$dir/out" | wc -l)" -ge 6 ]

# The rows of the card's table between `begin checked` and `end checked`: | task | metric | hola-46m | hola-46m-int4 |
sed -n '/begin checked/,/end checked/p' "$card" |
    awk -F ' *[|] *' '$3 ~ /^[a-z_0-9]+$/ && $4 ~ /^0[.]/ { print $2, $3, $4, $5 }' >"$dir/rows"
evaluate() { # TASK MODEL [OPTION...]: into $dir/answers
    "$hola" eval --tasks $1 -m "$here/models/$2" --json $3 $4 $5 $6 >"$dir/answers" 2>"$dir/err" || bad "$*: $(cat "$dir/err")"
}
same() { # TASK COLUMN WHAT: the card has these figures in this column
    awk -v task=$1 -v column=$2 '$1 == task { print $2, $column }' "$dir/rows" >"$dir/wanted"
    while read -r metric want; do
        got=$(grep -o "\"$metric\": [0-9.e-]*" "$dir/answers" | head -n 1 | awk '{ printf "%.4f", $2 }')
        check "$3: $1 $metric $got, the card says $want" [ "$got" = "$want" ]
    done <"$dir/wanted"
}
check "the card has figures to check: $(cat "$dir/rows")" [ "$(wc -l <"$dir/rows")" -ge 7 ]
quick="--limit 2 --data $dir"
ran=
for b in cpu-avx2 cpu-avx512; do
    "$hola" score -f "$dir/text" --backend $b >/dev/null 2>&1 || continue # not for this processor
    ran=1 && evaluate multikey hola-46m $quick --backend=$b && same multikey 3 "hola-46m, $b"
done
[ -n "$ran" ] || { evaluate multikey hola-46m $quick && same multikey 3 hola-46m; }
evaluate multikey hola-46m-int4 $quick && same multikey 4 hola-46m-int4
# the comparison sees another model
failed=$failures
same multikey 3 'hola-46m-int4 as hola-46m' >"$dir/out"
[ "$failures" -gt "$failed" ] && failures=$failed || bad 'both models have the same figures'
data=$here/../shared/data/eval
if [ -e "$data/openbookqa/test.jsonl" ]; then
    evaluate openbookqa hola-46m --data "$data" && same openbookqa 3 hola-46m
    evaluate openbookqa hola-46m-int4 --data "$data" && same openbookqa 4 hola-46m-int4
else
    echo 'SKIP openbookqa: ../shared/data/eval is not here'
fi

refused 1 'nowhere' score -m "$dir/nowhere" -f "$dir/text"
HOLA_MODEL=$dir/nowhere
export HOLA_MODEL
refused 1 'nowhere' score -f "$dir/text"
finish
