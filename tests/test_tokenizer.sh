#!/bin/sh
# test_tokenizer.sh -- hola tokenizer: what it warns of and refuses; and, where Python's tokenizers is installed, the ids
# of random texts against it, in every shape of tests/data/tokenizers.
. "${0%/*}/common.sh"
shapes=$(dirname "$0")/data/tokenizers

# fewer tokens than asked for: a warning, and the tokenizer is written all the same
echo 'the cat sat on the mat, the cats sat on mats' >"$dir/text.txt"
"$hola" tokenizer train -o "$dir/t.json" --vocab-size 5000 "$dir/text.txt" >"$dir/out" 2>"$dir/err"
check "few tokens: status $?" [ $? -eq 0 ]
check "few tokens: no warning: $(cat "$dir/err")" grep -q 'not the 5,000 asked for' "$dir/err"
check 'few tokens: one line' [ "$(wc -l <"$dir/err")" -eq 1 ]
check 'few tokens: no file' [ -s "$dir/t.json" ]
"$hola" tokenizer train -o "$dir/t.json" --vocab-size 260 "$dir/text.txt" >"$dir/out" 2>"$dir/err"
check "enough tokens: $(cat "$dir/err")" [ ! -s "$dir/err" ]
# no text at all
: >"$dir/empty.txt"
refused 1 "$dir/empty.txt: no text to train on" tokenizer train -o "$dir/none.json" "$dir/empty.txt"
check 'no text: a file' [ ! -e "$dir/none.json" ]
# a directory without a tokenizer: what to do
mkdir "$dir/bare"
refused 1 '--tokenizer PATH' tokenizer encode --tokenizer "$dir/bare" hi
refused 1 '--tokenizer byte' tokenizer encode --tokenizer "$dir/bare" hi
# what is not known is named
sed 's/"NFC"/"Nmt"/' "$shapes/qwen2.json" >"$dir/nmt.json"
refused 1 'normalizer: type "Nmt" is not supported' tokenizer encode --tokenizer "$dir/nmt.json" hi

python=${HOLA_TEST_PYTHON:-python3}
if ! "$python" -c 'import tokenizers' 2>/dev/null; then
    echo 'SKIP random texts against tokenizers: Python has no such package here (pip install tokenizers)'
    finish
    exit
fi
"$python" - "$hola" "$shapes" "$(dirname "$0")/../tools" "$dir" <<'PY' || bad 'random texts: see above'
import json, os, random, subprocess, sys
hola, shapes, tools, scratch = sys.argv[1:]
sys.path.insert(0, tools)
from check_tokenizer import hard_text
from tokenizers import Tokenizer
rng = random.Random(5)
for name in sorted(x for x in os.listdir(shapes) if x != "expected.json"):
    path = os.path.join(shapes, name)
    oracle = Tokenizer.from_file(path)
    # many texts in one, as a program is started for each
    text = "".join(hard_text(rng) + rng.choice(["", " ", "\n"]) for _ in range(400)).replace("\r", "\r\n")
    with open(os.path.join(scratch, "random.txt"), "wb") as f:
        f.write(text.encode())
    out = subprocess.run([hola, "tokenizer", "encode", "--tokenizer", path, "-f", os.path.join(scratch, "random.txt")],
                         check=True, capture_output=True).stdout
    if json.loads(out) != oracle.encode(text, add_special_tokens=False).ids:
        sys.exit(f"{name}: other ids than those of tokenizers")
PY
checks=$((checks + 1))
finish
