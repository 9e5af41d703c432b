#!/bin/sh
# test_promises.sh -- bench/serve_promises.py keeps what it has: a promise that fails says why, and takes no other with
# it.
. "${0%/*}/common.sh"
command -v python3 >/dev/null || { echo 'SKIP promises: there is no python3 here' && exit 77; }
here=$(cd "${0%/*}" && pwd)
case $hola in /*) ;; *) hola=$PWD/$hola ;; esac
folder=$(dirname "$(readlink -f "$hola")")
"$folder/bench/streams" >/dev/null 2>&1
[ $? -eq 2 ] || { echo 'SKIP promises: bench/streams is not built or cannot run here' && exit 77; }
export PYTHONDONTWRITEBYTECODE=1

cat >"$dir/c.json" <<END
{"model_type": "hola", "hidden_size": 48, "num_hidden_layers": 2, "num_heads": 2, "head_dim": 24, "expand_v": 1,
 "intermediate_size": 96, "vocab_size": 2048, "tie_word_embeddings": true, "initializer_range": 0.2,
 "cache_window": 8, "cache_chunk": 32}
END
"$hola" init -o "$dir/tiny" --config "$dir/c.json" -s 5 >/dev/null || exit 1
cp "$here/../models/hola-tiny/tokenizer.json" "$dir/tiny/" || exit 1 # most of whose tokens are text

promises() { # STATUS PROGRAM ONLY
    timeout 200 python3 "$here/../bench/serve_promises.py" "$2" -m "$dir/tiny" --only "$3" --long 300 \
        --requests 160 --connections 50 --quick --json "$dir/out.json" >"$dir/table" 2>"$dir/errors"
    status=$?
    check "promises $3: status $status: $(tail -n 20 "$dir/table" "$dir/errors")" test "${1#*$status}" != "$1"
    sed -n '/^$/,$p' "$dir/table" >"$dir/last" # the table at the end
}
says() { # FILE TEXT...
    file=$1
    shift
    for text in "$@"; do check "promises: no '$text' in $(tail -n 20 "$file")" grep -q -e "$text" "$file"; done
}

# all are measured; a bound may be missed on a busy machine
promises '0 1' "$hola" P2,P3,P4,P5,P6,P7,P8,P9
says "$dir/last" 'not measured: none$'
for p in P2 P3 P4 P5 P6 P7 P8 P9; do
    says "$dir/last" "^| $p .*[0-9] "
    says "$dir/out.json" "\"name\": \"$p\""
done

# a program that cannot serve: every row says so
printf '#!/bin/sh\necho "hola: no such thing" >&2\nexit 5\n' >"$dir/hola"
chmod +x "$dir/hola"
ln -s "$folder/bench/streams" "$dir/bench_streams"
promises 3 "$dir/hola" P1,P5,P9
says "$dir/last" '^| P1 .*not measured' '^| P5 .*not measured: .*status 5.*no such thing' '^| P9 .*not measured'

# the first server dies: the next promise has another one; what an earlier run measured is still in the file
cat >"$dir/hola" <<END
#!/bin/sh
[ -e "$dir/died" ] && exec "$hola" "\$@"
touch "$dir/died"
"$hola" "\$@" &
sleep 1
kill -9 \$!
exit 1
END
promises '1 3' "$dir/hola" P9,P7,P5
says "$dir/last" '^| P9 .*not measured' '^| P7 .* ms of ' '^| P5 .* with 64'
says "$dir/out.json" '"name": "P2"'
finish
