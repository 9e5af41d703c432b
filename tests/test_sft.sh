#!/bin/bash
# test_sft.sh -- fine-tuning on conversations as its users meet it: what is read and refused, that the model answers, that
# any slicing, stop or number of ranks gives the same run.
. "${0%/*}/common.sh"
tiny=${0%/*}/../models/hola-tiny
byte='--tokenizer byte'
row() { printf '%s\n' "$@" >"$dir/rows.jsonl"; }
takes() { # TEXT ARGS...: hola prepare of the rows, which prints TEXT
    text=$1
    shift
    "$hola" prepare --force -o "$dir/d" $byte --val 0 "$@" "$dir/rows.jsonl" >"$dir/out" 2>"$dir/err"
    ended "prepare $*" $? 0
    noted "prepare $*" "$text"
}
refuses() { refused 1 "$@" ; }
is() { # GOT WANT
    checks=$((checks + 1))
    [ "$1" = "$2" ] || bad "'$1' is not '$2'"
}
good='{"messages": [{"role": "user", "content": "Q"}, {"role": "assistant", "content": "A"}]}'

# ---- rows of all kinds: one line that names the row, or counted ----

bad_row() { # TEXT ROW
    row "$good" "$2"
    refused 1 "$dir/rows.jsonl: line 2: $1" prepare -o "$dir/no" $byte --format chat "$dir/rows.jsonl"
    takes '1 malformed lines skipped' --format chat --skip-bad
}
bad_row 'messages[0]: no "role"' '{"messages": [{"content": "x"}]}'
bad_row 'messages[0]: "role" is not a text' '{"messages": [{"role": 5, "content": "x"}]}'
bad_row 'messages[1]: role "tool\n" is none of' '{"messages": [{"role": "user", "content": "x"}, {"role": "tool\n", "content": "x"}]}'
bad_row 'messages[0]: role "text" is none of' '{"messages": [{"role": "text", "content": "x"}]}'
bad_row 'messages[0]: no "content"' '{"messages": [{"role": "user"}]}'
bad_row 'messages[0]: "content" is neither a text nor' '{"messages": [{"role": "user", "content": null}]}'
bad_row 'messages[0]: "content" is neither a text nor' '{"messages": [{"role": "user", "content": [{"type": "image", "text": "x"}]}]}'
bad_row 'messages[0]: "weight" is neither 0 nor 1' '{"messages": [{"role": "assistant", "content": "x", "weight": 0.5}]}'
bad_row 'messages[0]: not an object' '{"messages": ["x"]}'
bad_row '"messages" is not a list' '{"messages": "x"}'
bad_row '"prompt" is not a text' '{"prompt": 1, "completion": "x"}'
bad_row '"completion" is not a text' '{"prompt": "x", "completion": ["x"]}'
bad_row 'no field "completion"' '{"prompt": "x"}'
bad_row 'no field "prompt"' '{"completion": "x"}'
bad_row 'neither "messages" nor "prompt" and "completion"' '{"text": "x"}'
bad_row 'not a JSON object' '[1]'
bad_row 'unable to decode byte 0xff' $'{"prompt": "\xff", "completion": "x"}'
bad_row "'}' expected" '{"messages": [{"role": "user"'
row "$good" '{"messages": []}' '{"messages": [{"role": "system", "content": "only"}]}' \
    '{"messages": [{"role": "user", "content": "x"}, {"role": "assistant", "content": ""}]}' \
    '{"messages": [{"role": "user", "content": "x"}, {"role": "assistant", "content": "y", "weight": 0}]}'
takes 'left out: 4 conversations without an answer' --format chat
takes '1 answer' --chat-template chatml
row "${good/\"A\"/\"\"}"
refused 1 'no conversation with an answer in it' prepare -o "$dir/no" $byte --format chat "$dir/rows.jsonl"
refused 1 'no field "text"; --format chat reads conversations' prepare -o "$dir/no" $byte "$dir/rows.jsonl"
row "$good"
refused 1 '"messages" need a chat template' prepare -o "$dir/no" $byte --chat-template none "$dir/rows.jsonl"
refused 1 "$dir/nowhere: No such file" prepare -o "$dir/no" $byte --chat-template "$dir/nowhere" "$dir/rows.jsonl"
refused 1 'chat template nope: no such file, and none of plain,' prepare -o "$dir/no" $byte --chat-template nope "$dir/rows.jsonl"
refused 2 'are for conversations' prepare -o "$dir/no" $byte --format jsonl --loss-on all "$dir/rows.jsonl"
echo '{"system": ["", ""], "user": ["", ""], "assistant": ["", ";"]}' >"$dir/endless.json"
refused 1 'nothing tells where an answer ends' prepare -o "$dir/no" $byte --chat-template "$dir/endless.json" "$dir/rows.jsonl"
check 'nothing is left of what failed' test ! -e "$dir/no"
# OpenAI's other fields, parts, and the role developer; prompt and completion are a question and its answer
row '{"messages": [{"role": "developer", "content": "S", "name": "n"}, {"role": "user", "content": [{"type": "text", "text": "Q"}]}, {"role": "assistant", "content": "A"}], "tools": []}'
takes 'chat template: chatml' --chat-template chatml
cp "$dir/d/train_000000.bin" "$dir/a.bin"
row '{"messages": [{"role": "system", "content": "S"}, {"role": "user", "content": "Q"}, {"role": "assistant", "content": "A"}]}'
takes 'chat template: chatml' --chat-template chatml
ok cmp "$dir/a.bin" "$dir/d/train_000000.bin"
takes 'trained: 95 tokens (100.0 %)' --chat-template chatml --loss-on all
row "$good"
takes 'trained: 8 tokens' --format chat # A, two line feeds, User:
cp "$dir/d/train_000000.bin" "$dir/a.bin"
row '{"prompt": "Q", "completion": "A"}'
takes 'chat template: plain (the tokenizer names none' --format chat
ok cmp "$dir/a.bin" "$dir/d/train_000000.bin"
takes 'trained: 2 tokens' --chat-template none # A and EOS
check 'a set of no template has no template' test ! -e "$dir/d/hola_chat.json"
# a set of text in its place: as it always was
printf 'some text' >"$dir/t.txt"
ok "$hola" prepare --force -o "$dir/d" $byte --val 0 "$dir/t.txt"
is "$(head -c 16 "$dir/d/train_000000.bin" | od -An -v -td4 | tr -s ' ')" ' 20240520 1 10 0'
is "$(cksum <"$dir/d/train_000000.bin")" "$({ printf '\210\330\064\001\001\0\0\0\012\0\0\0' && head -c 1012 /dev/zero &&
    printf '\000\001s\0o\0m\0e\0 \0t\0e\0x\0t\0'; } | cksum)"

# ---- a run: the model learns to answer ----

things='grass green,snow white,blood red,coal black,a lemon yellow,a carrot orange'
printf '%s\n' "$things" | tr ',' '\n' | while read -r line; do
    thing=${line% *} colour=${line##* }
    for ask in 'What colour is' 'Tell me the colour of' 'Do you know the colour of'; do
        printf '{"messages": [{"role": "user", "content": "%s %s?"}, {"role": "assistant", "content": "It is %s."}]}\n' \
            "$ask" "$thing" "$colour"
    done
done >"$dir/talk.jsonl"
ok "$hola" prepare -o "$dir/sft" --tokenizer "$tiny" --format chat --val 0 "$dir/talk.jsonl"
train="--data $dir/sft --seq-len 96 --batch-tokens 384 --lr 1e-3 --epochs 24 --save-every 10 -t 2 --log-every 1000"
ok "$hola" train -m "$tiny" $train -o "$dir/run"
check 'the template goes along' grep -q plain "$dir/run/best/hola_chat.json"
for q in 'What colour is snow?=white' 'Do you know the colour of coal?=black' 'Tell me the colour of a lemon?=yellow'; do
    is "$("$hola" generate -m "$dir/run/best" --chat -p "${q%=*}" --temp 0 -q -n 40 2>&1)" "It is ${q#*=}."
done
is "$("$hola" generate -m "$tiny" --chat -p 'What colour is snow?' --temp 0 -q -n 40 2>/dev/null | grep -c 'It is white')" 0
refused 2 'takes one question' generate -m "$dir/run/best" --chat -i
# the server answers in the same template, which the model names
if command -v python3 >/dev/null; then
    "$hola" serve -m "$dir/run/best" --port 0 >"$dir/served" 2>&1 &
    server=$!
    for _ in $(seq 100); do grep -q listening "$dir/served" && break || sleep 0.1; done
    port=$(sed -n 's/.*:\([0-9]*\)$/\1/p' "$dir/served" | head -n 1)
    python3 - "$port" >"$dir/said" 2>&1 <<'END'
import json, sys, urllib.request
ask = {"messages": [{"role": "user", "content": "What colour is blood?"}], "temperature": 0, "max_tokens": 40}
url = f"http://127.0.0.1:{sys.argv[1]}/v1/chat/completions"
r = urllib.request.Request(url, json.dumps(ask).encode(), {"Content-Type": "application/json"})
c = json.load(urllib.request.urlopen(r))["choices"][0]
print(c["message"]["content"].strip(), c["finish_reason"])
END
    is "$(cat "$dir/said")" 'It is red. stop'
    kill "$server"
    wait "$server"
fi

# ---- the same run in other slices, stopped and killed, on several ranks ----

losses() { sed 's/.*"loss":\([^,]*\),.*/\1/' "$1/metrics.jsonl"; }
close() { # WHAT RUN: its losses are those of the run above, up to the order of sums
    checks=$((checks + 1))
    paste <(losses "$dir/run") <(losses "$2") | awk '{ d = $1 - $2; if (d < 0) d = -d; if (!(d <= 2e-4 * $1 + 2e-6)) bad++ }
        END { exit !(NR > 20 && !bad) }' || bad "$1: other losses"
}
short="--data $dir/sft --seq-len 96 --batch-tokens 384 --lr 1e-3 --steps 30 --save-every 5 -t 2 --log-every 1000"
ok "$hola" train -m "$tiny" $short -o "$dir/run" --restart
ok "$hola" train -m "$tiny" $short -o "$dir/slices" --micro-tokens 96
close 'slices' "$dir/slices"
"$hola" train -m "$tiny" $short -o "$dir/killed" >"$dir/out" 2>&1 &
pid=$!
for _ in $(seq 300); do [ -e "$dir/killed/checkpoints/step-00000010" ] && break || sleep 0.05; done
kill -9 "$pid" 2>/dev/null
wait "$pid" 2>/dev/null
ok "$hola" train -m "$tiny" $short -o "$dir/killed"
is "$(losses "$dir/killed")" "$(losses "$dir/run")"
ok cmp "$dir/killed/latest/model.safetensors" "$dir/run/latest/model.safetensors"
if command -v mpirun >/dev/null && "$hola" --help 2>&1 | grep -q train && ldd "$hola" | grep -q libmpi; then
    export ASAN_OPTIONS="$ASAN_OPTIONS:detect_leaks=0" # of MPI itself
    ok mpirun --allow-run-as-root --oversubscribe --bind-to none -n 2 "$hola" train -m "$tiny" $short -t 1 -o "$dir/ranks"
    close 'two ranks' "$dir/ranks"
else echo 'SKIP ranks: no MPI'
fi
# another mask on the same tokens is another run
ok "$hola" prepare --force -o "$dir/sft" --tokenizer "$tiny" --format chat --loss-on all --val 0 "$dir/talk.jsonl"
refused 1 'fingerprint' train -m "$tiny" $short -o "$dir/run"

# ---- what does not fit ----

"$hola" train -m "$tiny" --data "$dir/sft" --seq-len 16 --batch-tokens 64 --steps 1 -o "$dir/narrow" >"$dir/out" 2>"$dir/err"
check 'it says what a row does not hold' grep -q 'conversations longer than a row: 18;.* holds all' "$dir/err"
ok "$hola" prepare --force -o "$dir/d" $byte --format chat "$dir/talk.jsonl"
refused 1 "its tokenizer is not that of $tiny: token 0 is another one; prepare the data with --tokenizer $tiny" \
    train -m "$tiny" --data "$dir/d" -o "$dir/no"
refused 2 'only one of --steps and --epochs' train -m "$tiny" --data "$dir/sft" -o "$dir/no" --steps 3 --epochs 2
finish
