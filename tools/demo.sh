#!/bin/sh
# A tour in about three minutes on two cores: hola learns to write its own source code. A small Gated DeltaNet and
# the same with the exact memory are trained on the bytes of this repository, then measured. Nothing is downloaded.
# DEMO_STEPS (default 150) sets the effort, DEMO_OUT (default build/demo) the place.
set -e
cd "$(dirname "$0")/.."
hola=${HOLA:-./hola}
out=${DEMO_OUT:-build/demo}
steps=${DEMO_STEPS:-150}
rm -rf "$out"
mkdir -p "$out"
say() { printf '\n== %s\n' "$*"; }
show() { printf '$ hola %s\n' "$*"; $hola "$@"; }

say 'text to tokens: the sources and documents of this repository, as bytes'
git ls-files 'src/*.c' 'src/*.h' 'docs/*.md' 2>/dev/null | grep -v table > "$out/files" || true
[ -s "$out/files" ] || find src docs -name '*.[ch]' -o -name '*.md' | grep -v table | sort > "$out/files"
# shellcheck disable=SC2046
$hola prepare -o "$out/data" --tokenizer byte --val 0.05 $(cat "$out/files")

for type in gated_deltanet hola; do
    cat > "$out/$type.json" <<JSON
{"model_type": "$type", "hidden_size": 128, "num_hidden_layers": 3, "num_heads": 2, "head_dim": 64, "expand_v": 1,
 "intermediate_size": 256, "vocab_size": 258, "tie_word_embeddings": true, "max_position_embeddings": 512,
 "bos_token_id": 256, "eos_token_id": 257}
JSON
    say "train $type, $steps steps of 4096 bytes"
    $hola train --data "$out/data" --out "$out/$type" --config "$out/$type.json" --steps "$steps" --batch-tokens 4096 \
        --seq-len 512 --lr 3e-3 --warmup 15 --eval-every "$steps" --eval-tokens 65536 --save-every "$steps" -s 1
done

say 'held-out loss per byte (nats); the curves are in one picture'
for type in gated_deltanet hola; do
    sed -n 's/.*"val_loss": *\([0-9.]*\).*/\1/p' "$out/$type/metrics.jsonl" | tail -n 1 | sed "s/^/$type: /"
done
show plot "$out/gated_deltanet" "$out/hola" -o "$out/curves.html"

say 'a text it has not seen, scored in one pass and byte by byte: the same numbers'
head -c 4000 Makefile > "$out/text"
for mode in prefill decode; do
    echo "-- $mode"
    $hola score -m "$out/hola/latest" --tokenizer byte -f "$out/text" --mode $mode
done

say 'what is in the model'
$hola inspect -m "$out/hola/latest" | tail -n 8
echo
echo "open $out/curves.html for the training curves"
