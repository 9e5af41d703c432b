#!/bin/sh
# test_arm.sh: compiles hola for 64-bit ARM and runs tests under qemu-user: those named by ONLY, or a short
# selection, on QEMU_CPU (max: with dot-product instructions; cortex-a72: without). The cross compiler and qemu are
# Debian packages, found or installed by deps.sh; jansson and cmocka for ARM are unpacked into build/arm64-libs, and
# nothing else on this machine changes. If one is unavailable, prints SKIP and succeeds.
set -e
cd "$(dirname "$0")/.."
cc=aarch64-linux-gnu-gcc
libs=$PWD/build/arm64-libs/usr
skip() {
    echo "SKIP arm: $*"
    exit 0
}

fetch_libs() ( # with separate package lists for that architecture
    state=$PWD/build/arm64-apt
    rm -rf "$state" build/arm64-libs
    mkdir -p "$state/lists/partial" "$state/archives/partial" "$state/deb" build/arm64-libs
    set -- -o APT::Architecture=arm64 -o APT::Architectures=arm64 -o Dir::State="$state" -o Dir::Cache="$state" \
        -o Dir::State::status=/dev/null -o APT::Sandbox::User="$(id -un)" -o Acquire::Languages=none
    apt-get "$@" update && cd "$state/deb" &&
        apt-get "$@" download libjansson4 libjansson-dev libcmocka0 libcmocka-dev &&
        for d in *.deb; do dpkg -x "$d" "$state/../arm64-libs"; done && rm -rf "$state"
) >/dev/null 2>&1

tools/deps.sh arm || skip 'no cross compiler, or no qemu'
if [ ! -e "$libs/include/cmocka.h" ]; then
    [ "${NO_APT:-0}" = 1 ] && skip 'no jansson and cmocka in build/arm64-libs, and NO_APT is 1'
    command -v apt-get dpkg >/dev/null || skip 'jansson and cmocka come from Debian, and there is no apt-get'
    echo 'fetching jansson and cmocka for ARM with apt-get into build/arm64-libs (NO_APT=1 prevents it)'
    fetch_libs || skip "apt-get does not find jansson and cmocka for ARM"
fi

qemu=$(command -v qemu-aarch64-static || command -v qemu-aarch64)
export RUNNER="$qemu -cpu ${QEMU_CPU:-max} -L /usr/aarch64-linux-gnu" HOLA_EMULATED=aarch64
unset QEMU_CPU # qemu reads it too
export C_INCLUDE_PATH="$libs/include" NO_APT=1 LDFLAGS="-L$libs/lib/aarch64-linux-gnu"
LDFLAGS="$LDFLAGS -Wl,-rpath,$libs/lib/aarch64-linux-gnu"
[ -n "$ONLY" ] || ONLY='test_backend test_quant test_small_gemm test_backends.sh'
# this checks correctness, not speed: -O1 compiles in a third of the time
exec "${MAKE:-make}" --no-print-directory CC=$cc AR=aarch64-linux-gnu-ar NVCC= CXX= MPI= PKG_CONFIG=false \
    CFLAGS="${CFLAGS:--O1}" ONLY="$ONLY" test
