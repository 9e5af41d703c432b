#!/bin/bash
# test_wrong_input.sh -- every class of wrong input, over the commands that can meet it: one clear line on standard
# error, the right status (2: the command line, 1: everything else), no result, nothing left behind.
. "${0%/*}/common.sh"
cat >"$dir/tiny.json" <<JSON
{"model_type": "hola", "hidden_size": 32, "num_hidden_layers": 1, "num_heads": 2, "head_dim": 16, "expand_v": 1,
 "intermediate_size": 32, "vocab_size": 258, "bos_token_id": 256, "eos_token_id": 257, "initializer_range": 0.2}
JSON
ok "$hola" init -o "$dir/m" --config "$dir/tiny.json" --tokenizer byte
i=0 && while [ $i -lt 200 ]; do echo "The ship sailed on day $i over the sea."; i=$((i + 1)); done >"$dir/text"
ok "$hola" prepare -o "$dir/data" --tokenizer byte --split-lines --val 0.1 "$dir/text"
ok "$hola" generate -m "$dir/m" -p x -n 0 -q --save-session "$dir/session"
m="-m $dir/m" x=$dir/x
train="train --data $dir/data --out $x --config $dir/tiny.json --steps 2 --batch-tokens 64 --seq-len 32"

# ---- inputs that are missing, empty, binary, directories, pipes that nobody may read twice ----

: >"$dir/empty"
head -c 3000 /bin/sh >"$dir/binary"
mkdir "$dir/folder" && mkfifo "$dir/fifo"
for bad in nowhere empty binary folder; do
    f=$dir/$bad
    refused 1 "$f" score $m --ids "$f"
    refused 1 "$f" generate $m --ids "$f"
    refused 1 "$f" inspect -m "$f"
    refused 1 "$f" convert -m "$f" -o "$x" --dtype bf16
    refused 1 "$f" init -o "$x" --config "$f"
    refused 1 "$f" tokenizer encode --tokenizer "$f" hi
    refused 1 "$f" tokenizer decode --tokenizer byte --ids "$f"
    refused 1 "$f" generate $m -p x --load-session "$f"
    refused 1 "$f" train --data "$f" --out "$x" --config "$dir/tiny.json"
    refused 1 "$f" plot -o "$x.html" "$f"
    refused 1 "$f" eval $m --data "$f" --tasks arc_easy
    refused 1 "$f" eval --results "$f"
done
for bad in nowhere folder; do
    refused 1 "$dir/$bad" score $m -f "$dir/$bad"
    refused 1 "$dir/$bad" generate $m -f "$dir/$bad"
    refused 1 "$dir/$bad" inspect --memory $m -f "$dir/$bad"
done
refused 1 "$dir/nowhere" prepare -o "$x" --tokenizer byte "$dir/nowhere"
refused 1 "$dir/empty" tokenizer train -o "$x" "$dir/empty"
refused 1 "$dir/binary" eval $m --text "$dir/binary"
(sleep 0.1; cat "$dir/text") >"$dir/fifo" & # a pipe is as good as a file
ok "$hola" score $m -f "$dir/fifo"
wait
if [ "$(id -u)" = 0 ] && command -v setpriv >/dev/null; then # as a user who may not
    cp "$dir/text" "$dir/secret" && chmod 600 "$dir/secret" && chmod 755 "$dir"
    cp "$hola" "$dir/hola" && mkdir "$dir/locked"
    as_nobody() { setpriv --reuid 65534 --regid 65534 --clear-groups "$dir/hola" "$@" >"$dir/out" 2>"$dir/err"; }
    as_nobody score $m -f "$dir/secret"
    ended 'an unreadable file' $? 1 'secret: Permission denied'
    as_nobody init -o "$dir/locked/m" --config "$dir/tiny.json"
    ended 'a folder that is not theirs' $? 1 'Permission denied'
else
    echo "SKIP files of another user: that takes root"
fi

ln -s loop-b "$dir/loop-a" && ln -s loop-a "$dir/loop-b"
long=$dir/$(printf 'a%.0s' $(seq 300))
for f in "$dir/loop-a" "$long" "$dir/$(printf 'd/%.0s' $(seq 2100))"; do # the cause ends the line, however long the path
    case $f in */loop-a) why='Too many levels of symbolic links' ;; *) why='File name too long' ;; esac
    for c in "score $m -f $f" "generate $m -f $f" "eval $m --text $f" "inspect --memory $m -f $f" \
        "prepare -o $x --tokenizer byte $f" "tokenizer train -o $x $f" "tokenizer encode --tokenizer $f hi" \
        "plot -o $x.html $f" "inspect -m $f" "convert -m $f -o $x --dtype bf16" "init -o $f/m --config $dir/tiny.json" \
        "train --data $f --out $x --config $dir/tiny.json"; do
        refused 1 "$why" $c
    done
done

# ---- names that are empty, as "$UNSET" is: never the current directory ----

cd "$dir" && hola=$(realpath "$hola") && cp m/config.json m/model.safetensors .
for c in 'score -f text' 'generate -p x' 'eval --text text' 'inspect' "convert -o $x --dtype bf16"; do
    refused 2 "--model takes a DIR, not ''" $c -m ''
done
for c in 'init --config tiny.json' 'prepare --tokenizer byte text' 'tokenizer train text' 'plot run' \
    'train --data data --config tiny.json'; do
    refused 2 "--out takes a " $c -o ''
done
refused 2 "--data takes a DIR, not ''" train --data '' --out "$x" --config tiny.json
refused 2 "--config takes a FILE, not ''" train --data data --out "$x" --config ''
refused 2 "--save-session takes a FILE, not ''" generate $m -p x --save-session ''
refused 2 "an INPUT is ''" prepare -o "$x" --tokenizer byte text ''
refused 2 "an INPUT is ''" tokenizer train -o "$x" ''
refused 2 "a RUN is ''" plot -o "$x.html" ''
ok "$hola" generate $m -p '' -n 1 # a text may be empty
printf 'data = ""\n' >"$dir/unset.toml"
refused 2 "--data takes a DIR, not ''" train --config "$dir/unset.toml" --out "$x"
rm config.json model.safetensors
cd - >/dev/null

# ---- encodings ----

iconv -t UTF-16 "$dir/text" >"$dir/utf16" # read as bytes, with a word
ok "$hola" prepare -o "$dir/data16" --tokenizer byte "$dir/utf16"
check 'UTF-16: a warning' grep -q 'utf16: looks like UTF-16' "$dir/said"
ok "$hola" tokenizer train -o "$dir/t16" --vocab-size 260 "$dir/utf16"
check 'UTF-16: a warning' grep -q 'utf16: looks like UTF-16' "$dir/said"
refused 1 'zero byte at 3: not a text' eval $m --text "$dir/utf16"
iconv -t UTF-16 "$dir/tiny.json" >"$dir/tiny16.json"
refused 1 'a NUL byte' init -o "$x" --config "$dir/tiny16.json"
for head in '\357\273\277' ''; do # a byte order mark, lines as Windows ends them
    { printf "$head" && sed 's/$/\r/' "$dir/tiny.json"; } >"$dir/windows.json"
    ok "$hola" init -o "$dir/windows" --config "$dir/windows.json" && rm -r "$dir/windows"
    printf "$head"'data = "%s"\r\nout = "%s"\r\nconfig = "%s"\r\nsteps = 1\r\nbatch-tokens = 64\r\nseq-len = 32\r\n' \
        "$dir/data" "$dir/windows" "$dir/tiny.json" >"$dir/windows.toml"
    ok "$hola" train --config "$dir/windows.toml" && rm -r "$dir/windows"
done
for line in 'steps = 99999999999999999999' 'steps = 1\nsteps = 2' 'steps' 'steps = ' 'steps = [1]' 'steps = 1 2' '\0' '[run]'; do
    printf "$line\n" >"$dir/bad.toml"
    refused 1 "$dir/bad.toml:" train --config "$dir/bad.toml"
done
printf 'config = "bad.toml"\n' >"$dir/bad.toml" # a file that names itself
refused 2 'cannot name another' train --config "$dir/bad.toml"

# ---- standard streams that are closed or full ----

for c in "score $m -f $dir/text" "generate $m -p x -n 2 -q" "inspect $m --json" "eval $m --text $dir/text" \
    "tokenizer encode --tokenizer byte hi" "eval --list" "help"; do
    "$hola" $c >&- 2>"$dir/err"
    got=$? && : >"$dir/out"
    ended "$c, closed" $got 1 'standard output: Bad file descriptor'
    "$hola" $c >/dev/full 2>"$dir/err"
    ended "$c, full" $? 1 'standard output: No space left on device'
done
# no message lands in a file that took the number of a closed stream
"$hola" $train >/dev/null 2>&-
check 'trains without standard error' test $? = 0
check 'metrics, not messages' test "$(grep -vc '^{"step"' "$x/metrics.jsonl")" = 0
rm -r "$x"
"$hola" prepare -o "$x" --tokenizer byte - >"$dir/out" 2>"$dir/err" <&-
ended 'no standard input' $? 1 'standard input'

# ---- ids: empty, of the wrong type, huge, cut off, out of the vocabulary ----

for ids in '[]' '[1.5]' '["a"]' '{"ids": [1]}' '[99999999999999999999]' '[1, 2' '[-1]' '[258]' '[null]' 'x'; do
    echo "$ids" >"$dir/ids"
    refused 1 "$dir/ids" score $m --ids "$dir/ids"
    refused 1 "$dir/ids" generate $m --ids "$dir/ids"
    [ "$ids" = '[]' ] || refused 1 "$dir/ids" tokenizer decode --tokenizer byte --ids "$dir/ids"
done

# ---- the command line: unknown words, bad numbers, no value, two that exclude each other ----

refused 2 "unknown command 'frobnicate'" frobnicate
for c in init score generate inspect convert prepare train plot eval bench demo serve 'tokenizer train'; do
    refused 2 "unknown option '--frobnicate'" $c --frobnicate
done
refused 2 'unknown task' eval $m --data "$dir" --tasks frob
refused 2 "'9m' is unknown" init -o "$x" --preset 9m
refused 2 '--backend' score $m --ids "$dir/ids" --backend abacus
for n in -1 nan ten 99999999999999 '' 1e; do
    refused 2 --steps $train --steps "$n"
    refused 2 --threads score $m --ids "$dir/ids" --threads "$n"
    refused 2 --top-k generate $m -p x --top-k "$n"
done
for n in nan -1 hot ''; do
    refused 2 --temp generate $m -p x --temp "$n"
    refused 2 --lr $train --lr "$n"
done
for last in 'score -m' 'generate -p' 'train --lr' 'eval --tasks' 'plot -o' 'init --preset'; do refused 2 ' ' $last; done
refused 2 'only one of' train --data "$dir/data" --out "$x" --preset 46m --config "$dir/tiny.json"
refused 2 ' ' init -o "$x" --preset 46m --config "$dir/tiny.json"
refused 2 ' ' score $m --ids "$dir/ids" -f "$dir/text"
refused 2 ' ' generate $m -i --json
refused 2 'must be a multiple of --seq-len' $train --batch-tokens 50

# ---- what is there already, or does not fit ----

refused 1 "$dir/m" init -o "$dir/m" --config "$dir/tiny.json"
refused 1 "$dir/data" prepare -o "$dir/data" --tokenizer byte "$dir/text"
ok "$hola" $train
refused 1 "$x" $train --lr 0.5 # other settings than the run's
sed 's/"hidden_size": 32/"hidden_size": 64/' "$dir/tiny.json" >"$dir/wide.json"
ok "$hola" init -o "$dir/other" --config "$dir/wide.json" --tokenizer byte
refused 1 "$dir/session" generate -m "$dir/other" -p x --load-session "$dir/session"
head -c 900 "$dir/session" >"$dir/cut"
refused 1 "$dir/cut" generate $m -p x --load-session "$dir/cut"
"$hola" tokenizer train -o "$dir/big.json" --vocab-size 400 "$0" >/dev/null 2>&1
refused 1 'more than' generate $m -p x --tokenizer "$dir/big.json"
rm -rf "$x"

# ---- no room: little memory, a folder that cannot be made ----

case $hola in # (a sanitizer needs terabytes of addresses)
*san/hola) echo "SKIP little memory: sanitizers" ;;
*)
    (ulimit -v 900000 && "$hola" init -o "$x" --preset 340m >"$dir/out" 2>"$dir/err")
    ended 'little memory' $? 1 ' '
    # a small stack is enough: the largest frames of ops are twice as large
    "$hola" score $m -f "$dir/text" >"$dir/want" 2>/dev/null
    for kb in 64 100; do
        (ulimit -s $kb && "$hola" score $m -t 3 -f "$dir/text" >"$dir/out" 2>"$dir/err")
        check "ulimit -s $kb: score ends with $?" test $? = 0
        check "ulimit -s $kb: score" test "$(grep nll "$dir/want")" = "$(grep nll "$dir/out")"
        (ulimit -s $kb && "$hola" $train -t 3 >"$dir/out" 2>"$dir/err")
        check "ulimit -s $kb: train ends with $?" test $? = 0
        rm -rf "$x"
    done ;;
esac
echo '{"step": 1, "tokens": 10, "loss": 5, "lr": 0.1, "grad_norm": 1, "tok_per_s": 9, "seconds": 1}' >"$dir/run.jsonl"
none=$dir/text/none # in a file, not a folder
for c in "init -o $none --config $dir/tiny.json" "convert $m -o $none --dtype bf16" \
    "prepare -o $none --tokenizer byte $dir/text" \
    "plot -o $none.html $dir/run.jsonl" "eval $m --data $dir --text $dir/text --html $none.html"; do
    refused 1 "$none" $c
done
"$hola" generate $m -p x -n 1 -q --save-session "$none" >/dev/null 2>"$dir/err"
got=$? && : >"$dir/out" # its text was printed before
ended 'a session that cannot be saved' $got 1 "$none"
check 'nothing is left behind' test ! -e "$x"
finish
