#!/bin/sh
# test_default_model.sh -- the model that comes with hola: found without -m, and it has trained some English.
. "${0%/*}/common.sh"
here=$(cd "${0%/*}/.." && pwd)
[ -e "$here/models/hola-46m/model.safetensors" ] || { echo 'SKIP default model: models/ is not here' && exit 77; }
unset HOLA_MODEL
perplexity() { "$hola" score -f "$1" | awk '/^ppl/ { print $2 }'; }

echo 'He looked at her for a moment, and then he said that he did not know what to do, and she went to the door.' >"$dir/text"
tr ' ' '\n' <"$dir/text" | sort | tr '\n' ' ' >"$dir/shuffled" # the same words
plain=$(perplexity "$dir/text") shuffled=$(perplexity "$dir/shuffled")
check "English: $plain, its words sorted: $shuffled" \
    awk -v a="$plain" -v b="$shuffled" 'BEGIN { exit !(a > 1 && a < 60 && b > 5 * a) }'
"$hola" generate -p 'Once upon a time' -n 60 -s 1 >"$dir/out" 2>"$dir/err"
check "it writes words: $(cat "$dir/out")" [ "$(grep -oE '\b(the|and|of|to|a|he|she|it|I|was|in|that)\b' "$dir/out" | wc -l)" -ge 6 ]
refused 1 'nowhere' score -m "$dir/nowhere" -f "$dir/text"
HOLA_MODEL=$dir/nowhere
export HOLA_MODEL
refused 1 'nowhere' score -f "$dir/text"
finish
