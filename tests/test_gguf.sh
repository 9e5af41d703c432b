#!/bin/bash
# test_gguf.sh -- GGUF files as users meet them: there and back in every type of model and weight, every command on
# such a file, tokenizers, what is refused, and what the package gguf of Python reads (skipped where there is none).
. "${0%/*}/common.sh"
data=${0%/*}/data/tokenizers
seq 3 7 250 | paste -sd, | sed 's/.*/[&]/' >"$dir/ids"
score() { "$hola" score -m "$1" --ids "$dir/ids" --json --backend cpu | grep -o '"logprobs": [^]]*'; }
same() { # WHAT A B: two texts that are equal, and not empty
    checks=$((checks + 1))
    [ -n "$2" ] && [ "$2" = "$3" ] || bad "$1: $(printf %.80s "$2") and $(printf %.80s "$3")"
}
init() { # NAME JSON: a model with weights of a size that codes can say
    printf '%s, "hidden_size": 64, "num_hidden_layers": 2, "intermediate_size": 160, "vocab_size": 258,
        "initializer_range": 0.1, "norm_eps": 1e-5}' "$2" >"$dir/$1.json"
    ok "$hola" init -o "$dir/$1" --config "$dir/$1.json" -s 3
}
back() { # NAME TYPE: a directory, a GGUF file of it, a directory of that: the same numbers, the same bytes
    from=$dir/$1-$2 file=$dir/$1-$2.gguf
    ok "$hola" convert -m "$dir/$1" -o "$from" --dtype "$2"
    ok "$hola" convert -m "$from" -o "$file"
    ok "$hola" convert -m "$file" -o "$dir/back-$1-$2"
    same "$1 $2" "$(score "$from")" "$(score "$file")"
    ok cmp "$from/model.safetensors" "$dir/back-$1-$2/model.safetensors"
}

# ---- there and back ----

tiny='"num_heads": 2, "head_dim": 16, "expand_v": 1'
memory='"cache_window": 4, "cache_chunk": 8'
init hola '{"model_type": "hola", "a_field_of_others": [7], "tie_word_embeddings": true, '"$tiny, $memory"
init gated_deltanet '{"model_type": "gated_deltanet", '"$tiny"
init kda '{"model_type": "kda", "cache_evict": "lte", "num_heads": 2, "head_dim": 32, "expand_v": 1, '"$memory"
init delta_net '{"model_type": "delta_net", "num_heads": 2'
init gla '{"model_type": "gla", "num_heads": 2, "expand_k": 1'
init gsa '{"model_type": "gsa", "num_heads": 2, "num_slots": 8'
init transformer '{"model_type": "transformer", "num_heads": 4, "num_kv_heads": 2, "qkv_bias": true, "rope_theta": 5e5'
init tied '{"model_type": "transformer", "num_heads": 2, "tie_word_embeddings": true'
for type in f32 bf16 f16 int8 int4; do
    back hola $type
    back transformer $type
done
for name in gated_deltanet kda delta_net gla gsa; do
    back $name f32
    back $name int4
done
back tied bf16
ok cmp "$dir/hola-int4/config.json" "$dir/back-hola-int4/config.json"
ok grep -q '"rope_theta": 500000.0' "$dir/back-transformer-f32/config.json"
ok grep -q '"norm_eps": 1e-5' "$dir/back-transformer-f32/config.json"
ok grep -q '"tie_word_embeddings": true' "$dir/back-tied-bf16/config.json"
# rows that are no whole blocks stay floats
init odd '{"model_type": "hola", "num_heads": 2, "head_dim": 12, "expand_v": 1'
ok "$hola" convert -m "$dir/odd" -o "$dir/odd.gguf" --dtype int8
"$hola" inspect -m "$dir/odd.gguf" >"$dir/out"
ok grep -Eq 'layers.0.attn.q_proj.weight .* INT8 ' "$dir/out"
ok grep -Eq 'layers.0.attn.o_proj.weight .* F32 ' "$dir/out"

# ---- every command takes the file ----

tiny_llama() { # NAME TOKENIZER VOCABULARY: a transformer with this tokenizer, in a GGUF file
    sed "s/\"vocab_size\": 258/\"vocab_size\": $3/" "$dir/transformer.json" >"$dir/c.json"
    ok "$hola" init -o "$dir/$1" --config "$dir/c.json" --tokenizer "$2" -s 3
    ok "$hola" convert -m "$dir/$1" -o "$dir/$1.gguf" --dtype f32
}
for i in $(seq 300); do echo "line $i of a text about the $i words in it"; done >"$dir/a.txt"
ok "$hola" tokenizer train -o "$dir/own.json" --vocab-size 300 "$dir/a.txt"
tiny_llama own "$dir/own.json" 300
f=$dir/own.gguf
for m in "$dir/own" "$f"; do
    "$hola" generate -m "$m" -p 'line 7' -n 12 --temp 0 -q --backend cpu >"$dir/gen" 2>&1
    "$hola" score -m "$m" -f "$dir/a.txt" --backend cpu | grep ppl >>"$dir/gen"
    "$hola" inspect -m "$m" | grep 'model[.]' >>"$dir/gen"
    "$hola" eval -m "$m" --text "$dir/a.txt" --backend cpu --json 2>/dev/null |
        grep -o '"word_perplexity"[^,]*' >>"$dir/gen"
    if [ "$m" = "$f" ]; then ok cmp "$dir/gen" "$dir/gen-dir"; else cp "$dir/gen" "$dir/gen-dir"; fi
done
check 'something was compared' test "$(wc -l <"$dir/gen")" -gt 20
ok "$hola" prepare -o "$dir/data" --tokenizer "$dir/own.json" --split-lines --val 0.1 "$dir/a.txt"
ok "$hola" train --data "$dir/data" --out "$dir/run" -m "$f" --steps 1 --batch-tokens 64 --seq-len 32 -t 1 --backend cpu

# ---- tokenizers: the same ids through a GGUF file ----

printf 'Hello, WORLD!  it'"'"'s 12345 tokens;\n\n\ttabs   and\r\n na\xc3\xafve \xe4\xb8\xad\xe6\x96\x87 <s> I'"'"'LL\n' >"$dir/text"
ids() { "$hola" tokenizer encode --tokenizer "$1" -f "$dir/text" --json 2>&1; }
for name in gpt2 llama3 smollm; do
    [ -f "$data/$name.json" ] || continue
    sed 's/"lstrip": *true/"lstrip": false/; s/"rstrip": *true/"rstrip": false/; s/"single_word": *true/"single_word": false/' \
        "$data/$name.json" >"$dir/plain-$name.json"
    tiny_llama $name "$dir/plain-$name.json" 2000
    same $name "$(ids "$dir/plain-$name.json")" "$(ids "$dir/$name.gguf")"
    ok "$hola" convert -m "$dir/$name.gguf" -o "$dir/from-$name"
    same "$name extracted" "$(ids "$dir/plain-$name.json")" "$(ids "$dir/from-$name")"
done
same own "$(ids "$dir/own.json")" "$(ids "$f")"
model=${HOLA_SHARED:-../shared}/data/tokenizer/tokenizer.model
if [ -f "$model" ]; then
    tiny_llama spm "$model" 32000
    same spm "$(ids "$model")" "$(ids "$dir/spm.gguf")"
    ok "$hola" convert -m "$dir/spm.gguf" -o "$dir/from-spm"
    same 'spm extracted' "$(ids "$model")" "$(ids "$dir/from-spm/tokenizer.model")"
else
    echo 'SKIP SentencePiece: no data/tokenizer/tokenizer.model in $HOLA_SHARED or ../shared'
fi
# any tokenizer goes along with the other types of models, to the byte; so do a chat template and add_bos_token
cp "$data/qwen2.json" "$dir/hola/tokenizer.json"
printf '{"add_bos_token": false, "chat_template": "<|im_start|>"}' >"$dir/hola/tokenizer_config.json"
sed 's/"vocab_size": 258/"vocab_size": 4000/' "$dir/hola.json" >"$dir/c.json"
ok "$hola" init -o "$dir/hola" --config "$dir/c.json" --force
ok "$hola" convert -m "$dir/hola" -o "$dir/qwen.gguf" --dtype bf16
ok "$hola" convert -m "$dir/qwen.gguf" -o "$dir/again.gguf" --dtype int8
ok "$hola" convert -m "$dir/again.gguf" -o "$dir/from-qwen"
ok cmp "$data/qwen2.json" "$dir/from-qwen/tokenizer.json"
ok grep -q '"add_bos_token": false' "$dir/from-qwen/tokenizer_config.json"
ok grep -qF '<|im_start|>' "$dir/from-qwen/tokenizer_config.json"

# ---- refused, with nothing left behind ----

init norm '{"model_type": "transformer", "num_heads": 2, "qk_norm": true'
init window '{"model_type": "transformer", "num_heads": 2, "window_size": 8'
refused 1 'qk_norm: the architecture llama' convert -m "$dir/norm" -o "$dir/x.gguf"
refused 1 'window_size: the architecture llama' convert -m "$dir/window" -o "$dir/x.gguf"
refused 1 'normalizer: a GGUF file for llama.cpp' convert -m "$dir/smollm" -o "$dir/x.gguf" --tokenizer "$data/qwen2.json"
refused 1 'lstrip: a GGUF file for llama.cpp' convert -m "$dir/smollm" -o "$dir/x.gguf" --tokenizer "$data/llama3.json"
refused 1 'tokens, and the model has a vocabulary of 300' \
    convert -m "$dir/own" -o "$dir/x.gguf" --tokenizer "$data/qwen2.json"
refused 1 'is there already' convert -m "$dir/own" -o "$f"
refused 1 'onto itself' convert -m "$f" -o "$f" --force
refused 2 '--tokenizer is for GGUF' convert -m "$f" -o "$dir/x" --tokenizer none
refused 1 'hola convert makes a directory' prepare -o "$dir/x" --tokenizer "$f" "$dir/a.txt"
refused 1 'hola convert makes a directory' init -o "$dir/x" --config "$dir/transformer.json" --tokenizer "$f"
ok "$hola" convert -m "$dir/own" -o "$dir/bare.gguf" --tokenizer none
refused 1 'holds no tokenizer' generate -m "$dir/bare.gguf" -p x
check 'nothing is left' test ! -e "$dir/x.gguf" -a ! -e "$dir/x"
for n in 3 23 24 200 3000; do
    head -c $n "$f" >"$dir/cut.gguf"
    refused 1 "$dir/cut.gguf" score -m "$dir/cut.gguf" --ids "$dir/ids"
done
head -c -100000 "$f" >"$dir/cut.gguf"
refused 1 'do not lie in the file' score -m "$dir/cut.gguf" --ids "$dir/ids"
sed 's/llama\.rope\.freq_base/llama.rope.scaling_x/' "$f" >"$dir/scaled.gguf"
refused 1 'scaled rotary positions are not supported' score -m "$dir/scaled.gguf" --ids "$dir/ids"
sed 's/blk\.1\.attn_q\.bias/blk.1.attn_x.bias/' "$f" >"$dir/strange.gguf"
refused 1 'blk.1.attn_x.bias: not in the models that hola has' score -m "$dir/strange.gguf" --ids "$dir/ids"
sed 's/\(general.architecture....\)\x05\(.......\)llama/\1\x05\2mamba/' "$f" >"$dir/mamba.gguf"
refused 1 'general.architecture: mamba is not supported' score -m "$dir/mamba.gguf" --ids "$dir/ids"
sed 's/\(tokenizer.ggml.pre............\)gpt-2/\1gpt-9/' "$f" >"$dir/pre.gguf"
refused 1 '"gpt-9" is not known' generate -m "$dir/pre.gguf" -p x
checks=$((checks + 1))
(ulimit -f 20 && trap '' XFSZ && "$hola" convert -m "$dir/own" -o "$dir/full.gguf" --dtype f32 >/dev/null 2>"$dir/err") &&
    bad 'a full disk went unnoticed'
ok test ! -e "$dir/full.gguf" -a -z "$(find "$dir" -maxdepth 1 -name '.*tmp*')"

# ---- another reader ----

python=${HOLA_TEST_PYTHON:-python3}
if "$python" -c 'import gguf' 2>/dev/null; then
    for name in transformer-f32 transformer-bf16 transformer-int8 transformer-int4 hola-int8 hola-f16 kda-int4; do
        ok "$python" "${0%/*}/gguf_reader.py" "$dir/$name.gguf" "$dir/$name"
    done
    ok "$python" "${0%/*}/gguf_reader.py" "$f" "$dir/own"
    cp "$dir/transformer-int8.gguf" "$dir/wrong.gguf" # and it must notice
    size=$(stat -c %s "$dir/wrong.gguf")
    printf '\x55\x55\x55\x55' | dd of="$dir/wrong.gguf" bs=1 seek=$((size - 4000)) conv=notrunc 2>/dev/null
    check 'a wrong byte is seen' eval "! '$python' '${0%/*}/gguf_reader.py' '$dir/wrong.gguf' '$dir/transformer-int8' >/dev/null 2>&1"
else
    echo 'SKIP the package gguf: Python has none'
fi
finish
