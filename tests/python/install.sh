#!/bin/sh
# install.sh [PYTHON...]: the Python package as users get it. Builds a wheel and a source distribution, looks into them,
# and for each PYTHON (default: $PYTHON or python3) installs the wheel into a fresh environment and runs tests/python
# there. The first one also gets: mypy, twine, pip install --no-index . and -e ., lm-eval. Needs PyPI for numpy and the
# tools. HOLA_WHEEL_CUDA as for the build.
set -eu
unset HOLA_LIBRARY PYTHONPATH
here=$(cd "${0%/*}/../.." && pwd)
[ $# -gt 0 ] || set -- "${PYTHON:-python3}"
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
say() { printf '== %s\n' "$*"; }
fail() { echo "FAILED: $*" && exit 1; }
tests() { # ENVIRONMENT: away from the tree, so that only what is installed can be imported
    (cd "$dir" && "$1/bin/python" -m pytest -q -rs -p no:cacheprovider "$here/tests/python")
}

say "environment of $1"
"$1" -m venv "$dir/first"
"$dir/first/bin/pip" install -q --no-compile numpy pytest matplotlib pyarrow mypy twine

say 'wheel and source distribution'
(cd "$here" && "$dir/first/bin/pip" wheel -q --no-index --no-deps -w "$dir/dist" .)
(cd "$here/python" && "$dir/first/bin/python" -c "import build_hola; build_hola.build_sdist('$dir/dist')")
wheel=$(ls "$dir"/dist/*.whl)
ls -l "$dir/dist"
case $wheel in *-py3-none-manylinux_2_*_"$(uname -m)".whl) ;; *) fail "name of $wheel" ;; esac
[ "$(stat -c %s "$wheel")" -lt 100000000 ] || fail 'the wheel has 100 MB or more'
"$dir/first/bin/twine" check --strict "$dir"/dist/*
"$dir/first/bin/python" - "$wheel" <<'PY'
import sys, zipfile
z = zipfile.ZipFile(sys.argv[1])
names = z.namelist()
assert not [n for n in names if n.endswith((".c", ".h", ".cu", ".pyc", ".o"))], names
for end in ("hola/lib/libhola.so", "hola/lib/libjansson.so.4", ".data/scripts/hola", "hola/py.typed", "/LICENSE"):
    assert any(n.endswith(end) for n in names), end
program = next(z.getinfo(n) for n in names if n.endswith("scripts/hola"))
assert program.external_attr >> 16 == 0o100755, oct(program.external_attr >> 16)
PY

for python in "$@"; do
    say "installed for $python"
    env=$dir/first
    if [ "$python" != "$1" ]; then
        env=$dir/env
        rm -rf "$env" && "$python" -m venv "$env" && "$env/bin/pip" install -q --no-compile numpy pytest
    fi
    "$env/bin/pip" install -q --no-index "$wheel"
    said=$("$env/bin/hola" --version)
    [ "$said" = "$("$env/bin/python" -m hola --version)" ] || fail "python -m hola is not $said"
    library=$(echo "$env"/lib/python3*/site-packages/hola/lib/libhola.so)
    for file in "$env/bin/hola" "$library"; do
        needs=$(ldd "$file" | grep -vE 'linux-vdso|ld-linux|lib(c|m|dl|rt|pthread)\.so|libjansson' || true)
        [ -z "$needs" ] || fail "$file needs $needs"
    done
    ldd "$library" | grep -q "jansson.*$env" || fail 'jansson is not the copy'
    tests "$env"
done

first=$dir/first/bin
say 'mypy --strict'
(cd "$here" && "$first/mypy" --cache-dir "$dir/mypy")
say 'pip install --no-index . and pip install -e .'
"$first/pip" uninstall -q -y hola-lm
(cd "$here" && "$first/pip" install -q --no-index .)
(cd "$dir" && "$first/python" -c 'import hola; assert "site-packages" in hola.__file__; print(hola.build_info())')
(cd "$here" && "$first/pip" install -q --no-index -e .)
(cd "$dir" && "$first/python" -c 'import hola; assert "site-packages" not in hola.__file__')
(cd "$dir" && "$first/python" -m hola --version)
"$first/pip" uninstall -q -y hola-lm
say 'from the source distribution'
"$first/pip" install -q --no-index "$dir"/dist/*.tar.gz
(cd "$dir" && "$first/python" -c 'import hola; assert "site-packages" in hola.__file__' && "$first/hola" --version)
say 'lm-evaluation-harness'
if "$first/pip" install -q --no-compile lm-eval; then
    (cd "$dir" && HOLA_TEST_LM_EVAL=1 HF_HUB_OFFLINE=1 HF_DATASETS_OFFLINE=1 \
        "$first/python" -m pytest -q -p no:cacheprovider "$here"/tests/python/test_lm_eval.py \
        "$here"/tests/python/test_prepare.py)
else
    echo 'SKIP lm-eval: it cannot be installed'
fi
say 'all passed'
