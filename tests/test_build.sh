#!/bin/sh
# test_build.sh -- the Makefile makes again what a change of options, tools or files concerns, and nothing else; packages
# are installed only after a word. In a copy of the tree, with compilers that only write down that they were called.
top=$(cd "${0%/*}/.." && pwd)
dir=$(mktemp -d) || exit 1
trap 'rm -rf "$dir"' EXIT
checks=0 failures=0
check() { checks=$((checks + 1)) && what=$1 && shift && { "$@" || { failures=$((failures + 1)) && echo "FAILED: $what"; }; }; }

mkdir "$dir/bin" "$dir/tree" "$dir/tree/tests"
cat >"$dir/bin/compiler" <<'END'
#!/bin/sh
case " $*" in
*-dumpmachine*) echo x86_64-linux-gnu && exit ;;
*--version*) echo "fake $FAKE_VERSION 1.0" && exit ;;
*' -c '* | *' -o '*) ;;
*) exit 0 ;;
esac
echo "${0##*/} $*" >>"$LOG"
while [ $# -gt 1 ]; do [ "$1" = -o ] && : >"$2"; shift; done
END
printf '#!/bin/sh\n: >"$2"\necho "ar $*" >>"$LOG"\n' >"$dir/bin/ar"
chmod +x "$dir/bin/compiler" "$dir/bin/ar"
for name in cc g++ nvcc; do ln -s compiler "$dir/bin/$name"; done
cp -r "$top/Makefile" "$top/src" "$top/include" "$top/tools" "$dir/tree"
cp -r "$top/tests/emu" "$dir/tree/tests/"
mkdir "$dir/tree/python" && cp "$top/python/python.mk" "$dir/tree/python/"
export LOG="$dir/log" FAKE_VERSION=a PATH="$dir/bin:$PATH"
unset MAKEFLAGS MFLAGS MAKELEVEL MAKEOVERRIDES CFLAGS LDFLAGS NVCC SAN TSAN FUZZ ONLY CUDA_ARCH
cd "$dir/tree" || exit 1
build() { : >"$LOG" && make -s NO_APT=1 CC=cc CXX=g++ "$@" >"$dir/out" 2>&1 || { echo "make $*:" && cat "$dir/out" && exit 1; }; }
planned() { make -n NO_APT=1 CC=cc CXX=g++ "$@" 2>/dev/null; } # what make would do
compiled() { grep -c ' -c ' "$LOG"; }
sources() { planned "$@" | grep -c '^echo "  CC '; }

build NVCC=
all=$(compiled)
check "a build compiles everything ($all)" test "$all" -gt 200
check 'the program is linked' grep -q -e '-o build/cc/hola ' "$LOG"
build NVCC=
check "a second build makes nothing: $(cat "$LOG")" test ! -s "$LOG"
rm build/cc/float/src/cli/cmd_score.o
build NVCC=
check "a lost object is made again: $(compiled)" test "$(compiled)" = 1
check 'and the program linked' grep -q -e '-o build/cc/hola ' "$LOG"
touch src/model/session.c
build NVCC=
check "a changed source is compiled: $(compiled)" test "$(compiled)" = 1
rm src/eval/wikitext.c # the archive and the program must lose it
build NVCC=
check 'a source that is gone leaves the archive' grep -q '^ar ' "$LOG"
check 'and is not in it' test "$(grep '^ar ' "$LOG" | grep -c wikitext)" = 0
all=$((all - 1))

check 'other flags: everything again' test "$(sources NVCC= CFLAGS=-O0)" = "$all"
build NVCC= CFLAGS=-O0
check 'with those flags' test "$(grep -c -e ' -O0 ' "$LOG")" -ge "$all"
build NVCC= CFLAGS=-O0
check 'and then nothing' test ! -s "$LOG"
export FAKE_VERSION=b
check 'another compiler: everything again' test "$(sources NVCC= CFLAGS=-O0)" = "$all"
export FAKE_VERSION=a
build NVCC=

# a CUDA compiler comes: its kernels, backend.c, which must know of it, and new links
kernels=$(ls src/ops/*/*_cuda.cu src/fused/*/*_cuda.cu | wc -l)
planned NVCC="$dir/bin/nvcc" V=1 >"$dir/plan"
check 'kernels for both types' test "$(grep -c 'nvcc .*\.cu$' "$dir/plan")" = $((2 * kernels))
check 'backend.c knows' grep -q 'HL_HAVE_CUDA.* src/backend/backend.c' "$dir/plan"
check 'a new program' grep -q -e '-o build/cc/hola ' "$dir/plan"
check 'and not everything' test "$(grep -c '/cc .* -c \|^mkdir.* cc .* -c ' "$dir/plan")" -lt 40

# ---- packages ----

cat >"$dir/bin/apt-get" <<'END'
#!/bin/sh
grep -q "running now.*apt-get $*" "$SAID" && echo announced >>"$LOG" || echo "silent: $*" >>"$LOG"
END
printf '#!/bin/sh\necho 0\n' >"$dir/bin/id"
chmod +x "$dir/bin/apt-get" "$dir/bin/id"
export SAID="$dir/said"
: >"$LOG"
CC=no-such-compiler tools/deps.sh build >"$SAID" 2>&1
check 'apt-get is run, after a word' test "$(cat "$LOG")" = announced
: >"$LOG"
NO_APT=1 CC=no-such-compiler tools/deps.sh build >"$SAID" 2>&1
check 'NO_APT=1: it is not run' test ! -s "$LOG"
check 'but named' grep -q 'to install them: sudo apt-get install gcc' "$SAID"
echo "$checks checks, $failures failed"
[ "$failures" -eq 0 ]
