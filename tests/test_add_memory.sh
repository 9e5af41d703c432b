#!/bin/bash
# test_add_memory.sh -- hola train -m of a model without an exact memory as one with it: the same outputs to the bit
# before it is trained, and ways to train the memory's tensors: alone, at their own rate and decay, in some layers.
. "${0%/*}/common.sh"

cat >"$dir/c.json" <<END
{"model_type": "gated_deltanet", "hidden_size": 32, "num_hidden_layers": 3, "num_heads": 2, "head_dim": 16, "expand_v": 1,
 "intermediate_size": 48, "vocab_size": 258, "tie_word_embeddings": true, "initializer_range": 0.1}
END
for i in $(seq 150); do echo "line $i of a text: $((i * i)) is the square of $i, and $((i * 7)) is seven times it."; done >"$dir/a.txt"
ok "$hola" prepare -o "$dir/data" --tokenizer byte --split-lines --val 0.1 "$dir/a.txt"
# train OUT STEPS [OPTIONS...]
train() {
    out=$1 steps=$2
    shift 2
    "$hola" train --data "$dir/data" --out "$dir/$out" --steps "$steps" --batch-tokens 2048 --seq-len 512 --lr 3e-3 \
        --warmup 0 --eval-every 100 --save-every 2 -t 1 --backend cpu "$@" >"$dir/out" 2>"$dir/err"
}
ok train gdn 4 --config "$dir/c.json"
gdn=$dir/gdn/latest/

# ---- the same outputs ----

head -c 1500 "$dir/a.txt" >"$dir/text"
score() { "$hola" score -m "$1" --tokenizer byte -f "$dir/text" --backend "$2" --mode "$3" --json; }
for how in "--model-type hola" --add-memory; do
    rm -rf "$dir/start"
    ok train start 1 -m "$gdn" $how --lr 0 # a step that moves nothing
    check "$how: a hola model" grep -q '"model_type": "hola"' "$dir/start/latest/config.json"
    check "$how: a linear gate" grep -q '"cache_gate_linear": true' "$dir/start/latest/config.json"
done
for backend in cpu cpu-ref cpu-base; do
    for mode in prefill decode; do
        check "$backend, $mode: the same bits" [ "$(score "$gdn" $backend $mode)" = "$(score "$dir/start/latest/" $backend $mode)" ]
    done
done
ok train opened 3 -m "$gdn" --add-memory
check "it is trained" [ "$(score "$gdn" cpu prefill)" != "$(score "$dir/opened/latest/" cpu prefill)" ]

# ---- what is trained ----

command -v python3 >/dev/null || { echo "SKIP what is trained: there is no python3 here" && finish && exit; }
# moved A B: the tensors that differ, without model.layers.
moved() {
    python3 - "$1" "$2" <<'PY'
import json, struct, sys
def tensors(path):
    raw = open(path + "/model.safetensors", "rb").read()
    n, = struct.unpack("<Q", raw[:8])
    return {k: raw[8 + n + v["data_offsets"][0]:8 + n + v["data_offsets"][1]]
            for k, v in json.loads(raw[8:8 + n]).items() if k != "__metadata__"}
a, b = map(tensors, sys.argv[1:3])
print(*sorted(k.replace("model.layers.", "") for k in b if a.get(k) != b[k]))
PY
}
memory() { for l in "$@"; do echo $l.attn.cache_{gate,k_norm.weight,q_norm.weight,sink}; done | xargs; }
ok train only 4 -m "$gdn" --add-memory --train-only memory
moved "$dir/start/latest" "$dir/only/latest" | tr ' ' '\n' >"$dir/names"
check "the memory alone moves" [ "$(grep -vc 'attn\.cache_' "$dir/names") $(grep -c cache_gate "$dir/names")" = "0 3" ]
check "its gradients alone are clipped" grep -q '"grad_norm": 0\.[0-9]*,' "$dir/only/metrics.jsonl"
cp -r "$dir/only" "$dir/again" && rm -r "$dir/again/checkpoints/step-00000004" && ln -sfn checkpoints/step-00000002 "$dir/again/latest"
ok train again 4 -m "$gdn" --add-memory --train-only memory
check "resumed to the same weights" cmp -s "$dir/only/latest/model.safetensors" "$dir/again/latest/model.safetensors"
train again 4 -m "$gdn" --add-memory && bad "another run in the same directory"
check "it is named" grep -q 'train_only' "$dir/err"

sed 's/gated_deltanet/hola/; s/"vocab/"cache_window": 4, "cache_chunk": 16, "vocab/' "$dir/c.json" >"$dir/h.json"
ok train plain 3 --config "$dir/h.json"
ok train one 3 --config "$dir/h.json" --memory-lr 1
check "a rate of one, decay as it was: the same" cmp -s "$dir/plain/latest/model.safetensors" "$dir/one/latest/model.safetensors"
ok train fast 1 --config "$dir/h.json" --memory-lr 10 --memory-decay 0
ok train slow 1 --config "$dir/h.json"
gate() {
    "$hola" inspect -m "$1" --memory --tokenizer byte -f "$dir/text" --backend cpu --json >"$dir/view"
    grep -o '"gate": [0-9.e-]*' "$dir/view" | cut -d' ' -f2 | xargs
}
check "its own rate" [ "$(moved "$dir/slow/latest" "$dir/fast/latest")" = "$(memory 0 1 2)" ]
ok train some 3 --config "$dir/h.json" --memory-layers 1
check "closed for good in the others" [ "$(gate "$dir/some/latest" | awk '{ print ($1 == 0) ($2 == 0) ($3 > 0) ($4 > 0) ($5 == 0) ($6 == 0) }')" = 111111 ]

# ---- wrong input ----

denied() { # TEXT ARGS...: of train
    text=$1
    shift
    checks=$((checks + 1)) && rm -rf "$dir/nothing"
    train nothing 2 "$@" && bad "train $*: it went on"
    grep -q "^hola: .*$text" "$dir/err" || bad "train $*: $(cat "$dir/err")"
}
denied 'has an exact memory already' -m "$dir/start/latest" --add-memory
denied 'which cannot become a delta_net' -m "$gdn" --model-type delta_net
denied 'no exact memory that could be trained' -m "$gdn" --train-only memory
denied 'not a list of layers from 0 to 2' --config "$dir/h.json" --memory-layers 1,3
denied 'add-memory needs -m' --config "$dir/h.json" --add-memory

finish
