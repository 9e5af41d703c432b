#!/bin/bash
# test_train.sh -- hola train as its users meet it: stopped, killed, short of disk, asked for nonsense.
. "${0%/*}/common.sh"

config() { # FILE WIDTH VOCAB
    cat >"$1" <<END
{"model_type": "hola", "hidden_size": $2, "num_hidden_layers": 2, "num_heads": 2, "head_dim": 16, "expand_v": 1,
 "intermediate_size": 48, "vocab_size": $3, "tie_word_embeddings": true, "cache_window": 4, "cache_chunk": 16}
END
}
config "$dir/c.json" 32 258
for i in $(seq 150); do echo "line $i of a text: $((i * i)) is the square of $i, and $((i * 7)) is seven times it."; done >"$dir/a.txt"
ok "$hola" prepare -o "$dir/data" --tokenizer byte --split-lines --val 0.1 "$dir/a.txt"

steps=12
# train OUT [OPTIONS...]; what it says goes to $dir/err. exec=exec train ... & makes $! the program itself.
exec=
train() {
    out=$1
    shift
    $exec "$hola" train --data "$dir/data" --out "$dir/$out" --config "$dir/c.json" --steps $steps --batch-tokens 128 \
        --seq-len 32 --micro-tokens 64 --lr 3e-3 --eval-every 4 --eval-tokens 256 --save-every 1 -t 1 "$@" 2>"$dir/err"
}
# expect STATUS TEXT OUT [OPTIONS...]: one line on stderr holds TEXT
expect() {
    want=$1 text=$2
    shift 2
    checks=$((checks + 1))
    train "$@" >"$dir/text"
    got=$?
    [ $got = "$want" ] || bad "train $*: status $got, not $want: $(cat "$dir/err")"
    [ "$(grep -c '^hola: ' "$dir/err")" = 1 ] || bad "train $*: not one line: $(cat "$dir/err")"
    grep -qF -e "$text" "$dir/err" || bad "train $*: no '$text' in: $(cat "$dir/err")"
}
# the config's special tokens are not the dataset's: it says so, and trains
train tokens --steps 1
check 'bos and eos' grep -qF 'c.json: bos and eos are 1 and 2 there, 256 and 257 in the dataset' "$dir/err"
# the curve without what the clock says
curve() { sed 's/"tok_per_s": [^,]*, "seconds": [^,]*, //' "$dir/$1/metrics.jsonl"; }
same() { # A B: two ways to one result
    checks=$((checks + 1))
    [ "$(curve "$1")" = "$(curve "$2")" ] || bad "the curves of $1 and $2 differ: $(diff <(curve "$1") <(curve "$2") | head -4)"
    cmp -s "$dir/$1/latest/model.safetensors" "$dir/$2/latest/model.safetensors" || bad "the weights of $1 and $2 differ"
}

# ---- a run and what it leaves ----

ok train whole
ok test "$(wc -l <"$dir/whole/metrics.jsonl")" = $steps
ok grep -q '"step": 12, "tokens": 1536, "loss": [0-9.]*, "lr": [0-9.e-]*, "grad_norm": [0-9.]*, "tok_per_s": [0-9.]*, "seconds": [0-9.]*, "val_loss": [0-9.]*' "$dir/whole/metrics.jsonl"
ok grep -q '^step 12/12 | loss ' "$dir/err"
ok test "$(ls "$dir/whole/checkpoints" | wc -l)" -le 4
ok test "$(readlink "$dir/whole/latest")" = checkpoints/step-00000012
ok test -e "$dir/whole/best/training.safetensors"
ok grep -q '<svg' "$dir/whole/plot.html"
echo '[256, 108, 105, 110, 101, 32]' >"$dir/ids"
ok "$hola" score -m "$dir/whole/best" --ids "$dir/ids"
ok "$hola" inspect -m "$dir/whole/latest"
ok train whole # nothing left to do
cp -r "$dir/whole" "$dir/copy"
same whole copy

# ---- signals ----

# wait_for OUT STEP: until the step's line is there
wait_for() { for _ in $(seq 2000); do grep -q "\"step\": $2," "$dir/$1/metrics.jsonl" 2>/dev/null && return; sleep 0.01; done; }
for signal in TERM INT; do
    steps=400
    exec=exec train $signal --save-every 1000 --schedule constant --warmup 2 &
    job=$!
    wait_for $signal 3
    kill -$signal $job
    wait $job
    ok test $? = 0
    ok grep -q '^stopped at step [0-9]*; the same command resumes$' "$dir/err"
    stopped=$(sed -n 's/^stopped at step \([0-9]*\);.*/\1/p' "$dir/err")
    ok test "$(readlink "$dir/$signal/latest")" = "checkpoints/$(printf 'step-%08d' "$stopped")"
done
steps=12

# ---- killed at any moment ----

steps=24 kills=0
ok train long --save-every 100
for i in 1 2 3 4 5 6; do
    exec=exec train killed >"$dir/out" &
    job=$!
    wait_for killed $((i * 3)) # then some milliseconds into what follows: a step, a checkpoint, the pruning of old ones
    sleep 0.0$((RANDOM % 3))$((RANDOM % 10))
    kill -9 $job
    wait $job
    [ $? = 137 ] && kills=$((kills + 1))
    if [ -e "$dir/killed/latest" ]; then ok "$hola" inspect -m "$dir/killed/latest"; fi
done 2>/dev/null
ok test $kills -ge 3
ok train killed
same long killed
ok test -z "$(find "$dir/killed" -name '.*')"
steps=12
# as kill -9 in the middle of a checkpoint leaves it
ok train torn --steps 8 --schedule constant --warmup 1
mkdir "$dir/torn/checkpoints/.step-00000009.tmp"
echo x >"$dir/torn/checkpoints/.step-00000009.tmp/model.safetensors"
echo '{"step": 9, "tok' >>"$dir/torn/metrics.jsonl"
ok train torn --steps 11 --schedule constant --warmup 1
ok train straight --steps 11 --schedule constant --warmup 1
same straight torn
ok test ! -e "$dir/torn/checkpoints/.step-00000009.tmp"

# ---- a full disk ----

checks=$((checks + 1))
(ulimit -f 20 && train full --save-every 4)
got=$?
[ $got = 1 ] || bad "full disk: status $got"
grep -q 'step 4: no checkpoint: .*; training continues' "$dir/err" || bad "full disk: $(cat "$dir/err")"
ok test "$(wc -l <"$dir/full/metrics.jsonl")" = $steps
ok test ! -e "$dir/full/latest"
ok test -z "$(ls -A "$dir/full/checkpoints")"
ok train full --save-every 4 # room again
same whole full

# ---- FP8: a run of its own ----

ok train fp8 --precision fp8
ok grep -q '"precision": "fp8"' "$dir/fp8/run.json"
checks=$((checks + 1))
[ "$(curve fp8)" != "$(curve whole)" ] || bad 'FP8 changes nothing'
ok train stopped8 --precision fp8 --keep 12
rm -rf "$dir/stopped8/latest" "$dir"/stopped8/checkpoints/step-000000{08,09,10,11,12}
ok train stopped8 --precision fp8 # as after a crash
ok grep -q 'resuming at step 7' "$dir/err"
same fp8 stopped8
expect 1 'has precision unset, not "fp8"' whole --precision fp8
expect 1 'has precision "fp8", not unset' fp8
sed -i 's/"intermediate_size": 48/"intermediate_size": 40/' "$dir/c.json"
ok train odd8 --precision fp8
ok grep -q '6 of 16 large matrices are not in FP8: their sizes are not multiples of 16' "$dir/err"
config "$dir/c.json" 32 258
refused 2 '--precision fp8 is of training only' bench --precision fp8 --infer-only
refused 2 'either --preset NAME or --config FILE' bench --preset 46m --config "$dir/c.json"
"$hola" bench --config "$dir/c.json" --quick --train-only --recompute -t 1 --model-type gated_deltanet --json \
    >"$dir/text" 2>"$dir/err" || bad "bench --config: $(cat "$dir/err")"
ok grep -q '"model_type": "gated_deltanet"' "$dir/text"

# ---- BF16: another one ----

ok train bf16 --precision bf16
ok grep -q '"precision": "bf16"' "$dir/bf16/run.json"
checks=$((checks + 1))
[ "$(curve bf16)" != "$(curve whole)" ] && [ "$(curve bf16)" != "$(curve fp8)" ] || bad 'BF16 changes nothing'
ok train stopped16 --precision bf16 --keep 12
rm -rf "$dir/stopped16/latest" "$dir"/stopped16/checkpoints/step-000000{08,09,10,11,12}
ok train stopped16 --precision bf16 # as after a crash
ok grep -q 'resuming at step 7' "$dir/err"
same bf16 stopped16
expect 1 'has precision unset, not "bf16"' whole --precision bf16
expect 1 'has precision "bf16", not "fp8"' bf16 --precision fp8
refused 2 "takes one of auto, bf16, fp8, not 'bf17'" train --precision bf17
refused 2 "takes one of auto, bf16, not 'fp8'" score --precision fp8

# ---- wrong inputs ----

expect 1 'has lr 0.003, not 0.001' whole --lr 1e-3
expect 1 'has seed 0, not 7' whole -s 7
expect 1 'has seq_len 32, not 64' whole --seq-len 64
expect 1 'has batch_tokens 128, not 256' whole --batch-tokens 256
expect 1 'has steps 12, not 13' whole --steps 13
expect 1 'has schedule "cosine", not "linear"' whole --schedule linear
expect 1 'has documents false, not true' whole --documents
config "$dir/c.json" 48 258
expect 1 'has hidden_size 32, not 48' whole
config "$dir/c.json" 32 100
expect 1 "its tokenizer has 258 tokens, the model's vocabulary only 100" other
mv "$dir/data/dataset.json" "$dir/dataset.json"
expect 1 'train_000000.bin' other # an id that is not in the vocabulary
mv "$dir/dataset.json" "$dir/data/dataset.json"
config "$dir/c.json" 32 258
expect 1 'no train shards' other --data "$dir"
expect 2 '--batch-tokens 100 must be a multiple of --seq-len 32' other --batch-tokens 100
expect 1 'less than one row' other --seq-len 65536 --batch-tokens 65536
expect 2 '--warmup 13 is longer than the run of 12 steps' other --warmup 13
expect 2 "unknown option '--nonsense'" other --nonsense
checks=$((checks + 1))
"$hola" train --data x --out y 2>"$dir/err"
[ $? = 2 ] && grep -q 'one of --recipe' "$dir/err" || bad "train without a model: $(cat "$dir/err")"
cp -r "$dir/whole" "$dir/mixed" # a checkpoint of another model
config "$dir/wide.json" 48 258
ok "$hola" init -o "$dir/mixed/checkpoints/step-00000012" --config "$dir/wide.json" --force
expect 1 'another model' mixed
rm "$dir/whole/checkpoints/step-00000012/training.json"
expect 1 'training.json' whole

# ---- begin anew ----

ok train copy --restart --lr 1e-3
ok test "$(wc -l <"$dir/copy/old-1/metrics.jsonl")" = $steps
ok test -e "$dir/copy/old-1/latest/model.safetensors"
ok train copy --lr 1e-3
# with the weights of another run
ok "$hola" train --data "$dir/data" --out "$dir/tuned" -m "$dir/copy/best" --steps 2 --batch-tokens 128 --seq-len 32 --documents -t 1

# ---- plots ----

ok "$hola" plot "$dir/copy" "$dir/straight/metrics.jsonl" -o "$dir/p.html"
ok "$hola" plot "$dir/copy" -o "$dir/p.svg"
ok grep -q '^<svg' "$dir/p.svg"
echo nonsense >>"$dir/copy/metrics.jsonl"
ok grep -q '1 malformed lines skipped' <("$hola" plot "$dir/copy" -o "$dir/p.svg")
checks=$((checks + 1))
"$hola" plot "$dir/nowhere" -o "$dir/p.svg" 2>/dev/null && bad 'plot of nothing'
wait

finish
