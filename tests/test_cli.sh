#!/bin/sh
# test_cli.sh -- the program as its users meet it: exit statuses, messages of one line, results that agree.
. "${0%/*}/common.sh"

# expect STATUS TEXT ARGS...: hola ARGS ends with STATUS. A failure says so in one line that holds TEXT and prints
# no result; a success says nothing on stderr and prints TEXT.
expect() {
    want=$1 text=$2
    shift 2
    "$hola" "$@" >"$dir/out" 2>"$dir/err"
    ended "hola $*" $? "$want" "$text"
    [ "$want" != 0 ] || noted "hola $*" "$text"
}

# ---- words and options ----

version=$(sed -n 's/^#define HOLA_VERSION "\(.*\)"/\1/p' "$(dirname "$0")/../include/hola.h")
expect 0 "hola $version" --version
expect 0 inspect help
expect 0 inspect --help
expect 0 'usage: hola score' help score
for c in init score inspect bench; do
    expect 0 "usage: hola $c" $c --help
    expect 0 '--json' $c -h
    expect 2 "unknown option '--nonsense'" $c --nonsense
    expect 2 "unknown option '-Z'" $c -Z
    expect 2 "unexpected argument 'x'" $c x
    expect 2 "unexpected argument '--json'" $c -- --json
    expect 2 'takes no value' $c --json=1
done
# every option of every command is in the manual, and every option of the manual is one
manual=$(dirname "$0")/../man/hola.1
for c in $("$hola" help | sed -n 's/^  \([a-z]*\)  .*/\1/p') 'tokenizer train' 'tokenizer encode' 'tokenizer decode'; do
    "$hola" $c --help
done | grep -o '^  .\{4\}--[a-z0-9-]*' | sed 's/.*--/--/' | sort -u >"$dir/options"
sed 's/\\-/-/g' "$manual" | grep -o -e '--[a-z0-9][a-z0-9-]*' | grep -v -e '^--name$' -e '^--version$' | sort -u >"$dir/manual"
ok test "$(wc -l <"$dir/options")" -gt 90
ok test -z "$(diff "$dir/options" "$dir/manual" | grep '^[<>]')"
expect 2 'no command'
expect 2 "unknown command 'frobnicate'" frobnicate
expect 2 "unknown command 'x?y'" 'x
y'
expect 2 "unknown command 'frobnicate'" help frobnicate
expect 2 '--out DIR is required' init --preset 46m
expect 2 'either --preset NAME or --config FILE' init -o "$dir/m"
expect 2 'either --preset NAME or --config FILE' init -o "$dir/m" --preset 46m --config x
expect 2 'needs a value' init -o
expect 2 "not 'int3'" init -o "$dir/m" --preset 46m --dtype int3
expect 2 "not 'mamba'" init -o "$dir/m" --preset 46m --model-type=mamba
expect 2 'transformer is not offered with and without an output gate' init -o "$dir/m" --preset 46m-gate --model-type=transformer
for n in -1 1x x '' ' 1' +1 1.0 0x10 9223372036854775808; do
    expect 2 '--seed takes an integer' init -o "$dir/m" --preset 46m -s "$n"
    expect 2 '--split takes an integer' score -m "$dir/m" --split="$n"
done
expect 2 '--threads takes an integer from 1' score -m "$dir/m" -t0
expect 2 '--threads takes an integer from 1' score -m "$dir/m" -t 1000000
expect 2 '--model DIR is required' score --ids x
expect 2 'either --ids FILE or -f FILE' score -m "$dir/m"
expect 2 'either --ids FILE or -f FILE' score -m "$dir/m" --ids x -f y
expect 2 'takes one of prefill, decode' score -m "$dir/m" --mode backwards
expect 2 '--backend takes one of' score -m "$dir/m" --backend abacus
expect 2 '--model DIR is required' inspect

# ---- init ----

# config FILE TYPE WINDOW CHUNK: large random weights, so that the state matters to every later token
config() {
    cat >"$1" <<END
{"model_type": "$2", "hidden_size": 48, "num_hidden_layers": 2, "num_heads": 2, "head_dim": 24, "expand_v": 1,
 "hidden_ratio": 2, "intermediate_size": 96, "vocab_size": 61, "tie_word_embeddings": true, "use_gate": true,
 "initializer_range": 0.2, "cache_window": $3, "cache_chunk": $4, "cache_gate_init": 0.0, "a_field_of_others": 7}
END
}
config "$dir/tiny.json" hola 8 32
config "$dir/wide.json" hola 64 256
expect 0 'hola, ' init -o "$dir/m" --config "$dir/tiny.json" -s 5
ok test -s "$dir/m/config.json" -a -s "$dir/m/model.safetensors"
expect 1 'already holds a config.json' init -o "$dir/m" --config "$dir/tiny.json"
expect 0 '"seed": 5' init -o "$dir/same" --config="$dir/tiny.json" --seed 4 --seed=5 --json
ok cmp "$dir/m/model.safetensors" "$dir/same/model.safetensors"
expect 0 '"parameters": ' init -o "$dir/same" --config "$dir/tiny.json" -s6 --force --json
checks=$((checks + 1))
cmp -s "$dir/m/model.safetensors" "$dir/same/model.safetensors" && bad 'another seed gives the same model'
expect 0 'bf16' init -o "$dir/half" --config "$dir/tiny.json" -s 5 --dtype bf16
ok test "$(wc -c <"$dir/half/model.safetensors")" -lt "$(($(wc -c <"$dir/m/model.safetensors") * 2 / 3))"
expect 0 'hola, ' init -o "$dir/wide" --config "$dir/wide.json"
expect 0 'gated_deltanet, ' init -o "$dir/gdn" --config "$dir/tiny.json" --model-type gated_deltanet
sed 's/, "cache.*a_field/, "a_field/; s/"hola"/"gated_deltanet"/' "$dir/tiny.json" >"$dir/gdn.json"
expect 0 'hola, ' init -o "$dir/given" --config "$dir/gdn.json" --model-type hola
expect 0 '"cache_evict": "betae"' inspect -m "$dir/given" --json
expect 0 '46,408,896 parameters' init -o "$dir/46m" --preset 46m --dtype bf16
rm -rf "$dir/46m"
mkdir "$dir/part" && : >"$dir/part/model.safetensors"
expect 1 'already holds a model.safetensors' init -o "$dir/part" --config "$dir/tiny.json"
expect 2 "--preset: '7m' is unknown" init -o "$dir/x" --preset 7m
expect 1 "$dir/none.json" init -o "$dir/x" --config "$dir/none.json"
expect 1 "$dir/tiny.json/x" init -o "$dir/tiny.json/x" --preset 46m
echo '{"model_type": "hola", "hidden_size": -3}' >"$dir/bad.json"
expect 1 "$dir/bad.json" init -o "$dir/x" --config "$dir/bad.json"
echo '{"model_type": ' >"$dir/bad.json"
expect 1 "$dir/bad.json" init -o "$dir/x" --config "$dir/bad.json"
ok test ! -e "$dir/x"

# ---- score: prefill, decode and split agree ----

ids() { # N [SEED]: a JSON array of N ids
    awk -v n="$1" -v x="${2:-1}" 'BEGIN {
        printf "["
        for (i = 0; i < n; i++) { x = (x * 16807) % 2147483647; printf "%s%d", i ? ", " : "", x % 61 }
        print "]" }'
}
logprobs() { sed 's/.*"logprobs": \[\([^]]*\)\].*/\1/' "$1" | tr ',' '\n' | sed '/^ *$/d'; }
distance() { # A B: the largest difference of two lists; "x" when their lengths differ
    logprobs "$1" >"$dir/a" && logprobs "$2" >"$dir/b"
    paste "$dir/a" "$dir/b" | awk '{ if (NF != 2) far = 1; d = $1 - $2; if (d < 0) d = -d; if (!(d <= w)) w = d }
                                   END { print far ? "x" : w + 0 }'
}
near() { # LIMIT A B
    checks=$((checks + 1))
    distance "$2" "$3" | awk -v l="$1" '{ exit !($1 != "x" && $1 <= l) }' ||
        bad "$(basename "$2") and $(basename "$3") are $(distance "$2" "$3") apart"
}
score() { # RESULT ARGS...
    result=$1
    shift
    checks=$((checks + 1))
    "$hola" score --json "$@" >"$result" || bad "hola score $*"
}
consistent() { # RESULT N: N - 1 log-probabilities, all negative, whose sum and mean are nll and log ppl
    checks=$((checks + 1))
    { logprobs "$1" && sed 's/.*"tokens": \([0-9]*\), .*"nll": \([^,]*\), "ppl": \([^}]*\)}.*/\1 \2 \3/' "$1"; } |
        awk -v n="$2" 'NF == 1 { k++; sum -= $1; if ($1 >= 0) positive = 1 }
            NF == 3 { d = sum - $2; if (d < 0) d = -d
                      good = k == n - 1 && $1 == n && !positive && d < 1e-9 * n
                      if (n == 1) good = good && $3 == "null"
                      else { r = log($3) - sum / (n - 1); good = good && r < 1e-12 && r > -1e-12 } }
            END { exit !good }' || bad "$(basename "$1"): not the score of $2 tokens: $(cut -c -200 "$1")"
}
for m in m wide gdn; do
    for n in 1 255 256 257 1000; do
        ids $n >"$dir/ids"
        score "$dir/prefill" -m "$dir/$m" --ids "$dir/ids"
        score "$dir/decode" -m "$dir/$m" --ids "$dir/ids" --mode decode
        score "$dir/split" -m "$dir/$m" --ids "$dir/ids" --mode prefill --split $((n / 3 + 1))
        consistent "$dir/prefill" $n
        near 2e-5 "$dir/prefill" "$dir/decode"
        near 2e-5 "$dir/prefill" "$dir/split"
    done
    # a program that lost the first 500 tokens would not pass: the same tail from an empty state is far off
    { echo '[' && ids 1000 | tr -d '[]' | tr ',' '\n' | tail -n 500 | paste -s -d , && echo ']'; } >"$dir/tail"
    score "$dir/lost" -m "$dir/$m" --ids "$dir/tail"
    { echo '"logprobs": [' && logprobs "$dir/prefill" | tail -n 499 | paste -s -d , && echo ']'; } | tr -d '\n' >"$dir/whole"
    checks=$((checks + 1))
    distance "$dir/lost" "$dir/whole" | awk '{ exit !($1 != "x" && $1 > 1e-2) }' || bad "$m: a lost state goes unseen"
done
score "$dir/two" -m "$dir/m" --ids "$dir/ids" --ids "$dir/tail" # two texts, each as if it were alone
score "$dir/first" -m "$dir/m" --ids "$dir/ids"
score "$dir/second" -m "$dir/m" --ids "$dir/tail"
cat "$dir/first" "$dir/second" >"$dir/both"
ok cmp "$dir/two" "$dir/both"
ids 300 >"$dir/ids"
for split in 1 64 256 299 300 5000; do
    score "$dir/split" -m "$dir/m" --ids "$dir/ids" --split $split --mode decode
    score "$dir/prefill" -m "$dir/m" --ids "$dir/ids"
    near 2e-5 "$dir/prefill" "$dir/split"
done
score "$dir/one" -m "$dir/m" --ids "$dir/ids" -t 1
score "$dir/three" -m "$dir/m" --ids "$dir/ids" -t3
ok cmp "$dir/one" "$dir/three" # the number of threads changes no bit
score "$dir/ref" -m "$dir/m" --ids "$dir/ids" --backend cpu-ref
near 2e-4 "$dir/prefill" "$dir/ref"
expect 0 'ppl ' score -m "$dir/m" --ids "$dir/ids"
expect 0 'tokens/s' score -m "$dir/half" --ids "$dir/ids"

# ---- score: what cannot be scored ----

# where there is a GPU, it scores
"$hola" score -m "$dir/m" --ids "$dir/ids" --backend cuda >/dev/null 2>&1 ||
    expect 1 'CUDA' score -m "$dir/m" --ids "$dir/ids" --backend cuda
expect 1 'holds neither tokenizer' score -m "$dir/m" -f "$dir/ids"
expect 1 'more than the model' score -m "$dir/m" -f "$dir/ids" --tokenizer byte
expect 1 "$dir/nowhere" score -m "$dir/nowhere" --ids "$dir/ids"
expect 1 "$dir/none" score -m "$dir/m" --ids "$dir/none"
expect 1 'directory' score -m "$dir/m" --ids "$dir"
expect 1 'tiny' score -m "$dir/tiny.json" --ids "$dir/ids"
hostile() { # TEXT CONTENT: an ids file with this content is refused with TEXT, and its name
    printf '%b' "$2" >"$dir/hostile"
    expect 1 "$1" score -m "$dir/m" --ids "$dir/hostile"
    grep -qF "$dir/hostile" "$dir/err" || bad "ids '$2': the message does not name the file"
}
hostile 'not a JSON array' ''
hostile 'the array is empty' '[]'
hostile 'not a JSON array' '{}'
hostile 'not a JSON array' '7'
hostile 'not a JSON array' '"[1]"'
hostile 'not a JSON array' '[1, 2'
hostile 'not a JSON array' '[1, 2,]'
hostile 'not a JSON array' '[1, 2] 3'
hostile 'not a JSON array' '[1 2]'
hostile 'not a JSON array' '[0x1]'
hostile 'not a JSON array' '[01]'
hostile 'not a JSON array' '[NaN]'
hostile 'not a JSON array' '[99999999999999999999]'
hostile 'not a JSON array' '[1, \0001]'
hostile 'not a JSON array' '\0377\0376[1]'
hostile 'not a JSON array' '[1,\n\n "a\nb"]'
hostile '[1]: 61 is not a token id (0 to 60)' '[60, 61]'
hostile '[0]: -1 is not' '[-1]'
hostile '[2]: 1.0 is not' '[1, 2, 1.0]'
hostile '[0]: 4294967296 is not' '[4294967296]'
hostile '[1]: true is not' '[1, true]'
hostile '[1]: null is not' '[1, null]'
hostile '[0]: "1" is not' '["1"]'
hostile '[0]: [1] is not' '[[1]]'
awk 'BEGIN { for (i = 0; i < 100000; i++) printf "[" }' >"$dir/deep"
expect 1 "$dir/deep" score -m "$dir/m" --ids "$dir/deep"

# ---- inspect, and damaged models ----

expect 0 'model.layers.1.attn.q_proj.weight' inspect -m "$dir/m"
grep -q '^vocab_size  *61$' "$dir/out" || bad 'inspect: no vocab_size'
grep -q '^state of a session  *[0-9,]* bytes$' "$dir/out" || bad 'inspect: no state'
grep -q '^total ' "$dir/out" || bad 'inspect: no total'
expect 0 '"state_bytes": ' inspect -m "$dir/m" --json
trained=$(sed 's/.*"total": {"trained": \([0-9]*\), .*/\1/' "$dir/out")
"$hola" init -o "$dir/m" --config "$dir/tiny.json" --force --json >"$dir/out"
ok grep -q "\"parameters\": $trained," "$dir/out"
expect 0 'gated_deltanet' inspect -m "$dir/gdn"
grep -q cache_ "$dir/out" && bad 'inspect: a gated_deltanet has no cache'
expect 0 'BF16' inspect -m "$dir/half"

# a transformer: the keys and values of all tokens, or of a window
expect 0 'transformer, ' init -o "$dir/trans" --config "$dir/gdn.json" --model-type transformer
expect 0 '"rope_theta": 10000' inspect -m "$dir/trans" --json
expect 0 '... and per token' inspect -m "$dir/trans"
expect 1 'this model has no exact memory' inspect -m "$dir/trans" --memory --ids "$dir/ids"
sed 's/"window_size": null/"window_size": 9/' "$dir/trans/config.json" >"$dir/window.json"
expect 0 'transformer, ' init -o "$dir/window" --config "$dir/window.json"
expect 0 'state of a session' inspect -m "$dir/window"
grep -q 'per token' "$dir/out" && bad 'inspect: a window does not grow'
sed 's/"window_size": null/"window_size": 0/' "$dir/trans/config.json" >"$dir/window.json"
expect 1 'window_size: 0 is not between 1 and 1048576' init -o "$dir/none" --config "$dir/window.json"
for m in trans window; do # all modes agree, to the last digit
    expect 0 '"logprobs"' score -m "$dir/$m" --ids "$dir/ids" --json
    cp "$dir/out" "$dir/prefill"
    expect 0 '"logprobs"' score -m "$dir/$m" --ids "$dir/ids" --json --mode decode
    ok cmp -s "$dir/prefill" "$dir/out"
done
expect 1 "$dir/nowhere" inspect -m "$dir/nowhere"
cp -r "$dir/m" "$dir/cut"
size=$(wc -c <"$dir/m/model.safetensors")
for keep in 0 4 8 100 $((size / 2)) $((size - 1)); do
    head -c $keep "$dir/m/model.safetensors" >"$dir/cut/model.safetensors"
    expect 1 "$dir/cut" inspect -m "$dir/cut"
done
rm "$dir/cut/model.safetensors"
expect 1 "$dir/cut" inspect -m "$dir/cut"

# ---- tokenizer, train, plot: round trips, and what they refuse (more in test_train.sh and test_prepare.sh) ----

for c in tokenizer train plot prepare demo; do
    expect 0 "usage: hola $c" $c --help
done
for i in 1 2 3 4 5 6 7 8; do echo "the cat sat on the mat, the $i cats sat on $i mats"; done >"$dir/text.txt"
printf '\377{' >"$dir/broken"
expect 0 'tokens' tokenizer train -o "$dir/t.json" --vocab-size 280 "$dir/text.txt"
expect 0 '[' tokenizer encode --tokenizer "$dir/t.json" -f "$dir/text.txt"
cp "$dir/out" "$dir/text.ids"
expect 0 'the cat sat' tokenizer decode --tokenizer "$dir/t.json" --ids "$dir/text.ids"
ok cmp "$dir/out" "$dir/text.txt"
expect 0 '[104, 105]' tokenizer encode --tokenizer byte hi
expect 2 'train, encode or decode is required' tokenizer
expect 2 "not 'frobnicate'" tokenizer frobnicate
expect 2 '--out FILE is required' tokenizer train "$dir/text.txt"
expect 2 'no INPUT given' tokenizer train -o "$dir/x.json"
expect 2 '--vocab-size takes an integer from 258' tokenizer train -o "$dir/x.json" --vocab-size 3 "$dir/text.txt"
expect 2 "unknown option '--nonsense'" tokenizer train --nonsense
expect 1 "$dir/nowhere" tokenizer train -o "$dir/x.json" "$dir/nowhere"
expect 1 "$dir/text.txt/x" tokenizer train -o "$dir/text.txt/x" "$dir/text.txt"
ok test ! -e "$dir/x.json"
expect 2 '--tokenizer PATH is required' tokenizer encode hi
expect 1 "$dir/nowhere" tokenizer encode --tokenizer "$dir/nowhere" hi
expect 1 "$dir/nowhere" tokenizer encode --tokenizer byte -f "$dir/nowhere"
expect 1 "$dir/broken" tokenizer encode --tokenizer "$dir/broken" hi
expect 2 '--ids FILE is required' tokenizer decode --tokenizer byte
expect 1 "$dir/broken" tokenizer decode --tokenizer byte --ids "$dir/broken"
expect 2 '--data DIR is required' train
expect 2 '--out DIR is required' train --data "$dir"
expect 2 'one of --recipe, --preset, --config and -m is required' train --data "$dir" --out "$dir/x"
expect 2 'only one of --preset, --config and -m' train --data "$dir" --out "$dir/x" --preset 46m -m "$dir/m"
expect 2 '--lr takes a number' train --data "$dir" --out "$dir/x" --preset 46m --lr fast
expect 1 "$dir/broken" train --data "$dir" --out "$dir/x" --config "$dir/broken"
expect 1 "$dir/nowhere" train --data "$dir/nowhere" --out "$dir/x" --config "$dir/tiny.json"
ok test ! -e "$dir/x"
expect 2 '--out FILE is required' plot "$dir"
expect 2 'no RUN' plot -o "$dir/x.svg"
expect 2 'an .html or .svg file' plot -o "$dir/x.png" "$dir"
expect 1 "$dir/nowhere" plot -o "$dir/x.svg" "$dir/nowhere"
expect 1 "$dir/metrics.jsonl" plot -o "$dir/x.svg" "$dir"
expect 1 "no line of it is a training step" plot -o "$dir/x.svg" "$dir/broken"
ok test ! -e "$dir/x.svg"
echo '{"step": 1, "tokens": 10, "loss": 5, "lr": 0.1, "grad_norm": 1, "tok_per_s": 160000, "seconds": 1}' >"$dir/run.jsonl"
expect 0 '1 steps' plot -o "$dir/x.svg" "$dir/run.jsonl"
ok grep -q '>160000<' "$dir/x.svg" # and not 1.6e+05
expect 1 "$dir/nowhere/x.svg" plot -o "$dir/nowhere/x.svg" "$dir/run.jsonl"

# ---- results that cannot be written are failures ----

full() { # ARGS...: standard output is full, closed, or a pipe that nobody reads (which ends it as SIGPIPE does)
    for how in full closed pipe; do
        checks=$((checks + 1))
        case $how in
        full) want=1 said='hola: standard output: No space left on device'; "$hola" "$@" >/dev/full 2>"$dir/err"; got=$? ;;
        closed) want=1 said='hola: standard output: Bad file descriptor'; "$hola" "$@" >&- 2>"$dir/err"; got=$? ;;
        pipe)
            want=141 said=
            { sleep 0.1; "$hola" "$@" 2>"$dir/err"; echo $? >"$dir/status"; } | :
            got=$(cat "$dir/status") ;;
        esac
        [ "$got" = $want ] || bad "hola $*, output $how: status $got"
        [ "$(cat "$dir/err")" = "$said" ] || bad "hola $*, output $how: $(cat "$dir/err")"
    done
}
ids 5000 >"$dir/ids"
full --version
full help
full score --help
full score -m "$dir/m" --ids "$dir/ids"
full score -m "$dir/m" --ids "$dir/ids" --json
full inspect -m "$dir/m"
full inspect -m "$dir/m" --json
checks=$((checks + 1))
"$hola" frobnicate >&- 2>&- # nowhere to complain
[ $? = 2 ] || bad 'closed streams change the status'
"$hola" init -o "$dir/closed" --config "$dir/tiny.json" -s 5 <&- >&- 2>&- # and no model file takes their place
"$hola" init -o "$dir/m" --config "$dir/tiny.json" -s 5 --force >/dev/null
ok cmp "$dir/closed/model.safetensors" "$dir/m/model.safetensors"

finish
