#!/bin/sh
# compare_builds.sh [options] OLD_TREE NEW_TREE: checks whether two builds of hola give the same bits, and shows
# differences. The values are those of compare_builds.c, compiled with each tree's own hola.h and libhola.a, and of
# the program.
usage() {
    cat <<'END'
usage: tools/compare_builds.sh [options] OLD_TREE NEW_TREE

Status 0 and "N values, all the same", or status 1 and the first values that differ.

  --backend NAME  cpu, cpu-ref, cpu-base, cpu-avx2, cpu-avx512, cpu-neon, cuda or cuda-f32; may be given several times
                  (default: cpu, cpu-ref, cpu-base and, where this machine has it, cpu-avx2)
  --kind A,B,...  these kinds of models alone (compare_builds.c lists them), without the presets and the program
  --speed         the times of hola bench instead: three rounds by turns, medians, new/old

What is not there is built, without CUDA: make -C TREE NVCC=. Other files than those of the trees:
  OLD_LIB, NEW_LIB      libhola.a
  OLD_PROBE, NEW_PROBE  compare_builds.c, compiled
  OLD_HOLA, NEW_HOLA    the programs
With both programs (and both probes, unless --speed) no trees are needed: for a machine that cannot build them.
  BENCH                 options of hola bench (--speed)
END
}
here=$(cd "${0%/*}" && pwd)
backends='' kind='' speed=''
while [ $# -gt 0 ]; do
    case $1 in
    --backend | --kind) [ $# -gt 1 ] || { usage >&2 && exit 2; } ;;
    esac
    case $1 in
    --backend) backends="$backends $2" && shift ;;
    --kind) kind=$2 && shift ;;
    --speed) speed=1 ;;
    -h | --help) usage && exit ;;
    -*) usage >&2 && exit 2 ;;
    *) break ;;
    esac
    shift
done
old=${1:-} new=${2:-} chosen=$backends
[ $# = 2 ] || { [ $# = 0 ] && [ -n "${OLD_HOLA:-}" ] && [ -n "${NEW_HOLA:-}" ]; } || { usage >&2 && exit 2; }
fail() { echo "compare_builds: $*" >&2 && exit 1; }
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
trap 'exit 1' INT TERM
began=$(date +%s)
export LC_ALL=C

# ---- builds ----

# library TREE: the path of its libhola.a, built if missing or older than its sources, so that the comparison is
# never of an outdated library.
library() {
    lib=$(ls -t "$1"/build/cc/libhola.a "$1"/build/*/libhola.a 2>/dev/null | head -n 1)
    if [ -z "$lib" ] || [ -n "$(find "$1/src" "$1/include" "$1/Makefile" -newer "$lib" -type f | head -n 1)" ]; then
        without=NVCC=
        [ -n "$lib" ] && has_cuda "$lib" && without=''
        make -C "$1" $without >"$work/make.log" 2>&1 || { tail -n 20 "$work/make.log" >&2 && return 1; }
        lib=$(ls -t "$1"/build/*/libhola.a | head -n 1)
    fi
    echo "$lib"
}
has_cuda() { grep -q cudaLaunchKernel "$1"; }
# build old|new TREE LIB PROBE HOLA: $work/SIDE.probe and $work/SIDE.hola
build() {
    side=$1 tree=$2 lib=$3 probe=$4 program=$5
    if [ -z "$program" ] || { [ -z "$probe" ] && [ -z "$speed" ]; }; then
        [ -d "$tree/src" ] || fail "'$tree': not a tree of hola"
        [ -n "$lib" ] || lib=$(library "$tree") || fail "$tree: cannot be built"
        [ -n "$program" ] || program=$(dirname "$lib")/hola
    fi
    [ -x "$program" ] || fail "'$program': no such program"
    ln -s "$(realpath "$program")" "$work/$side.hola"
    [ -z "$speed" ] || return
    if [ -z "$probe" ]; then
        probe=$work/$side.made libs="-ljansson $(pkg-config --libs libarchive 2>/dev/null) -lm -pthread"
        has_cuda "$lib" && libs="$libs -L${CUDA_HOME:-/usr/local/cuda}/lib64 -lcudart_static -ldl -lrt -lstdc++"
        ${CC:-cc} -std=c11 -O1 -Wall -Wextra -I"$tree/include" -o "$probe" "$here/compare_builds.c" "$lib" $libs ||
            fail "compare_builds.c cannot be built with $lib"
    fi
    [ -x "$probe" ] || fail "'$probe': no such program"
    ln -s "$(realpath "$probe")" "$work/$side.probe"
}
build old "$old" "${OLD_LIB:-}" "${OLD_PROBE:-}" "${OLD_HOLA:-}"
build new "$new" "${NEW_LIB:-}" "${NEW_PROBE:-}" "${NEW_HOLA:-}"

# ---- speed ----

# rows_of FILE: "milliseconds name" for every row of a report of hola bench
rows_of() {
    awk '
        /^[a-z.].* [0-9.]+ +[0-9.]+ +[0-9.]+%/ { split(substr($0, 15), x, " "); row(substr($0, 1, 14), x[2]) }
        /^of a training step:/ { gsub(/,/, ""); for (i = 5; i < NF; i += 3) row("  its " $i, $(i + 1)) }
        /^  [a-z0-9_]+ .* ms .* us / { if ($2 > 0) row("  step: " $1, $2); if ($5 > 0) row("  token: " $1, $5 / 1000) }
        function row(name, ms) { sub(/ +$/, "", name); printf "%.6f %s\n", ms, name }' "$1"
}
if [ -n "$speed" ]; then
    for b in ${backends:-cpu}; do
        case $b in
        cuda*) options='--alone --sessions 16' ;;
        *) options='--alone --batch 1 --seq-len 256 --prefill 512 -r 3' ;;
        esac
        options="--backend $b ${BENCH:-$options}"
        for round in 1 2 3; do
            for side in $([ $round = 2 ] && echo new old || echo old new); do # alternate which runs first
                "$work/$side.hola" bench $options >"$work/bench" || fail "$side: hola bench $options: status $?"
                rows_of "$work/bench" | sed "s/^/$side /" >>"$work/times"
            done
        done
        [ -s "$work/times" ] || fail 'hola bench printed no table'
        echo "hola bench $options, medians of three rounds, ms"
        awk '{ side = $1; ms = $2; name = $0; sub(/^[^ ]+ [^ ]+ /, "", name)
               if (!(name in seen)) { seen[name] = 1; order[++rows] = name }
               x[side, name, ++n[side, name]] = ms }
            function median(side, name, a, i, j, t, k) {
                k = n[side, name]
                for (i = 1; i <= k; i++) a[i] = x[side, name, i]
                for (i = 1; i <= k; i++)
                    for (j = i + 1; j <= k; j++)
                        if (a[j] < a[i]) { t = a[i]; a[i] = a[j]; a[j] = t }
                return k ? a[int((k + 1) / 2)] : 0
            }
            END {
                printf "%-28s %12s %12s %9s\n", "", "old", "new", "new/old"
                for (r = 1; r <= rows; r++) {
                    o = median("old", order[r]); w = median("new", order[r])
                    ratio = o && w ? sprintf("%.3f", w / o) : "-"
                    printf "%-28s %12.3f %12.3f %9s\n", order[r], o, w, ratio
                }
            }' "$work/times"
        rm "$work/times"
    done
    exit
fi

# ---- values ----

total=0 wrong=0
# same WHAT: the lines of $work/old.WHAT and $work/new.WHAT, name by name. A value that could not be
# computed counts as different, unless both builds say that the backend does not support it.
same() {
    awk -v what="$1" '
        { at = index($0, " = "); name = at ? substr($0, 1, at - 1) : $0; value = at ? substr($0, at + 3) : ""
          name = name (++times[FILENAME, name] > 1 ? " #" times[FILENAME, name] : "") }
        FILENAME == ARGV[1] { old[name] = value; order[++n] = name; next }
        { if (!(name in old)) complain(name, "not there", value)
          else if (old[name] != value) complain(name, old[name], value)
          else if (value ~ /^error: not supported/) refused++
          else if (value ~ /^error/) complain(name, value, "the same")
          met[name] = 1 }
        function complain(name, a, b) {
            if (++bad <= 5) list = list sprintf("  %s: old %s, new %s\n", name, a, b)
        }
        END {
            for (i = 1; i <= n; i++) if (!(order[i] in met)) complain(order[i], old[order[i]], "not there")
            result = bad ? bad " DIFFER, the first:" : n ? "the same" : "NONE"
            if (refused) result = result " (" refused " supported by neither)"
            printf "%-28s %6d values, %s\n%s", what, n, result, list
            exit bad > 0 || !n
        }' "$work/old.$1" "$work/new.$1" || wrong=$((wrong + 1))
    total=$((total + $(wc -l <"$work/old.$1")))
}
one() { # SIDE WHAT ARGS...: its probe, in $work/SIDE/WHAT
    side=$1 what=$2
    shift 2
    mkdir -p "$work/$side/$what"
    (cd "$work/$side/$what" && exec "$work/$side.probe" "$@") >"$work/$side.$what" 2>"$work/$side.said"
    echo $? >"$work/$side.status"
}
both() { # WHAT ARGS...: 3: neither has this backend
    one old "$@" &
    [ $threads = 1 ] || wait # do not oversubscribe the processors
    one new "$@"
    wait
    ends=$(cat "$work/old.status" "$work/new.status" | paste -s -d ' ')
    [ "$ends" = '3 3' ] && return 3
    [ "$ends" = '2 2' ] && fail "$(cat "$work/old.said")"
    [ "$ends" = '0 0' ] || {
        wrong=$((wrong + 1))
        echo "$1: the builds ended with status $ends:"
        sed 's/^/  /' "$work/old.said" "$work/new.said"
    }
    same "$1"
}

[ -n "$backends" ] || backends='cpu cpu-ref cpu-base cpu-avx2'
first='' few=betae,grouped-h2o,gdn-grouped,dn,kda-memory,gsa-conv,transformer-grouped
for b in $backends; do
    for threads in 1 2; do
        only=$kind
        # all of them split work the same way, and without AVX-512 cpu is cpu-avx2: a few kinds suffice
        if [ -z "$kind$chosen" ]; then
            case $b-$threads in
            cpu-avx2-1) grep -qw avx512f /proc/cpuinfo || only=$few ;;
            cpu-1 | cpu-2 | *-1) ;;
            *) only=$few ;;
            esac
        fi
        what=$b-$threads
        both $what --backend $b --threads $threads ${only:+--kind $only}
        if [ $? = 3 ]; then
            [ -z "$chosen" ] && [ $b = cpu-avx2 ] && echo "SKIP $b: not on this machine" && break
            fail "$(cat "$work/old.said")"
        fi
        if [ -z "$first" ]; then # the new build must read the old build's files as the old one does
            first=$b
            both $what-files --backend $b --threads $threads --read "$work/old/$what" ${only:+--kind $only}
        fi
        rm -rf "$work/old/$what" "$work/new/$what"
    done
done
[ -n "$kind" ] || both presets --backend $first --threads 2 --presets
rm -rf "$work/old" "$work/new"

# ---- the program: data, runs, checkpoints, results ----

files() { # NAME FILE...: their bytes, without the times in training.json
    name=$1
    shift
    for f in "$@"; do
        echo "$name/$f = $([ -f "$f" ] && sed '/^  "seconds": /d' "$f" | cksum || echo 'error: missing')"
    done
}
# says NAME ARGS...: hola's output without times and system details
says() {
    name=$1
    shift
    "$hola" "$@" >out 2>err || echo "$name/status = error: $(head -n 1 err)"
    sed 's/"[a-z_]*tok_per_s": [^,}]*//g; s/"seconds": [^,}]*//g; s/"resident_bytes": [^,}]*//g' out >text
    echo "$name = $(cksum <text)"
}
run() { # OUT STEPS
    "$hola" train --data data --out "$1" --config config.json --steps "$2" --batch-tokens 256 --seq-len 64 --lr 3e-3 \
        --micro-tokens 128 --schedule constant --warmup 2 --eval-every 4 --eval-tokens 256 --save-every 4 -t 2 \
        --backend $first 2>err >out || echo "$1/train = error: $(grep '^hola: ' err)"
    files after "$1"/latest/*.safetensors "$1"/latest/*.json
    sed 's/"tok_per_s": [^,]*, "seconds": [^,]*, //' "$1/metrics.jsonl" |
        awk -v run="$1" '{ print run "/step" NR " = " $0 }'
}
# drive SIDE: a typical sequence of commands, in $work/SIDE
drive() {
    hola=$work/$1.hola
    mkdir -p "$work/$1/rows" && cd "$work/$1" || exit 1
    for i in $(seq 150); do
        echo "line $i of a text: $((i * i)) is the square of $i, and $((i * 7)) is seven times it."
    done >text.txt
    cat >config.json <<'END'
{"model_type": "hola", "hidden_size": 48, "num_hidden_layers": 2, "num_heads": 2, "head_dim": 24, "expand_v": 1,
 "intermediate_size": 96, "vocab_size": 300, "tie_word_embeddings": true, "initializer_range": 0.2,
 "max_position_embeddings": 512, "cache_window": 8, "cache_chunk": 32, "cache_gate_init": 0.0}
END
    says tokenizer tokenizer train --json -o tokenizer.json --vocab-size 300 text.txt
    files made tokenizer.json
    says prepare prepare --json -o data --tokenizer tokenizer.json --split-lines --val 0.1 text.txt
    files made data/*
    for task in recall mqar; do
        says $task prepare --json -o $task --generate $task --samples 20
        files made $task/*
    done
    run whole 12
    run half 8
    cp -r half again && run again 12
    m="-m whole/latest --tokenizer tokenizer.json -t 2 --backend $first"
    says score score $m -f text.txt --json
    says score-decode score $m -f text.txt --mode decode --json
    says greedy generate $m -p 'line 1 of' -n 80 -s 1 --temp 0 --ignore-eos --json --logits 5 --save-session session
    says sampled generate $m -p 'line 1 of' -n 80 -s 7 --ignore-eos --json
    head -n 20 text.txt >prompts.txt
    says many generate $m --prompts prompts.txt -n 30 -s 3 --parallel 6 --json
    files made session
    says inspect inspect -m whole/latest --json
    says memory inspect $m --memory -f text.txt --json
    for t in bf16 f16 int8 int4; do
        says convert-$t convert --json -m whole/latest -o as-$t --dtype $t
        files made as-$t/*.safetensors as-$t/config.json
        says score-$t score -m as-$t --tokenizer tokenizer.json --backend $first -f text.txt --json
    done
    says text eval $m --tasks text --text text.txt --json
    printf '%s\n' '{"question": "Which?", "choices": ["one", "two", "three"], "gold": 1}' >rows/test.jsonl
    mkdir -p tasks && mv rows tasks/arc_easy
    says choice eval $m --data tasks --tasks arc_easy --json
}
# go_on SIDE: continues from the old build's files
go_on() {
    hola=$work/$1.hola
    cd "$work/$1" && rm -rf half && cp -r "$work/old.left/half" . && run half 12
    m="-m $work/old.left/whole/latest --tokenizer tokenizer.json -t 2 --backend $first"
    says session generate $m -p '' -n 40 -s 1 --temp 0 --ignore-eos --json --load-session "$work/old.left/session"
    says evaluate score $m -f text.txt --json
}
if [ -z "$kind" ]; then
    for part in drive go_on; do
        [ $part = drive ] || cp -r "$work/old" "$work/old.left"
        ($part old) >"$work/old.program-$part" &
        ($part new) >"$work/new.program-$part"
        wait $!
        same program-$part
    done
fi

[ $wrong = 0 ] || { echo "they DIFFER, see above; $(($(date +%s) - began)) s" && exit 1; }
echo "$total values, all the same ($(($(date +%s) - began)) s)"
