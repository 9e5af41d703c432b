#!/bin/sh
# test_generate.sh -- hola generate as its users meet it. The model is random, its bytes are
# no text, and that is part of the test.
. "${0%/*}/common.sh"
same() { # A B: two files have the same bytes
    checks=$((checks + 1))
    cmp -s "$dir/$1" "$dir/$2" || bad "$1 and $2 differ: $(head -c 200 "$dir/$1") | $(head -c 200 "$dir/$2")"
}
differ() {
    checks=$((checks + 1))
    cmp -s "$dir/$1" "$dir/$2" && bad "$1 and $2 are the same"
}
# expect STATUS TEXT ARGS...: a failure says so in one line that holds TEXT
expect() {
    want=$1 text=$2
    shift 2
    "$hola" generate "$@" >"$dir/out" 2>"$dir/err" </dev/null
    ended "hola generate $*" $? "$want" "$text"
}
run() { # FILE ARGS...: the result goes to FILE
    file=$1
    shift
    checks=$((checks + 1))
    "$hola" generate -m "$dir/m" --tokenizer byte -q "$@" >"$dir/$file" 2>"$dir/err" </dev/null ||
        bad "hola generate $*: status $?: $(cat "$dir/err")"
    [ -s "$dir/err" ] && bad "hola generate $*: noise: $(cat "$dir/err")"
}
ids() { sed 's/.*"ids": \[\([^]]*\)\].*/\1/' "$dir/$1" | tr -d ' ' | tr ',' '\n' >"$dir/$2"; }

config() { # FILE TYPE
    cat >"$1" <<END
{"model_type": "$2", "hidden_size": 48, "num_hidden_layers": 2, "num_heads": 2, "head_dim": 24, "expand_v": 1,
 "intermediate_size": 96, "vocab_size": 260, "tie_word_embeddings": true, "initializer_range": 0.2,
 "cache_window": 8, "cache_chunk": 32, "cache_gate_init": 0.0}
END
}
config "$dir/c.json" hola
"$hola" init -o "$dir/m" --config "$dir/c.json" -s 5 >/dev/null || exit 1
"$hola" init -o "$dir/other" --config "$dir/c.json" -s 6 >/dev/null || exit 1

# ---- the same text however it is asked for ----

g='--temp 0 --ignore-eos'
run a -p 'The state of a session' -n 60 $g
printf 'The state of a session\n' >"$dir/prompt"
run b -f "$dir/prompt" -n 60 $g
same a b
checks=$((checks + 1))
printf 'The state of a session' | "$hola" generate -m "$dir/m" --tokenizer byte -q -n 60 $g >"$dir/b" || bad 'a pipe'
same a b
run b -p 'The state of a session' -n 60 $g -t 1
same a b
ok test "$(wc -c <"$dir/a")" -ge 55 # ids above 255 have no byte
run json -p 'The state of a session' -n 60 $g --json
for field in prompt_tokens ids text tok_per_s prefill_tok_per_s memory_bytes; do ok grep -q "\"$field\": " "$dir/json"; done
ok grep -q '"prompt_tokens": 23,' "$dir/json" # a byte each, and BOS
ids json a.ids
ok test "$(wc -l <"$dir/a.ids")" = 60
printf '[256' >"$dir/p.json"
printf 'The state of a session' | od -An -v -tu1 | tr -s ' \n' '\n' | sed '/^$/d; s/^/,/' >>"$dir/p.json"
echo ']' >>"$dir/p.json"
run json --ids "$dir/p.json" -n 60 $g --json
ids json b.ids
same a.ids b.ids
run a -p x -n 50 -s 7 --ignore-eos
run b -p x -n 50 -s 7 --ignore-eos
same a b
run b -p x -n 50 -s 8 --ignore-eos
differ a b
run b -p x -n 50 -s 7 --ignore-eos --temp 2
differ a b
run b -p x -n 50 -s 7 --ignore-eos --repeat-penalty 3
differ a b
run a -p x -n 50 -s 7 --ignore-eos --top-k 1
run b -p x -n 50 --ignore-eos --temp 0
same a b
run b -p x -n 50 -s 7 --ignore-eos --top-p 0.0001 --top-k 0
same a b
run b -p x -n 50 -s 7 --ignore-eos --min-p 1 --top-k 0
same a b
printf 'x\377\376\000y\200' >"$dir/bytes" # no UTF-8: bytes are bytes
run a -f "$dir/bytes" -n 20 $g --json
ok grep -q '"prompt_tokens": 7,' "$dir/a"
run a -p '' -n 20 $g --json # BOS alone
ok grep -q '"prompt_tokens": 1,' "$dir/a"
run a -p x -n 0 --json
ok grep -q '"ids": \[\]' "$dir/a"

# ---- whole characters, stop strings ----

run json -p 'x' -n 300 -s 3 --ignore-eos --json
checks=$((checks + 1))
iconv -f UTF-8 -t UTF-16 "$dir/json" >/dev/null 2>&1 || bad 'JSON that is no UTF-8'
run a -p 'x' -n 300 -s 3 --ignore-eos
stop=$(LC_ALL=C tr -c 'A-Za-z' '\n' <"$dir/a" | grep '..' | sed -n 2p | cut -c 1-2) # two letters that come somewhere
run b -p 'x' -n 300 -s 3 --ignore-eos --stop nothing-such --stop "$stop"
ok test -n "$stop"
checks=$((checks + 1))
n=$(wc -c <"$dir/b")
[ "$(head -c "$n" "$dir/a" | od -An -tx1)" = "$(od -An -tx1 <"$dir/b")" ] || bad 'a stop string changes what comes before'
checks=$((checks + 1))
[ "$(tail -c +$((n + 1)) "$dir/a" | head -c 2)" = "$stop" ] || bad "the text was not cut at '$stop'"

# ---- sessions in files ----

head -c 3000 "$0" >"$dir/text"
run whole -f "$dir/text" -n 80 $g --json
run first -f "$dir/text" -n 30 $g --json --save-session "$dir/s"
run rest -p '' -n 50 $g --json --load-session "$dir/s"
ids whole whole.ids
{ ids first x && cat "$dir/x" && ids rest x && cat "$dir/x"; } >"$dir/both.ids"
same whole.ids both.ids
run whole -f "$dir/text" -n 80 --ignore-eos -s 9 --json
run first -f "$dir/text" -n 30 --ignore-eos -s 9 --json --save-session "$dir/s" # by chance, too
run rest -p '' -n 50 --ignore-eos --json --load-session "$dir/s"
ids whole whole.ids
{ ids first x && cat "$dir/x" && ids rest x && cat "$dir/x"; } >"$dir/both.ids"
same whole.ids both.ids
head -c 1024 "$dir/text" >"$dir/t1" # the prompt in two parts, no BOS between
tail -c +1025 "$dir/text" >"$dir/t2"
printf '\n' >>"$dir/t1"
run first -f "$dir/t1" -n 0 --save-session "$dir/s"
run rest -f "$dir/t2" -n 40 $g --load-session "$dir/s"
run whole -f "$dir/text" -n 40 $g
same whole rest
size=$(wc -c <"$dir/s")
run first -p x -n 0 --save-session "$dir/s1"
ok test "$size" = "$(wc -c <"$dir/s1")" # whatever the length
for type in bf16 f16; do
    run first -f "$dir/text" -n 0 --save-session "$dir/half" --session-dtype $type
    run rest -p '' -n 5 $g --load-session "$dir/half"
    ok test "$(wc -c <"$dir/half")" -lt "$((size * 2 / 3))"
done
m="-m $dir/m --tokenizer byte"
for keep in 0 1 8 100 128 5000 $((size - 1)); do
    head -c $keep "$dir/s" >"$dir/cut"
    expect 1 "$dir/cut" $m -p '' --load-session "$dir/cut"
done
{ cat "$dir/s" && echo; } >"$dir/cut"
expect 1 'cut off, or something added' $m -p '' --load-session "$dir/cut"
{ head -c 6000 "$dir/s" && printf x && tail -c +6002 "$dir/s"; } >"$dir/cut"
expect 1 'checksum' $m -p '' --load-session "$dir/cut"
expect 1 'of another model' -m "$dir/other" --tokenizer byte -p '' --load-session "$dir/s"
expect 1 'not a session' $m -p '' --load-session "$dir/m/model.safetensors"
expect 1 "$dir/none" $m -p '' --load-session "$dir/none"
"$hola" generate $m -p x -n 3 -q --save-session "$dir/nowhere/s" >/dev/null 2>"$dir/err"
ok test $? = 1
ok grep -q "^hola: $dir/nowhere/s: cannot write" "$dir/err"

# killed while it saves, over and over: the file is always whole
cp "$dir/s" "$dir/k"
for delay in 0.02 0.04 0.06 0.08 0.1 0.12; do
    "$hola" generate $m -f "$dir/text" -n 1 -q --save-session "$dir/k" >/dev/null 2>&1 &
    sleep $delay
    kill -9 $! 2>/dev/null
    wait $! 2>/dev/null
    expect 0 '' $m -p '' -n 1 -q --load-session "$dir/k"
done

# ---- many prompts at once: each as if alone ----

printf 'one\ntwo and more\n\nThe last one, without a line feed' >"$dir/prompts.txt"
printf '"one"\n{"prompt": "two and more"}\n{"text": ""}\n{"prompt": "The last one, without a line feed"}\n' >"$dir/prompts.jsonl"
for parallel in 1 2 16; do
    run all$parallel --prompts "$dir/prompts.txt" -n 40 -s 4 --parallel $parallel --json
    sed 's/"tok_per_s.*"position"/"position"/' "$dir/all$parallel" >"$dir/all.$parallel"
done
same all.1 all.2
same all.1 all.16
run b --prompts "$dir/prompts.jsonl" -n 40 -s 4 --json
sed 's/"tok_per_s.*"position"/"position"/' "$dir/b" >"$dir/a"
same all.1 a
run b -p 'two and more' -n 40 -s 4 --json
ids b x
sed -n 2p "$dir/all1" >"$dir/line"
ids line y
same x y
run a --prompts "$dir/prompts.txt" -n 40 -s 4 --temp 0 --stop e
ok test "$(wc -l <"$dir/a")" = 4 # one line in, one line out
run a --prompts "$dir/prompts.txt" -n 10 $g --load-session "$dir/s" --json # all go on from one
run b -p 'one' -n 10 $g --load-session "$dir/s" --json
head -n 1 "$dir/a" >"$dir/line"
ids line x
ids b y
same x y
printf '"x"\n{oops}\n' >"$dir/text.jsonl"
expect 1 'text.jsonl:2: not JSON' $m --prompts "$dir/text.jsonl"
printf '{"nothing": 1}\n' >"$dir/text.jsonl"
expect 1 'text.jsonl:1: neither' $m --prompts "$dir/text.jsonl"
: >"$dir/empty"
expect 1 'no prompts' $m --prompts "$dir/empty"

# ---- a conversation: the past is not read again, and can be taken back ----

printf 'hello\nand then\n' | "$hola" generate $m -i -n 12 -s 1 --ignore-eos -q >"$dir/chat" 2>"$dir/err"
ok test $? = 0
ok test ! -s "$dir/err"
printf 'hello\nsomething else\n/undo\nand then\n/save %s\n' "$dir/saved" |
    "$hola" generate $m -i -n 12 -s 1 --ignore-eos -q >"$dir/undone" 2>"$dir/err"
ok grep -q 'undid [0-9]* tokens' "$dir/err"
ok test -s "$dir/saved"
tail -c 12 "$dir/chat" >"$dir/a"
tail -c 12 "$dir/undone" >"$dir/b"
same a b # the other line left no trace
printf 'hello\nsomething else\nand then\n' | "$hola" generate $m -i -n 12 -s 1 --ignore-eos -q >"$dir/other.chat"
tail -c 12 "$dir/other.chat" >"$dir/b"
differ a b

# commands: they are not said to the model, and unknown ones are refused
printf '/help\nhello\n/save\n/rest\n/undo now\nsomething else\n/reset\nhello\n/quit\nnever read\n' |
    "$hola" generate $m -i -n 12 -s 1 --ignore-eos -q >"$dir/commands" 2>"$dir/err"
ok test $? = 0
for said in '/save FILE   save the session' '/save needs the name of a file' '/rest is not a command; /help lists them' \
    '/undo takes nothing else' 'a new conversation'; do
    ok grep -qF "$said" "$dir/err"
done
printf 'hello\n' | "$hola" generate $m -i -n 12 -s 1 --ignore-eos -q >"$dir/a"
n=$(wc -c <"$dir/a")
head -c "$n" "$dir/commands" >"$dir/b"
same a b # /help before it left no trace
tail -c "$n" "$dir/commands" >"$dir/b"
same a b # nothing is left after /reset
printf '/usr/bin is\n//quit\n' | "$hola" generate $m -i -n 3 -s 1 --ignore-eos -q >"$dir/b" 2>"$dir/err"
ok test ! -s "$dir/err" # texts, not commands
if command -v python3 >/dev/null; then
    said=$(python3 "${0%/*}/chat_terminal.py" "$hola" $m -n 5 2>&1)
    check "on a terminal: $said" test -z "$said"
else
    echo 'SKIP a conversation on a terminal: no python3'
fi

# Ctrl-C ends the text, not in the middle of a result
"$hola" generate $m -p x -n -1 --ignore-eos --json -q >"$dir/a" 2>"$dir/err" &
sleep 0.7
kill -INT $!
wait $!
ok test $? = 0
ok grep -q '"end": "interrupt"' "$dir/a"
ok test ! -s "$dir/err"

# ---- speed on stderr, log-probabilities ----

"$hola" generate $m -p x -n 5 >/dev/null 2>"$dir/err"
ok grep -q 'read 2 tokens, .* wrote .* session .* bytes' "$dir/err"
run a -p x -n 5 $g --json --logits 3
ok test "$(grep -o '"top": \[{"id": [0-9]*, "logprob": -[^}]*}, {[^}]*}, {[^}]*}\]' "$dir/a" | wc -l)" = 5
"$hola" score -m "$dir/m" --ids "$dir/p.json" --json >"$dir/score" # the same numbers as hola score's
printf '[256]' >"$dir/bos"
run a --ids "$dir/bos" -n 2 $g --json --logits 2
ids a x
{ printf '[256,' && paste -s -d , "$dir/x" && echo ']'; } >"$dir/two"
"$hola" score -m "$dir/m" --ids "$dir/two" --json >"$dir/score"
checks=$((checks + 1))
{ grep -o '"logprob": [^,]*, "top"' "$dir/a" | sed 's/.*: \(.*\), .*/\1/'
  sed 's/.*"logprobs": \[\([^]]*\)\].*/\1/' "$dir/score" | tr ',' '\n'; } | awk '
    { x[NR] = $1 } END { for (i = 1; i <= 2; i++) { d = x[i] - x[i + 2]; if (d * d > 1e-8) exit 1 } exit NR != 4 }' ||
    bad "log-probabilities: $(cat "$dir/a" "$dir/score")"

# ---- drafts change the speed alone ----

for how in '--temp 0' '-s 3' '-s 4 --temp 0.3 --repeat-penalty 1.2'; do
    # shellcheck disable=SC2086
    run plain -p 'tra la la la tra la la' -n 300 --ignore-eos $how --lookup 0 --save-session "$dir/plain.session"
    for lookup in '' '--lookup 1' '--lookup 5'; do
        # shellcheck disable=SC2086
        run drafts -p 'tra la la la tra la la' -n 300 --ignore-eos $how $lookup --save-session "$dir/drafts.session"
        same plain drafts
        run on1 --load-session "$dir/plain.session" -s 9 -n 40 --ignore-eos --lookup 0
        run on2 --load-session "$dir/drafts.session" -s 9 -n 40 --ignore-eos
        same on1 on2
    done
done
yes 'a line that comes again and again' | head -n 80 >"$dir/long" # more ids than a session remembers
run plain -f "$dir/long" -n 100 --temp 0 --ignore-eos --lookup 0
run drafts -f "$dir/long" -n 100 --temp 0 --ignore-eos
same plain drafts

# ---- wrong usage and wrong input ----

expect 0 '' --help
expect 2 '--model DIR is required' -p x
for n in -2 -5 1x '' 99999999999 9223372036854775808 1.5; do expect 2 '--predict takes an integer' $m -p x -n "$n"; done
expect 2 '--temp takes a number' $m -p x --temp -1
expect 2 '--temp takes a number' $m -p x --temp nan
expect 2 '--top-p takes a number' $m -p x --top-p 2
expect 2 '--min-p takes a number' $m -p x --min-p -0.1
expect 2 '--top-k takes an integer' $m -p x --top-k -1
expect 2 '--repeat-last-n takes an integer' $m -p x --repeat-last-n 5000
expect 2 '--lookup takes an integer' $m -p x --lookup 65
expect 2 '--lookup takes an integer' $m -p x --lookup -1
expect 2 'only one of' $m -p x -f y
expect 2 'only one of' $m -p x --prompts y
expect 2 '--prompts cannot be used with -i' $m --prompts y -i
expect 2 '--prompts cannot be used with --save-session' $m --prompts y --save-session z
expect 2 '--json cannot be used with -i' $m -i --json
expect 2 '--logits needs --json' $m -p x --logits 2
expect 2 '--stop needs a text' $m -p x --stop ''
expect 2 '--session-dtype takes one of' $m -p x --session-dtype int8
set -- && for i in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17; do set -- "$@" --stop x$i; done
expect 2 '--stop can be given at most 16 times' $m -p x "$@"
expect 1 'holds neither tokenizer' -m "$dir/m" -p x
"$hola" tokenizer train -o "$dir/big.json" --vocab-size 300 "$0" >/dev/null 2>&1
expect 1 'more than the model' -m "$dir/m" -p x --tokenizer "$dir/big.json"
# a model with more tokens than the tokenizer knows: said, unless it is a few of padding
sed 's/"vocab_size": 260/"vocab_size": 600/' "$dir/c.json" >"$dir/wide.json"
"$hola" init -o "$dir/wide" --config "$dir/wide.json" >/dev/null
for model in wide m; do
    "$hola" generate -m "$dir/$model" --tokenizer byte -p x -n 2 >/dev/null 2>"$dir/$model.err"
done
ok grep -q 'warning: the model has 600 tokens, byte has 258: the others print as nothing' "$dir/wide.err"
ok test "$(grep -c warning "$dir/m.err")" = 0
expect 1 "$dir/none" $m -f "$dir/none"
expect 1 'directory' $m -f "$dir"
expect 1 'no BOS to begin with' $m -p '' --no-bos
echo '[256, 260]' >"$dir/bad"
expect 1 '[1]: 260 is not a token id' $m --ids "$dir/bad"
expect 1 "$dir/none" -m "$dir/none" -p x

# text and report in one file: each on lines of its own; the text alone is as it was
"$hola" generate -m "$dir/m" --tokenizer byte -p x -n 4 -s 1 >"$dir/out" 2>"$dir/err"
"$hola" generate -m "$dir/m" --tokenizer byte -p x -n 4 -s 1 >"$dir/log" 2>&1
check 'one file: the report begins a line' grep -qa '^read 2 tokens' "$dir/log"
check 'one file: the text' cmp -n "$(stat -c %s "$dir/out")" "$dir/out" "$dir/log"
finish
