#!/bin/bash
# test_demo.sh -- hola demo in its quick form: what it prints and leaves, that threads change nothing, bad requests.
# What the models learn is not looked at: that takes minutes (docs/demo.md).
. "${0%/*}/common.sh"
# expect STATUS TEXT ARGS...: one line on stderr holds TEXT, nothing is printed
expect() {
    want=$1 text=$2
    shift 2
    "$hola" demo "$@" >"$dir/out" 2>"$dir/err"
    ended "demo $*" $? "$want" "$text"
}

# ---- a run and what it leaves ----

ok "$hola" demo --help
ok "$hola" demo --quick --steps 6 -t 2 -o "$dir/two"
"$hola" demo --quick --steps 6 -t 1 -o "$dir/one" >"$dir/text" 2>"$dir/log" || bad 'the demo fails'
for f in recall.json recall.svg gdn/config.json gdn/model.safetensors hola/model.safetensors \
    hola-recency/model.safetensors; do
    ok test -s "$dir/one/$f"
    ok cmp "$dir/one/$f" "$dir/two/$f" # the number of threads changes nothing
done
ok test "$(ls -A "$dir/one" | wc -l)" = 5
ok grep -q '^step 6/6 | loss: GDN [0-9.]*, HOLA [0-9.]*, HOLA+recency [0-9.]* | ' "$dir/log"
ok test "$(grep -c '^\(4\|8\|16\|32\|48\|64\|96\) .* +- ' "$dir/text")" = 7
ok test "$(grep -c '^[0-9]* ([0-9]*x) .* +- ' "$dir/text")" = 5
ok test "$(grep -c '^head [01] keeps 64 tokens: the values of [0-9]* of 32 facts' "$dir/text")" = 2
ok grep -q '^the most recent 64 tokens would be: ' "$dir/text"
ok grep -q '^  [kvKV.*]*$' "$dir/text"

# ---- the numbers: every mean in [0, 1], its error below a half; 64 positions in order ----

checks=$((checks + 1))
tr -d '\n' <"$dir/one/recall.json" | grep -o '"\(gdn\|hola\|hola-recency\)": *\[[^]]*\]' | tr -d '[]' |
    awk -F '[:,]' '$2 < 0 || $2 > 1 || $3 < 0 || $3 > 0.5 { bad = 1 } END { exit bad || NR != 36 }' ||
    bad 'recall.json: not 3 x 12 means with their errors'
checks=$((checks + 1))
tr -d '\n ' <"$dir/one/recall.json" | grep -o '"positions":\[[^]]*\]' | sed 's/.*\[//; s/\]//' |
    awk -F , '{ for (i = 2; i <= NF; i++) if ($i <= $(i - 1)) bad = 1; if (NF != 64) bad = 1 }
              END { exit bad || NR != 3 }' || bad 'recall.json: not three lists of 64 positions'
ok grep -q '"seed": 1,' "$dir/one/recall.json"
ok grep -q '"steps": 6,' "$dir/one/recall.json"
ok grep -q '</svg>' "$dir/one/recall.svg"
checks=$((checks + 1))
grep -q 'nan\|inf' "$dir/one/recall.svg" && bad 'recall.svg: not a number'
ok "$hola" inspect -m "$dir/one/hola-recency"
ok "$hola" demo --quick --steps 6 --samples 2 -s 2 -o "$dir/one" # over an old one
checks=$((checks + 1))
cmp -s "$dir/one/hola/model.safetensors" "$dir/two/hola/model.safetensors" && bad 'another seed gives the same model'

# ---- bad requests ----

expect 2 "unknown option '--nonsense'" --nonsense
expect 2 "unexpected argument 'x'" x
expect 2 '--steps takes an integer from 1' --steps 0
expect 2 '--samples takes an integer from 2' --samples 1
expect 2 '--seed takes an integer' --seed -1
expect 2 '--threads takes an integer from 1' -t 0
expect 2 'needs a value' -o
: >"$dir/file"
expect 1 "$dir/file" --quick -o "$dir/file"
expect 1 "$dir/file/x" --quick -o "$dir/file/x"
expect 1 '/proc' --quick -o /proc/demo

finish
