#!/bin/sh
# The Python package, from the tree: tests/python with the library that make has built. Needs NumPy and pytest.
set -u
. "${0%/*}/common.sh"
python=${PYTHON:-python3}
here=$(cd "${0%/*}/.." && pwd)
library=${hola%/*}/libhola.so.0
skip() { echo "SKIP python: $1" && exit 77; }
command -v "$python" >/dev/null || skip "there is no $python"
[ -e "$library" ] || skip "no ${library##*/} beside the program (sanitizers)"
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 9))' || skip "$python is older than 3.9"
for package in numpy pytest; do
    "$python" -c "import $package" 2>/dev/null || skip "$python has no $package"
done
cd "$here" || exit 1
PYTHONPATH=$here/python HOLA_LIBRARY=$library HOLA_EMULATED=${library%/*}/libhola-emu.so PYTHONDONTWRITEBYTECODE=1 \
    "$python" -m pytest -q -rs -p no:cacheprovider --basetemp="$dir/pytest" tests/python
