#!/bin/bash
# test_python_torch.sh -- hola.torch (tests/python_torch), with the python3 that has torch: PYTHON names another.
. "${0%/*}/common.sh"
python=${PYTHON:-python3}
here=$(cd "${0%/*}" && pwd) || exit 1
for module in torch pytest; do
    "$python" -c "import $module" 2>/dev/null || { echo "SKIP hola.torch: $python has no $module" && exit 77; }
done
# hola.torch alone, without the package around it: it must do without, and libhola.so need not be built
mkdir "$dir/hola" && ln -s "$here/../python/hola/torch" "$dir/hola/torch" || exit 1
export HOLA VECTORS=${VECTORS:-$here/../../shared/vectors} PYTHONPATH=$dir PYTHONDONTWRITEBYTECODE=1 HF_HUB_OFFLINE=1
HOLA=$(realpath "$hola")
export HOLA_EMULATED=${HOLA%/*}/libhola-emu.so
cd "$dir" && "$python" -m pytest -q -rs -p no:cacheprovider "$here/python_torch" >"$dir/out" 2>&1 || bad "pytest"
[ "$failures" -eq 0 ] || tail -n 150 "$dir/out"
grep '^SKIPPED' "$dir/out" | sed 's/^SKIPPED/SKIP/'
tail -n 1 "$dir/out"
checks=$((checks + 1))
finish
