#!/bin/sh
# check-style.sh LIBRARY: automatic style checks. Prints every violation, then fails.

# Allowed includes: a folder of src/, then the folders below it. (A folder's own headers and those of include/ are
# always allowed; ops/ may include cuda/ only in .cu and .cuh files.) Nothing in src/ includes files outside it,
# except that cuda/common.cuh uses the emulator (tests/emu) for the CUDA headers if there is no nvcc.
arrows='
core
gguf       core
cuda       core
ops        core cuda
fused      core cuda ops
backend    core cuda ops fused
mixers     core ops fused backend
model      core gguf ops fused backend mixers
tokenizer  core gguf
chat       core gguf tokenizer
data       core tokenizer chat
plot       core train eval
train      core backend model tokenizer chat data plot
eval       core backend model tokenizer data
serve      core gguf model tokenizer chat
cli        core gguf ops backend mixers model tokenizer chat data plot train eval serve
'

cc=${CC:-cc}
code=$(find include src tests bench tools examples -name '*.[ch]' -o -name '*.cu' -o -name '*.cuh' -o -name '*.[ch]pp' | sort)
sources="$code $(find tests tools -name '*.sh' | sort)"
in_src=$(echo "$code" | grep '^src/')
bad=0
complain() { bad=1 && echo "check-style: $*"; }
all() { sed 's/^/check-style: /' | grep .; } # reports every line of the input; false: no input

for f in $sources Makefile; do
    lines=$(wc -l <"$f")
    [ "$lines" -le 700 ] || complain "$f: $lines lines, the most is 700"
    if grep -q "$(printf ' $\|\r')" "$f"; then complain "$f: space or carriage return at the end of a line"; fi
done
[ "$(wc -l <Makefile)" -lt 200 ] || complain 'Makefile: 200 lines or more'
if grep -qE '^.{161,}' Makefile; then complain 'Makefile: a line of more than 160 columns'; fi

if command -v clang-format >/dev/null; then
    ugly=$(echo "$code" | xargs clang-format --dry-run --Werror 2>&1 | sed -n 's/:[0-9]*:[0-9]*: .*//p' | sort -u)
    [ -z "$ugly" ] || complain 'make format would change:' $ugly
else
    echo 'SKIP clang-format: not installed'
fi

grep -En '^[[:space:]]*#[[:space:]]*include[[:space:]]+"' $in_src | awk -v arrows="$arrows" -F '[:"]' '
    BEGIN {
        n = split(arrows, row, "\n")
        for (i = 1; i <= n; i++)
            for (k = split(row[i], word, " "); k > 0; k--) allowed[word[1], word[k]] = 1
    }
    {
        split($1, path, "/"); from = path[2]
        split($4, path, "/"); to = path[1]
        ok = (from, to) in allowed || to == "hola.h" || to == "hola_ops.h" || ($1 == "src/cuda/common.cuh" && $4 == "emu/emu.h")
        if (from == "ops" && to == "cuda" && $1 !~ /\.cuh?$/) ok = 0
        if (!ok) printf "%s:%s: includes %s: %s/ may not (tools/check-style.sh says who may)\n", $1, $2, $4, from
    }' | all && bad=1

grep -Eho '^[[:space:]]*(struct|union|enum) hl_[a-z0-9_]+ \{' $in_src | sed 's/^ *//; s/ {//' | sort | uniq -d | while read -r tag; do
    echo "$tag is defined twice:" $(grep -l "$tag {" $in_src)
done | all && bad=1

LC_ALL=C.UTF-8 grep -nE '^.{121,}' ./*.md docs/*.md models/*.md models/*/*.md | grep -vE '^[^:]*:[0-9]*:[[:space:]]*[|]|https?://' |
    sed 's/^\([^:]*:[0-9]*\):.*/\1: more than 120 columns/' | all && bad=1

# (functions shared by the files of one CUDA op have C++ names; a kernel that is not static would be one copy for both
# types. Without optimisation, nvcc leaves weak symbols of std:: and the CUDA headers.)
nm -g --defined-only "$1" | awk '
    $2 == "W" && $3 ~ /^(_ZSt|_ZN4dim3|(ll|u)?(min|max)$)/ { next }
    NF == 3 && $3 !~ /^(_Z[0-9]+)?(hola|hl)_/ && $3 !~ /^DW.ref/ { print $3 }' | sort -u |
    sed "s|.*|$1 defines &: not hola_ or hl_|" | all && bad=1

compile='-Wall -Wextra -Wpedantic -Werror -fsyntax-only -Iinclude'
echo '#include "hola_ops.h"' | $cc -std=c11 $compile -x c - || complain 'hola.h or hola_ops.h is not C11'
if echo 'int x;' | $cc -std=c++17 -fsyntax-only -x c++ - 2>/dev/null; then
    echo '#include "hola_ops.h"' | $cc -std=c++17 $compile -x c++ - || complain 'hola.h or hola_ops.h is not C++17'
    echo '#include "hola.hpp"' | $cc -std=c++17 $compile -x c++ - || complain 'hola.hpp is not C++17'
else
    echo "SKIP hola.h as C++: $cc has no C++"
fi
[ $bad = 0 ] && echo 'style: ok'
