#!/bin/sh
# deps.sh [build|test|arm]: ensures that a compiler and the libraries are installed; arm: the cross compiler and the
# emulator of tools/test_arm.sh. Missing packages are listed, then installed with apt-get if this user needs no password
# for that and NO_APT is not 1; the command is printed before it runs. Otherwise the command is only printed. Silent if
# nothing is missing. Needs only a shell, for machines without a compiler.
for_what=${1:-test}
cc=${CC:-cc}
case $cc in *clang*) compiler=clang ;; *) compiler=gcc ;; esac

compiles_with() { # HEADER...
    { printf '#include <%s>\n' setjmp.h stdarg.h stddef.h stdint.h "$@"; } | $cc -E -x c - >/dev/null 2>&1
}
missing() {
    if [ "$for_what" = arm ]; then
        command -v aarch64-linux-gnu-gcc >/dev/null || echo gcc-aarch64-linux-gnu
        [ -e /usr/aarch64-linux-gnu/include/stdio.h ] || echo libc6-dev-arm64-cross
        command -v qemu-aarch64-static >/dev/null || command -v qemu-aarch64 >/dev/null || echo qemu-user-static
        return
    fi
    command -v "${cc%% *}" >/dev/null || echo $compiler
    command -v ar >/dev/null || echo binutils
    compiles_with stdio.h || echo libc6-dev
    compiles_with jansson.h || echo libjansson-dev
    [ "$for_what" = build ] || compiles_with cmocka.h || echo libcmocka-dev
}
# Optional packages, each for a feature: compressed text in hola prepare, line editing in hola generate -i, several
# ranks in hola train (only for tests, because it is large), emulated CUDA kernels (tests), several servers behind a
# proxy (tests). Tried once.
optional() {
    [ "$for_what" != arm ] && [ ! -e build/.tried-optional-$for_what ] || return
    pkg-config --exists libarchive 2>/dev/null || echo pkg-config libarchive-dev
    pkg-config --exists libedit 2>/dev/null || echo pkg-config libedit-dev
    [ "$for_what" = build ] || command -v mpirun >/dev/null || echo libopenmpi-dev openmpi-bin
    [ "$for_what" = build ] || command -v g++ >/dev/null || echo g++
    [ "$for_what" = build ] || [ -x /usr/sbin/haproxy ] || command -v haproxy >/dev/null || echo haproxy
}

# the usual case: a single compiler run
if [ "$for_what" = build ]; then compiles_with jansson.h; else compiles_with jansson.h cmocka.h; fi &&
    [ "$for_what" != arm ] && command -v ar >/dev/null && [ -z "$(optional)" ] && exit 0

packages=$(echo $(missing) $(optional))
[ -n "$packages" ] || exit 0
if [ "${NO_APT:-0}" = 1 ]; then
    sudo=none
elif [ "$(id -u)" = 0 ]; then
    sudo=
elif sudo -n true 2>/dev/null; then
    sudo='sudo -n'
else
    sudo=none
fi
get="env DEBIAN_FRONTEND=noninteractive apt-get"
install="install -y --no-install-recommends $packages"
if [ "$sudo" != none ] && command -v apt-get >/dev/null; then
    echo "hola uses Debian packages that are not installed here: $packages"
    echo "running now (NO_APT=1 prevents it): $sudo apt-get $install"
    # a machine without package lists must fetch them first
    $sudo $get $install >/dev/null 2>&1 || { $sudo $get update && $sudo $get $install; }
fi
[ "${NO_APT:-0}" = 1 ] || { mkdir -p build && touch build/.tried-optional-$for_what; }
packages=$(echo $(missing))
[ -n "$packages" ] || exit 0
echo "hola needs these Debian packages (or what they are called elsewhere): $packages"
echo "to install them: sudo apt-get install $packages"
exit 1
