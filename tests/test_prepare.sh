#!/bin/sh
# test_prepare.sh -- hola prepare as its users meet it: what is in the shards, what is refused, what a failed or
# killed run leaves behind.
. "${0%/*}/common.sh"
# expect STATUS TEXT ARGS...: as in test_cli.sh; standard input is $in
in=/dev/null
expect() {
    want=$1 text=$2
    shift 2
    "$hola" prepare "$@" <"$in" >"$dir/out" 2>"$dir/err"
    ended "prepare $*" $? "$want" "$text"
    [ "$want" != 0 ] || noted "prepare $*" "$text"
}
tokens() { # SHARD: its tokens in a line, "B" for BOS
    tail -c +1025 "$1" | od -An -v -tu2 | tr -s ' \n' ' ' | sed 's/^ //; s/ $//; s/\b256\b/B/g'
}
header() { head -c 16 "$1" | od -An -v -td4 | tr -s ' ' ' ' | sed 's/^ //'; }
same() { # A B: the shards of two directories are the same files
    checks=$((checks + 1))
    [ "$(cd "$1" && cksum ./*.bin)" = "$(cd "$2" && cksum ./*.bin)" ] || bad "$1 and $2 differ"
}
is() { # GOT WANT
    checks=$((checks + 1))
    [ "$1" = "$2" ] || bad "'$1' is not '$2'"
}
byte="--tokenizer byte"

# ---- usage ----

expect 0 'usage: hola prepare' --help
expect 2 '--out DIR is required' $byte x
expect 2 '--tokenizer PATH is required' -o "$dir/d" x
expect 2 'no INPUT' -o "$dir/d" $byte
expect 2 "unknown option '--nonsense'" -o "$dir/d" $byte --nonsense x
expect 2 '--val takes a number' -o "$dir/d" $byte --val 0.6 x
expect 2 '--shard-tokens takes an integer' -o "$dir/d" $byte --shard-tokens 0 x
expect 2 '--val needs a value' -o "$dir/d" $byte x --val
expect 2 '--generate takes neither' -o "$dir/d" --generate recall x
expect 2 '--generate takes neither' -o "$dir/d" --generate mqar $byte
expect 1 "$dir/nowhere.txt" -o "$dir/d" $byte "$dir/nowhere.txt"
expect 1 'nowhere' -o "$dir/d" --tokenizer "$dir/nowhere" "$dir/nowhere.txt"
ok test ! -e "$dir/d"

# ---- one text: its end is val ----

printf 'abcdefghij' >"$dir/a.txt"
expect 0 '"tokens": 12' -o "$dir/one" $byte --val 0.2 "$dir/a.txt" --json
is "$(tokens "$dir/one/train_000000.bin")" 'B 97 98 99 100 101 102 103 104'
is "$(tokens "$dir/one/val_000000.bin")" 'B 105 106'
is "$(header "$dir/one/train_000000.bin")" '20240520 1 9 0'
is "$(header "$dir/one/val_000000.bin")" '20240520 1 3 0'
ok grep -q '"complete": true' "$dir/one/dataset.json"
ok grep -q '"tokenizer": "byte"' "$dir/one/dataset.json"
ok grep -q '"bos_token_id": 256' "$dir/one/dataset.json"
# the tokenizer "byte" goes along as a file that gives the same ids
printf 'a <s> \303\244\377\n  x\000y' >"$dir/odd"
is "$("$hola" tokenizer encode --tokenizer "$dir/one" -f "$dir/odd")" "$("$hola" tokenizer encode --tokenizer byte -f "$dir/odd")"
expect 0 'train ' -o "$dir/plain" $byte --val 0 --no-bos -- "$dir/a.txt"
is "$(tokens "$dir/plain/train_000000.bin")" '97 98 99 100 101 102 103 104 105 106'
ok test ! -e "$dir/plain/val_000000.bin"
ok grep -q '"bos_token_id": null' "$dir/plain/dataset.json"

# ---- inputs: files, directories, standard input, formats ----

mkdir -p "$dir/docs/sub"
printf 'B' >"$dir/docs/b.txt"
printf '{"text": "J1", "body": "x"}\n\n{"text": "J2", "body": "y"}\n' >"$dir/docs/a.jsonl"
printf 'S1\nS2\n' >"$dir/docs/sub/s.txt"
printf 'no' >"$dir/docs/notes.md"
expect 0 'all ' -o "$dir/w" $byte --val 0 "$dir/docs"
is "$(tokens "$dir/w/train_000000.bin")" 'B 74 49 B 74 50 B 66 B 83 49 10 83 50 10'
expect 0 'all ' -o "$dir/w" --force $byte --val 0 --split-lines "$dir/docs/sub" "$dir/docs/b.txt"
is "$(tokens "$dir/w/train_000000.bin")" 'B 83 49 B 83 50 B 66'
expect 0 'all ' -o "$dir/w" --force $byte --val 0 --field body "$dir/docs/a.jsonl"
is "$(tokens "$dir/w/train_000000.bin")" 'B 120 B 121'
in=$dir/docs/a.jsonl
expect 0 'all ' -o "$dir/w" --force $byte --val 0 -
is "$(tokens "$dir/w/train_000000.bin")" 'B 74 49 B 74 50'
expect 0 '"bytes": 57' -o "$dir/w" --force $byte --val 0 --format text --json -
in=$dir/docs/b.txt
expect 0 'all ' -o "$dir/w" --force $byte --val 0 -
is "$(tokens "$dir/w/train_000000.bin")" 'B 66'
expect 1 'standard input: line 1' -o "$dir/w" --force $byte --format jsonl -
in=/dev/null
if command -v gzip >/dev/null && gzip -c "$dir/docs/a.jsonl" >"$dir/a.jsonl.gz" &&
    "$hola" prepare -o "$dir/w" --force $byte --val 0 "$dir/a.jsonl.gz" >"$dir/out" 2>"$dir/err"; then
    is "$(tokens "$dir/w/train_000000.bin")" 'B 74 49 B 74 50'
    in=$dir/a.jsonl.gz
    expect 0 'all ' -o "$dir/w" --force $byte --val 0 -
    is "$(tokens "$dir/w/train_000000.bin")" 'B 74 49 B 74 50'
    in=/dev/null
    head -c 40 "$dir/a.jsonl.gz" >"$dir/cut.jsonl.gz"
    expect 1 'cut.jsonl.gz' -o "$dir/cut" $byte "$dir/cut.jsonl.gz"
    ok test ! -e "$dir/cut"
else
    ok grep -q 'without libarchive' "$dir/err"
fi

# ---- a corpus: splits, shards, threads ----

awk 'BEGIN { x = 1; for (i = 0; i < 3000; i++) {
    s = ""; x = (x * 16807) % 2147483647; n = x % 60
    for (k = 0; k <= n; k++) { x = (x * 16807) % 2147483647; s = s sprintf("%c", 97 + x % 26) }
    printf "{\"text\": \"%d %s\"}\n", i, s } }' >"$dir/c.jsonl"
expect 0 '"documents": 3000' -o "$dir/t1" $byte --val 0.02 -t1 --json "$dir/c.jsonl"
expect 0 'all ' -o "$dir/t3" $byte --val 0.02 -t 3 "$dir/c.jsonl"
same "$dir/t1" "$dir/t3"
"$hola" prepare -o "$dir/t1" --force $byte --val 0.02 --json "$dir/c.jsonl" >"$dir/out"
val=$(sed 's/.*"val": {"documents": \([0-9]*\),.*/\1/' "$dir/out")
ok test "$val" -gt 35 -a "$val" -lt 90
expect 0 'all ' -o "$dir/seed" $byte --val 0.02 -s 1 "$dir/c.jsonl"
checks=$((checks + 1))
cmp -s "$dir/seed/val_000000.bin" "$dir/t1/val_000000.bin" && bad 'another seed chooses the same documents'
# every document is in one split, in its order
{ tail -c +1025 "$dir/t1/train_000000.bin" && tail -c +1025 "$dir/t1/val_000000.bin"; } | od -An -v -tu2 -w2 |
    awk '$1 == 256 { if (s != "") print s; s = ""; next } { s = s sprintf("%c", $1) } END { print s }' >"$dir/back"
sed 's/.*: "\(.*\)"}/\1/' "$dir/c.jsonl" >"$dir/want"
sort -n "$dir/back" >"$dir/sorted"
ok cmp "$dir/sorted" "$dir/want"
# shards of a size cut the same line of tokens
expect 0 'all ' -o "$dir/small" $byte --val 0.02 --shard-tokens 10007 "$dir/c.jsonl"
for s in train val; do
    for f in "$dir/small/$s"_*.bin; do tail -c +1025 "$f"; done >"$dir/pieces"
    tail -c +1025 "$dir/t1/${s}_000000.bin" >"$dir/whole"
    ok cmp "$dir/pieces" "$dir/whole"
done
is "$(header "$dir/small/train_000000.bin")" '20240520 1 10007 0'
ok test -e "$dir/small/train_000005.bin"
expect 0 '"val": {"documents": ' -o "$dir/capped" $byte --val 0.02 --val-tokens 500 --json "$dir/c.jsonl"
ok test "$(wc -c <"$dir/capped/val_000000.bin")" -le $((1024 + 2 * 500))

# ---- what is wrong in the input ----

printf '{"text": "a"}\n{"text": \n{"text": "b"}\n{"other": "c"}\n' >"$dir/bad.jsonl"
expect 1 'bad.jsonl: line 2' -o "$dir/bad" $byte "$dir/bad.jsonl"
ok test ! -e "$dir/bad"
expect 0 '2 malformed lines skipped' -o "$dir/bad" $byte --val 0 --skip-bad "$dir/bad.jsonl"
is "$(tokens "$dir/bad/train_000000.bin")" 'B 97 B 98'
{ cat "$dir/c.jsonl" && echo '{'; } >"$dir/late.jsonl" # shards that were in place by then go again
expect 1 'late.jsonl: line 3001' -o "$dir/late" $byte --shard-tokens 10007 "$dir/late.jsonl"
ok test ! -e "$dir/late"
printf '' >"$dir/empty.txt"
printf '\n\n{"text": ""}\n' >"$dir/empty.jsonl"
expect 1 'no text' -o "$dir/none" $byte "$dir/empty.txt"
expect 1 'no text' -o "$dir/none" $byte "$dir/empty.jsonl" "$dir/empty.txt"
expect 1 'no text' -o "$dir/none" $byte -
expect 0 '1 empty documents left out' -o "$dir/some" $byte "$dir/empty.jsonl" "$dir/a.txt"
ok test ! -e "$dir/none"

# ---- a directory that is not ours to write ----

expect 1 'already holds a dataset; --force' -o "$dir/t1" $byte "$dir/c.jsonl"
same "$dir/t1" "$dir/t3"
mkdir "$dir/llmc" && cp "$dir/t1/train_000000.bin" "$dir/llmc/web_train_000001.bin"
expect 1 'already holds a dataset' -o "$dir/llmc" $byte "$dir/c.jsonl"
expect 1 'hola did not write' -o "$dir/llmc" $byte --force "$dir/c.jsonl"
is "$(ls -A "$dir/llmc")" 'web_train_000001.bin'
expect 1 'not a directory' -o "$dir/a.txt" $byte "$dir/c.jsonl"
expect 1 "$dir/a.txt" -o "$dir/a.txt/x" $byte "$dir/c.jsonl"
expect 0 'all ' -o "$dir/small" --force $byte --val 0 "$dir/a.txt"
is "$(cd "$dir/small" && echo *)" 'dataset.json tokenizer.json train_000000.bin'

# ---- no room: a message, and nothing left ----

for limit in 1 8 40; do # blocks of 512 bytes
    checks=$((checks + 1))
    (ulimit -f $limit && exec "$hola" prepare -o "$dir/full" $byte --val 0.3 --shard-tokens 15000 "$dir/c.jsonl") \
        >"$dir/out" 2>"$dir/err"
    [ $? = 1 ] || bad "a limit of $limit blocks: status is not 1"
    grep -q '^hola: .*cannot write' "$dir/err" || bad "a limit of $limit blocks: $(cat "$dir/err")"
    ok test ! -e "$dir/full"
done

# ---- killed: the loader refuses what is there, the next run replaces it ----

mkfifo "$dir/pipe"
"$hola" prepare -o "$dir/killed" $byte --shard-tokens 1000000 "$dir/pipe" >/dev/null 2>&1 &
pid=$!
while cat "$dir/c.jsonl"; do :; done >"$dir/pipe" 2>/dev/null & # until nobody reads any more
feeder=$!
n=0
while [ ! -e "$dir/killed/train_000001.bin" ] && [ $n -lt 200 ]; do sleep 0.1 && n=$((n + 1)); done
ok test -e "$dir/killed/train_000001.bin"
expect 1 'another hola is writing' -o "$dir/killed" $byte "$dir/c.jsonl"
kill -9 $pid
wait $pid $feeder 2>/dev/null
ok grep -q '"complete": false' "$dir/killed/dataset.json"
for f in "$dir"/killed/train_*.bin; do # what is visible is whole
    ok test "$(wc -c <"$f")" -eq $((1024 + 2 * $(header "$f" | cut -d' ' -f3)))
done
expect 0 'all ' -o "$dir/killed" $byte --val 0.02 "$dir/c.jsonl"
same "$dir/killed" "$dir/t1"
is "$(cd "$dir/killed" && ls -A | tr '\n' ' ')" 'dataset.json tokenizer.json train_000000.bin val_000000.bin '

# ---- generated ----

expect 0 '"tokens": 51200' -o "$dir/recall" --generate recall --samples 50 --json
is "$(header "$dir/recall/val_000000.bin" | cut -d' ' -f1-2)" '20240520 1'
expect 0 '"tokens": 12800' -o "$dir/mqar" --generate mqar --samples 50 --json
expect 0 '"tokens": 640' -o "$dir/mqar" --force --generate mqar --samples 10 --facts 4 --length 64 --json
expect 1 'mqar: 40 pairs in 64 tokens' -o "$dir/mqar" --force --generate mqar --facts 40 --length 64
expect 1 'recall: ' -o "$dir/toolong" --generate recall --facts 4000
ok test ! -e "$dir/toolong"

finish
