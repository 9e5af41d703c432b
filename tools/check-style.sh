#!/bin/sh
# check-style.sh LIBRARY: what a reviewer should not have to look for. Prints what is wrong, then fails.
cc=${CC:-cc}
sources=$(find include src tests bench tools -name '*.[ch]' -o -name '*.sh' -o -name '*.cu' -o -name '*.cuh' -o -name '*.cpp' | sort)
bad=0
complain() { bad=1 && echo "check-style: $*"; }

for f in $sources Makefile; do
    lines=$(wc -l <"$f")
    [ "$lines" -le 700 ] || complain "$f: $lines lines, the most is 700"
    if grep -q "$(printf ' $\|\r')" "$f"; then complain "$f: space or carriage return at the end of a line"; fi
done
[ "$(wc -l <include/hola.h)" -lt 400 ] || complain 'include/hola.h: 400 lines or more'
[ "$(wc -l <Makefile)" -lt 150 ] || complain 'Makefile: 150 lines or more'

if command -v clang-format >/dev/null; then
    ugly=$(echo "$sources" | grep -v '\.sh$' | xargs clang-format --dry-run --Werror 2>&1 | sed -n 's/:[0-9]*:[0-9]*: .*//p' | sort -u)
    [ -z "$ugly" ] || complain 'make format would change:' $ugly
else
    echo 'SKIP clang-format: not installed'
fi

# (what files of one CUDA op share has C++ names; a kernel that is not static would be one copy for both types. Weak ones
# of std:: and of the CUDA headers are left where nvcc does not optimise.)
nm -g --defined-only "$1" | awk 'NF == 3 && !($2 == "W" && $3 ~ /^(_ZSt|_ZN4dim3|(ll|u)?(min|max)$)/) && $3 !~ /^(_Z[0-9]+)?(hola|hl)_/ && $3 !~ /^DW.ref/ { print $3 }' | sort -u | while read -r name; do
    echo "check-style: $1 defines $name: not hola_ or hl_"
done | grep . && bad=1

compile='-Wall -Wextra -Wpedantic -Werror -fsyntax-only -Iinclude'
echo '#include "hola.h"' | $cc -std=c11 $compile -x c - || complain 'hola.h is not C11'
if echo 'int x;' | $cc -std=c++17 -fsyntax-only -x c++ - 2>/dev/null; then
    echo '#include "hola.h"' | $cc -std=c++17 $compile -x c++ - || complain 'hola.h is not C++17'
else
    echo "SKIP hola.h as C++: $cc has no C++"
fi
[ $bad = 0 ] && echo 'style: ok'
