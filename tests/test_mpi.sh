#!/bin/bash
# test_mpi.sh -- two ranks with half of each batch give the losses of one; one goes on with what two wrote.
hola=${HOLA:-./hola}
skip() { echo "SKIP $*" && exit 77; }
command -v mpirun >/dev/null || skip 'MPI: no mpirun'
dir=$(mktemp -d) || exit 1
trap 'rm -rf "$dir"' EXIT
export ASAN_OPTIONS="$ASAN_OPTIONS:detect_leaks=0" OMPI_MCA_btl_base_warn_component_unused=0 # MPI's own leaks
checks=0 failures=0
bad() { failures=$((failures + 1)) && echo "FAILED: $*"; }
ranks() { # N ARGS...
    n=$1
    shift
    timeout 60 mpirun --allow-run-as-root --oversubscribe -n "$n" "$hola" "$@" >"$dir/out" 2>"$dir/err"
}

cat >"$dir/c.json" <<END
{"model_type": "hola", "hidden_size": 32, "num_hidden_layers": 2, "num_heads": 2, "head_dim": 16, "expand_v": 1,
 "intermediate_size": 48, "vocab_size": 258, "tie_word_embeddings": true, "cache_window": 4, "cache_chunk": 16}
END
for i in $(seq 150); do echo "line $i of a text: $((i * i)) is the square of $i, and $((i * 7)) is seven times it."; done >"$dir/a.txt"
"$hola" prepare -o "$dir/data" --tokenizer byte --split-lines --val 0.1 "$dir/a.txt" >/dev/null || exit 1
options="--data $dir/data --config $dir/c.json --steps 8 --batch-tokens 256 --seq-len 32 --micro-tokens 64 --lr 3e-3
    --eval-every 4 --eval-tokens 512 --save-every 4 -t 1"

# near A B WITHIN: the numbers of every line but those of the clock, relative
near() {
    paste -d '\n' "$dir/$1/metrics.jsonl" "$dir/$2/metrics.jsonl" | sed 's/"tok_per_s": [^,]*, "seconds": [^,]*, //' |
        tr -d '{}",' | awk -v within="$3" '
            NR % 2 { split($0, a) ; n = NF; next }
            { if (NF != n) exit bad = 1
              for (i = 2; i <= NF; i += 2) { d = a[i] - $i; if (d < 0) d = -d; if (d > within * ($i < 0 ? -$i : $i)) exit bad = 1 } }
            END { exit bad || NR != 16 }'
}
same() {
    checks=$((checks + 1))
    near "$1" "$2" "${3:-0}" || bad "$1 and $2 differ: $(paste "$dir/$1/metrics.jsonl" "$dir/$2/metrics.jsonl" | tail -2)"
}

"$hola" train $options --out "$dir/one" 2>/dev/null >&2 || bad 'one rank'
ranks 2 train $options --out "$dir/two"
rc=$?
if [ $rc = 1 ] && grep -q 'built without MPI' "$dir/err"; then skip 'MPI: hola was built without it'; fi
[ $rc = 0 ] || bad "two ranks: $(cat "$dir/err")"
[ "$(grep -c '^step 8/8' "$dir/err")" = 1 ] || bad 'every rank prints'
same one two 1e-5
ranks 2 train $options --out "$dir/again"
same two again # to the bit
checks=$((checks + 1))
sed '5s/"loss": \(....\)./"loss": \19/' "$dir/two/metrics.jsonl" >"$dir/again/metrics.jsonl"
near two again 1e-5 && bad 'a wrong loss passes'
cmp -s "$dir/two/latest/training.safetensors" "$dir/again/latest/training.safetensors" || bad 'two ranks twice: moments differ'

# in FP8: scales are of numbers that rounding has parted, so one rank and two agree less well
"$hola" train $options --precision fp8 --out "$dir/one8" 2>/dev/null >&2 || bad 'one rank, FP8'
ranks 2 train $options --precision fp8 --out "$dir/two8" || bad "two ranks, FP8: $(cat "$dir/err")"
same one8 two8 1e-2
near one8 two 1e-7 && bad 'FP8 changes nothing'

# one rank, then three, go on from the middle of what two wrote
for n in 1 3; do
    rm -rf "$dir/two/latest" "$dir/two/checkpoints/step-00000008"
    ranks $n train $options --out "$dir/two" || bad "$n ranks after two: $(cat "$dir/err")"
    grep -q 'resuming at step 4' "$dir/err" || bad "$n ranks do not resume"
    same one two 1e-5
done
ranks 2 train $options --seq-len 48 --out "$dir/two" && bad 'wrong batch accepted'
[ "$(grep -c '^hola: ' "$dir/err")" = 1 ] || bad "two ranks complain: $(cat "$dir/err")"
ranks 2 train $options --lr 1 --out "$dir/two" && bad 'another rate accepted'
[ "$(grep -c '^hola: .*has lr' "$dir/err")" = 1 ] || bad "two ranks complain: $(cat "$dir/err")"

echo "$checks checks, $failures failed"
[ "$failures" -eq 0 ]
