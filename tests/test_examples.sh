#!/bin/sh
# test_examples.sh -- examples/ compile with every warning, against the library alone, and do what they say.
. "${0%/*}/common.sh"
top=$(cd "${0%/*}/.." && pwd)
lib=$(dirname "$hola")/libhola.a
[ -e "$lib" ] || { echo "$lib: no such library" && exit 1; }
libs="-ljansson $(pkg-config --libs libarchive 2>/dev/null) -lm -pthread"
flags='-O1 -Wall -Wextra -Wpedantic -Werror'
case $lib in *-san/*) flags="$flags -fsanitize=address,undefined" ;; *-tsan/*) flags="$flags -fsanitize=thread" ;; esac
nm "$lib" 2>/dev/null | grep -q cudaMalloc && libs="$libs -L/usr/local/cuda/lib64 -lcudart_static -ldl -lrt -lstdc++"
build() { # COMPILER STANDARD FILE
    checks=$((checks + 1)) && name=$(basename "${3%.*}")
    # shellcheck disable=SC2086
    $1 "-std=$2" $flags "-I$top/include" "$3" "$lib" $libs -o "$dir/$name" >"$dir/said" 2>&1 || bad "$3: $(head -n 20 "$dir/said")"
}
for f in "$top"/examples/*.c; do
    build "${CC:-cc}" c11 "$f"
    check "$f: over 100 lines" test "$(wc -l <"$f")" -le 100
done
if command -v g++ >/dev/null; then build g++ c++17 "$top/examples/raii.cpp"; else echo 'SKIP raii.cpp: no g++'; fi

# train writes the model that the others use
i=0 && while [ $i -lt 60 ]; do echo "line $i: the quick brown fox jumps over the lazy dog" && i=$((i + 1)); done >"$dir/text"
"$dir/train" "$dir/text" "$dir/m" 31 >"$dir/out" 2>"$dir/err"
check "train: $(cat "$dir/err")" test $? = 0
first=$(sed -n 's/^step 0  loss \([0-9]*\).*/\1/p' "$dir/out") last=$(sed -n 's/^step 30  loss \([0-9]*\).*/\1/p' "$dir/out")
check "it learns: from $first to $last" test "${last:-9}" -lt "${first:-0}"
# a tokenizer beside it: bytes
printf 'a' >"$dir/a" && "$hola" tokenizer train -o "$dir/m/tokenizer.json" --vocab-size 258 "$dir/a" >/dev/null 2>&1
check 'a tokenizer of bytes' test -s "$dir/m/tokenizer.json"

"$dir/generate" "$dir/m" 'the quick' >"$dir/out" 2>"$dir/err"
check "generate: $(cat "$dir/err")" test $? = 0 -a -s "$dir/out" -a ! -s "$dir/err"
"$dir/generate" "$dir/nowhere" >"$dir/out" 2>"$dir/err"
check 'generate without a model' test $? = 1 -a "$(grep -c "^generate: $dir/nowhere" "$dir/err")" = 1
"$dir/many_sessions" "$dir/m" one two three >"$dir/out" 2>"$dir/err"
check "many_sessions: $(cat "$dir/err")" test $? = 0 -a "$(grep -c '^[123]: ' "$dir/out")" = 3
"$dir/many_sessions" "$dir/m" one >"$dir/alone" 2>&1
check 'a session gives the same alone' test "$(head -c "$(wc -c <"$dir/alone")" "$dir/out" | od -c)" = "$(od -c <"$dir/alone")"
"$dir/ask_document" "$dir/m" "$dir/text" who why who >"$dir/out" 2>"$dir/err"
check "ask_document: $(cat "$dir/err")" test $? = 0
check 'it read all of the document' grep -q '[0-9]* tokens in a session of [0-9]* bytes' "$dir/err"
check 'the same question, the same answer' test "$(grep -a -c '^who:' "$dir/out")" = 2 -a "$(grep -a '^who:' "$dir/out" | sort -u | wc -l)" = 1
if [ -x "$dir/raii" ]; then
    "$dir/raii" "$dir/m" 'the quick' >"$dir/out" 2>"$dir/err"
    check "raii: $(cat "$dir/err")" test $? = 0 -a "$(grep -a -c '^---$' "$dir/out")" = 1
    "$dir/raii" "$dir/nowhere" >"$dir/out" 2>"$dir/err"
    check 'raii without a model' test $? = 1 -a "$(grep -c "^raii: $dir/nowhere" "$dir/err")" = 1
fi
finish
