#!/bin/bash
# test_help.sh -- what helps a newcomer: suggestions, the version, the default model, completions; and what is left behind
# by a command that could not write.
. "${0%/*}/common.sh"
top=$(cd "${0%/*}/.." && pwd)

# ---- did you mean ----

refused 2 "unknown command 'scroe': did you mean 'score'?; see" scroe
refused 2 "unknown command 'frobnicate'; see" frobnicate
refused 2 "unknown option '--stpes': did you mean '--steps'?" train --stpes 3
refused 2 "unknown option '--modle=x': did you mean '--model'?" score --modle=x
refused 2 "unknown option '--zzzzzz'; see" score --zzzzzz
refused 2 "--preset: '47m' is unknown: did you mean '46m'?" init -o "$dir/x" --preset 47m
refused 2 "--preset: '340m-gat' is unknown: did you mean '340m-gate'?" train --preset 340m-gat
refused 2 "not 'prefil': did you mean 'prefill'?" score -m "$dir" --ids x --mode prefil
refused 2 "unknown task 'arc_esy': did you mean 'arc_easy'?" eval -m "$dir" --data "$dir" --tasks arc_esy
for word in --version -V version; do check "$word" test "$("$hola" $word)" = "hola $(sed -n 's/^#define HOLA_VERSION "\(.*\)"/\1/p' "$top/include/hola.h")"; done

# ---- the model that is used when none is named ----

cat >"$dir/tiny.json" <<END
{"model_type": "hola", "hidden_size": 32, "num_hidden_layers": 1, "num_heads": 2, "head_dim": 16, "expand_v": 1,
 "intermediate_size": 32, "vocab_size": 258, "bos_token_id": 256, "eos_token_id": 257, "initializer_range": 0.2}
END
ok "$hola" init -o "$dir/m" --config "$dir/tiny.json"
echo '[1, 2, 3]' >"$dir/ids"
for command in "score --ids $dir/ids" inspect 'generate -p x --tokenizer byte' "convert -o $dir/x --dtype bf16" \
    "eval --data $dir --tasks wikitext" serve; do
    refused 2 "--model DIR is required: no model 'hola-46m' came with this hola; HOLA_MODEL can name one" $command
done
HOLA_MODEL=$dir/nowhere refused 1 "$dir/nowhere/config.json" inspect
export HOLA_MODEL=$dir/m
ok "$hola" score --ids "$dir/ids"
ok "$hola" convert -o "$dir/half" --dtype bf16
check 'inspect --json' test "$("$hola" inspect --json | grep -c '"hidden_size": 32')" = 1
check 'a text' test -n "$("$hola" generate --tokenizer byte -p x -n 5 -q --ignore-eos | od -c)"
"$hola" eval --data "$dir" --tasks wikitext >"$dir/out" 2>"$dir/err" # finds the model; there is no data for it
check 'eval gets past the model' grep -qv 'required' "$dir/err"
# installed, and in a source tree: beside the program
unset HOLA_MODEL
mkdir -p "$dir/prefix/bin" "$dir/prefix/share/hola/models" "$dir/tree/build/cc" "$dir/tree/models"
cp "$hola" "$dir/prefix/bin/hola" && cp "$hola" "$dir/tree/build/cc/hola"
if [ ! -e "$top/models/hola-46m/config.json" ] && [ ! -e /usr/share/hola ] && [ ! -e /usr/local/share/hola ]; then
    "$dir/prefix/bin/hola" inspect >"$dir/out" 2>"$dir/err"
    ended 'no model beside the program' $? 2 '--model DIR is required'
fi
cp -r "$dir/m" "$dir/prefix/share/hola/models/hola-46m" && cp -r "$dir/m" "$dir/tree/models/hola-46m"
ok "$dir/prefix/bin/hola" inspect
ok "$dir/tree/build/cc/hola" inspect
export HOLA_MODEL=

# ---- what cannot be written ----

# SIZE ARGS...: with files of at most SIZE blocks of 1024 bytes: one line, status 1, nothing left
limited() {
    size=$1 && shift
    rm -rf "$dir/out.d" && (ulimit -f "$size" && "$hola" "$@" >"$dir/out" 2>"$dir/err")
    ended "ulimit -f $size: $*" $? 1 'File too large'
    check "nothing is left of $*" test -z "$(ls -A "$dir/out.d" 2>/dev/null)" -a ! -e "$dir/out.d"
}
limited 1 init -o "$dir/out.d" --config "$dir/tiny.json"
echo '{"keep": "me"}' >"$dir/m/tokenizer_config.json"
limited 8 convert -m "$dir/m" -o "$dir/out.d" --dtype f32
(ulimit -f 1 && "$hola" generate -m "$dir/m" --tokenizer byte -p x -n 3 -q --save-session "$dir/saved" >"$dir/out" 2>"$dir/err")
check 'generate: status 1' test $? = 1
check 'generate says why' grep -q 'File too large' "$dir/err"
check 'no session is left' test -z "$(ls -A "$dir" | grep saved)"
# a directory that was there stays, and what was in it
mkdir "$dir/out.d" && echo mine >"$dir/out.d/tokenizer_config.json"
(ulimit -f 8 && "$hola" convert -m "$dir/m" -o "$dir/out.d" --dtype f32 >"$dir/out" 2>"$dir/err")
check 'the file that was there is there' test -s "$dir/out.d/tokenizer_config.json"
# the reader of a long text leaves: no word, no report
"$hola" generate -m "$dir/m" --tokenizer byte -p x -n 20000 --ignore-eos -s 1 2>"$dir/err" | head -c 10 >/dev/null
check 'the reader left' test "${PIPESTATUS[0]}" = 141 -a ! -s "$dir/err"
"$hola" generate -m "$dir/m" --tokenizer byte -p x -n 5 --ignore-eos -s 1 >/dev/full 2>"$dir/err"
check 'generate, disk full' test "$(cat "$dir/err")" = 'hola: standard output: No space left on device'

# ---- the commands in the documents ----

if command -v python3 >/dev/null; then
    documents() { python3 "$top/tests/doc_commands.py" "$hola" "$@" >"$dir/text"; }
    checks=$((checks + 1))
    documents "$top"/README.md "$top"/docs/*.md "$top"/models/README.md "$top"/models/*/README.md "$top"/study/README.md || bad "$(cat "$dir/text")"
    check "many of them: $(cat "$dir/text")" test "$(sed -n 's/ commands.*//p' "$dir/text")" -gt 60
    printf 'such as `hola score --frobnicate 3`\n' >"$dir/wrong.md"
    check 'an option that is none is found' eval '! documents "$dir/wrong.md"'
else
    echo "SKIP the commands in the documents: there is no python3 here"
fi

# ---- completions: they ask the program, so they know what it knows ----

complete_words() { # WORD...: what bash offers for the last one
    COMP_WORDS=("$hola" "$@") COMP_CWORD=$#
    _hola
    printf '%s\n' "${COMPREPLY[@]}" | sort -u
}
. "$top/completions/hola.bash"
commands=$("$hola" help | sed -n 's/^  \([a-z]*\)  .*/\1/p')
check 'thirteen commands or more' test "$(echo "$commands" | wc -l)" -ge 13
check 'commands' test "$(complete_words '')" = "$(printf '%s\n' $commands help version --help --version | sort -u)"
check 'one command' test "$(complete_words gen)" = generate
for c in $commands 'tokenizer train'; do
    [ "$c" = tokenizer ] && continue
    want=$("$hola" $c --help | grep -o '^  .\{4\}--[a-z0-9-]*' | sed 's/.*--/--/' | sort -u)
    check "options of $c" test -n "$want" -a "$(complete_words $c --)" = "$want"
done
check 'values' test "$(complete_words score --mode '')" = "$(printf 'decode\nprefill')"
check 'values of a letter' test "$(cd "$dir" && complete_words score -m tiny)" = tiny.json
check 'train of tokenizer' test "$(complete_words tokenizer tr)" = train
# the same in the other shells: LINE on one line, what a tab makes of it on the next
mkdir "$dir/shell" && cp "$top/completions/hola.zsh" "$dir/shell/_hola" && ln -s "$(realpath "$hola")" "$dir/shell/hola"
lines=('hola gen' 'hola score --back' 'hola score --mode pre' 'hola tokenizer tr' 'hola tokenizer train --vocab' 'hola frob' 'hola train --frob')
whole=('hola generate' 'hola score --backend' 'hola score --mode prefill' 'hola tokenizer train' 'hola tokenizer train --vocab-size' 'hola frob' 'hola train --frob')
if command -v zsh >/dev/null; then
    got=$(timeout 100 zsh -f "$top/tests/complete.zsh" "$dir/shell" "${lines[@]}")
    check "zsh: $got" test "$got" = "$(printf '%s\n' "${whole[@]}")"
else
    echo "SKIP completions of zsh: not installed"
fi
if command -v fish >/dev/null; then
    ok fish -n "$top/completions/hola.fish"
    for i in "${!lines[@]}"; do
        got=$(PATH="$dir/shell:$PATH" fish -c ". '$top/completions/hola.fish'; complete -C '${lines[i]}'" | cut -f 1)
        last=${whole[i]##* }
        [ "${lines[i]}" = "${whole[i]}" ] && last= # nothing to offer
        check "fish: ${lines[i]}: $got" test "$got" = "$last"
    done
    # all options of every command, as bash has them
    for c in $commands 'tokenizer train'; do
        [ "$c" = tokenizer ] && continue
        got=$(PATH="$dir/shell:$PATH" fish -c ". '$top/completions/hola.fish'; complete -C 'hola $c --'" | cut -f 1 | sort -u)
        check "fish: options of $c" test "$got" = "$(complete_words $c -- | sort -u)"
    done
else
    echo "SKIP completions of fish: not installed"
fi
finish
