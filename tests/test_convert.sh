#!/bin/bash
# test_convert.sh -- hola convert as its users meet it: every type and back, nonsense, a full disk, bad files.
. "${0%/*}/common.sh"
# expect STATUS TEXT COMMAND...: exactly one line on stderr, with TEXT in it
expect() {
    want=$1 text=$2
    shift 2
    "$hola" "$@" >"$dir/out" 2>"$dir/err"
    ended "$*" $? "$want" "$text"
}

cat >"$dir/c.json" <<END
{"model_type": "hola", "hidden_size": 72, "num_hidden_layers": 2, "num_heads": 2, "head_dim": 16, "expand_v": 1,
 "intermediate_size": 150, "vocab_size": 258, "tie_word_embeddings": true, "cache_window": 4, "cache_chunk": 16,
 "initializer_range": 0.1}
END
ok "$hola" init -o "$dir/m" --config "$dir/c.json" -s 3
sed -i 's/^{/{"a_field_of_others": 7,/' "$dir/m/config.json"
printf '{"not": "ours"}' >"$dir/m/tokenizer.json"
for i in $(seq 60); do printf '%s%d' "$([ "$i" = 1 ] && echo '[' || echo ,)" $((i * i % 258)); done >"$dir/ids"
echo ']' >>"$dir/ids"

ppl() { "$hola" score -m "$1" --ids "$dir/ids" --json --backend cpu | sed 's/.*"ppl": \([0-9.]*\).*/\1/'; }
near() { # A B PART: |A / B - 1| <= PART
    checks=$((checks + 1))
    awk -v a="$1" -v b="$2" -v part="$3" 'BEGIN { d = a / b - 1; exit !(d <= part && -d <= part) }' ||
        bad "$1 and $2 are more than $3 apart"
}

# ---- every type; what the tensors say; the rest goes along ----

first=$(ppl "$dir/m")
for t in f32:0.0000001 bf16:0.01 f16:0.002 int8:0.02 int4:0.2; do
    type=${t%:*}
    ok "$hola" convert -m "$dir/m" -o "$dir/$type" --dtype "$type"
    near "$(ppl "$dir/$type")" "$first" "${t#*:}"
    ok cmp "$dir/m/tokenizer.json" "$dir/$type/tokenizer.json"
    ok grep -q '"a_field_of_others": 7' "$dir/$type/config.json"
done
ok cmp "$dir/m/model.safetensors" "$dir/f32/model.safetensors"
ok grep -q '"torch_dtype": "float32"' "$dir/int4/config.json" # norms and gates still are
size() { stat -c %s "$dir/$1/model.safetensors"; }
ok test $(($(size int8) * 10)) -lt $(($(size f32) * 4))
ok test $(($(size int4) * 10)) -lt $(($(size int8) * 7))
"$hola" inspect -m "$dir/int4" >"$dir/out"
ok grep -Eq 'layers.0.attn.q_proj.weight .* INT4 ' "$dir/out"
ok grep -Eq 'embeddings.weight .* INT4 ' "$dir/out"
ok grep -Eq 'layers.0.attn.a_proj.weight .* F32 ' "$dir/out"
ok grep -Eq 'layers.0.attn.q_conv1d.weight .* F32 ' "$dir/out"

# ---- back again: the numbers stay; and once more the same codes ----

for type in int8 int4; do
    ok "$hola" convert -m "$dir/$type" -o "$dir/back-$type" --dtype f32
    near "$(ppl "$dir/back-$type")" "$(ppl "$dir/$type")" 0.0001
    ok "$hola" convert -m "$dir/back-$type" -o "$dir/again-$type" --dtype $type
    ok cmp "$dir/$type/model.safetensors" "$dir/again-$type/model.safetensors"
    ok "$hola" convert -m "$dir/$type" -o "$dir/same-$type" --dtype $type --json
    ok cmp "$dir/$type/model.safetensors" "$dir/same-$type/model.safetensors"
done
near "$("$hola" score -m "$dir/int4" --ids "$dir/ids" --json --backend cpu --mode decode |
    sed 's/.*"ppl": \([0-9.]*\).*/\1/')" "$(ppl "$dir/int4")" 0.0001

# training takes them as floats
for i in $(seq 40); do echo "line $i of a text"; done >"$dir/a.txt"
ok "$hola" prepare -o "$dir/data" --tokenizer byte --split-lines --val 0.1 "$dir/a.txt"
rm "$dir/int4/tokenizer.json"
ok "$hola" train --data "$dir/data" --out "$dir/run" -m "$dir/int4" --steps 1 --batch-tokens 64 --seq-len 32 \
    --micro-tokens 64 -t 1 --backend cpu
"$hola" inspect -m "$dir/run/latest" >"$dir/out"
ok grep -Eq 'layers.0.attn.q_proj.weight .* F32 ' "$dir/out"

# ---- nonsense ----

expect 2 '--dtype TYPE is required' convert -m "$dir/m" -o "$dir/x"
expect 2 "not 'int3'" convert -m "$dir/m" -o "$dir/x" --dtype int3
expect 1 'already holds a config.json' convert -m "$dir/m" -o "$dir/int8" --dtype int8
expect 1 'onto itself' convert -m "$dir/m" -o "$dir/m/." --dtype int8 --force
expect 1 "$dir/none" convert -m "$dir/none" -o "$dir/x" --dtype int8
ok "$hola" convert -m "$dir/m" -o "$dir/int8" --dtype bf16 --force
ok cmp "$dir/bf16/model.safetensors" "$dir/int8/model.safetensors"

# a file too large for the disk leaves no model and no part of one
checks=$((checks + 1))
(ulimit -f 20 && trap '' XFSZ && "$hola" convert -m "$dir/m" -o "$dir/full" --dtype int8 >/dev/null 2>"$dir/err") &&
    bad "a full disk went unnoticed"
ok test ! -e "$dir/full/config.json"
ok test ! -e "$dir/full/model.safetensors"
ok test -z "$(find "$dir/full" -name '.*tmp*')"

# cut short, or with a scale that is no number
head -c 20000 "$dir/int4/model.safetensors" >"$dir/again-int4/model.safetensors"
expect 1 'again-int4/model.safetensors' score -m "$dir/again-int4" --ids "$dir/ids"

finish
