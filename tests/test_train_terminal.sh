#!/bin/bash
# test_train_terminal.sh -- hola train on terminals of 60, 80 and 200 columns, its settings files, the vocabulary of
# presets, TensorBoard's own reader, benchmarks while it trains.
. "${0%/*}/common.sh"

cat >"$dir/c.json" <<END
{"model_type": "hola", "hidden_size": 32, "num_hidden_layers": 2, "num_heads": 2, "head_dim": 16, "expand_v": 1,
 "intermediate_size": 48, "vocab_size": 258, "tie_word_embeddings": true, "cache_window": 4, "cache_chunk": 16}
END
for i in $(seq 150); do echo "line $i of a text: $((i * i)) is the square of $i, and $((i * 7)) is seven times it."; done >"$dir/a.txt"
ok "$hola" prepare -o "$dir/data" --tokenizer byte --split-lines --val 0.1 "$dir/a.txt"

# ---- a terminal ----

if command -v python3 >/dev/null; then
    checks=$((checks + 1))
    python3 "${0%/*}/train_terminal.py" "$hola" "$dir" >"$dir/text" || bad "$(cat "$dir/text")"
else
    echo 'SKIP terminal: no python3'
fi

# ---- settings from a file ----

small="--batch-tokens 128 --seq-len 32 -t 1"
cat >"$dir/run.toml" <<END
# a run
data = "$dir/data"   # where
out = '$dir/toml'
config = "$dir/c.json"
steps = 1_0
batch-tokens = 128
seq-len = 32
threads = 1
lr = 3e-3
documents = true
END
ok "$hola" train --config "$dir/run.toml" --steps 2
check 'the command line wins, the file gives the rest' [ "$(wc -l <"$dir/toml/metrics.jsonl")" = 2 ]
ok grep -q '"documents": true' "$dir/toml/run.json"
ok grep -q '"lr": 0.003' "$dir/toml/settings.json"
ok "$hola" train --config "$dir/toml/settings.json" --out "$dir/again"
check 'settings.json repeats the run' cmp -s "$dir/toml/latest/model.safetensors" "$dir/again/latest/model.safetensors"
ok "$hola" train --config "$dir/run.toml" --steps 2 --documents=false --out "$dir/flag"
ok grep -q '"documents": false' "$dir/flag/run.json"
wrong() { # STATUS TEXT LINE...: a file with this line
    want=$1 text=$2
    shift 2
    printf '%s\n' "$@" >"$dir/bad.toml"
    refused "$want" "$text" train --config "$dir/bad.toml" --data "$dir/data" --out "$dir/bad" --preset 46m
}
wrong 2 "bad.toml:2: unknown option 'stpes'" 'steps = 2' 'stpes = 3'
wrong 2 "bad.toml:1: unknown option 'batch_tokens'; it is called 'batch-tokens'" 'batch_tokens = 2'
wrong 2 "bad.toml:1: 'steps' takes an integer" 'steps = "2"'
wrong 2 "--steps takes an integer from 1" 'steps = 0'
wrong 1 'bad.toml:2: sections are not supported' '' '[model]'
wrong 1 'bad.toml:3: '"'steps' is already given in line 1" 'steps = 2' '' 'steps = 3'
wrong 1 'bad.toml:1: an unterminated string' 'data = "x'
printf '{"data": "%s",\n "stpes": 3}' "$dir/data" >"$dir/bad.json"
refused 2 "bad.json:2: unknown option 'stpes'" train --config "$dir/bad.json" --out "$dir/bad" --preset 46m
refused 2 "'47m' is unknown" train --data "$dir/data" --out "$dir/bad" --preset 47m
refused 2 '--batch-tokens 512 must be a multiple of --seq-len 10000000' train --data "$dir/data" --out "$dir/bad" --preset 46m \
    --batch-tokens 512 --seq-len 10000000
check 'nothing is left of a refused run' [ ! -e "$dir/bad" ]

# ---- a preset's vocabulary ----

"$hola" train --data "$dir/data" --out "$dir/vocab" --preset 46m --max-memory 0.01 --batch-tokens 2048 >"$dir/out" 2>"$dir/err"
check 'too little memory' [ $? = 1 ]
ok grep -q '^vocabulary: 258 tokens, the tokenizer.s (the preset has 32,000)$' "$dir/err"
ok grep -q '^hola: this run needs .* GB of memory, 0.01 GB are available: .* only a smaller model fits' "$dir/err"
ok "$hola" init -o "$dir/new" --preset 46m --tokenizer byte --dtype bf16
ok grep -q '"vocab_size": 258' "$dir/new/config.json"
ok test -e "$dir/new/tokenizer.json"
sed 's/258/100/' "$dir/c.json" >"$dir/few.json"
refused 1 'more than the vocabulary of 100' init -o "$dir/newer" --tokenizer byte --config "$dir/few.json"

# ---- benchmarks and TensorBoard ----

mkdir -p "$dir/bench/lambada"
for i in 1 2 3 4 5 6; do
    echo "{\"text\": \"The square of $i is written here as $((i * i)) and it is seven\"}"
done >"$dir/bench/lambada/lambada_test.jsonl"
board() { # STEPS OPTIONS...
    n=$1
    shift
    "$hola" train --data "$dir/data" --out "$dir/board" --config "$dir/c.json" $small --steps "$n" --schedule constant \
        --warmup 1 --eval-every 2 --eval-tokens 64 --tensorboard --save-every 3 "$@" 2>"$dir/err" >"$dir/out"
}
tasks="--eval-tasks lambada_openai --eval-data $dir/bench --eval-limit 4"
ok board 4 $tasks
ok grep -q '"eval": {"lambada_openai/' "$dir/board/metrics.jsonl"
ok grep -q '^  lambada_openai/' "$dir/err"
check 'at steps 2 and 4' [ "$(grep -c '"eval"' "$dir/board/metrics.jsonl")" = 2 ]
refused 2 "unknown task 'nonsense'" train --data "$dir/data" --out "$dir/bad" --config "$dir/c.json" $small --eval-tasks nonsense
refused 2 'needs --eval-data DIR' train --data "$dir/data" --out "$dir/bad" --config "$dir/c.json" $small --eval-tasks lambada_openai
check 'benchmarks change nothing' board 4
ok "$hola" train --data "$dir/data" --out "$dir/alone" --config "$dir/c.json" $small --steps 4 --schedule constant --warmup 1
check 'benchmarks change nothing' cmp -s "$dir/board/latest/model.safetensors" "$dir/alone/latest/model.safetensors"
rm "$dir/board/latest" && ln -s checkpoints/step-00000003 "$dir/board/latest" # step 4 is taken back
ok board 6 $tasks
check 'two files of events' [ "$(ls "$dir/board/tb" | wc -l)" = 2 ]
python=${HOLA_TEST_PYTHON:-python3}
if "$python" -c 'import tensorboard' 2>/dev/null; then
    checks=$((checks + 1))
    "$python" - "$dir/board/tb" "$dir/board/metrics.jsonl" >"$dir/text" 2>&1 <<'END' || bad "TensorBoard: $(cat "$dir/text")"
import json, sys
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
a = EventAccumulator(sys.argv[1])
a.Reload()
lines = [json.loads(x) for x in open(sys.argv[2])]
def same(tag, field):
    got = {e.step: e.value for e in a.Scalars(tag)}
    want = {x["step"]: x[field] for x in lines if field in x}
    assert got.keys() == want.keys(), (tag, got, want)
    assert len(a.Scalars(tag)) == len(want), (tag, a.Scalars(tag))
    for k in want: assert abs(got[k] - want[k]) <= 1e-4 * abs(want[k]), (tag, k, got[k], want[k])
for tag, field in (("train/loss", "loss"), ("train/lr", "lr"), ("train/grad_norm", "grad_norm"),
                   ("train/tok_per_s", "tok_per_s"), ("val/loss", "val_loss")):
    same(tag, field)
assert any(t.startswith("eval/lambada_openai/") for t in a.Tags()["scalars"]), a.Tags()
END
else
    echo "SKIP TensorBoard: $python has no tensorboard"
fi

finish
