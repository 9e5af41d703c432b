#!/bin/sh
# The training step of hola and of the same model in PyTorch (bench/torch_model.py, Debian's python3-torch) in one
# run: PyTorch as it comes, PyTorch tuned by hand, hola. Arguments: batch, sequence length, threads.
set -e
cd "$(dirname "$0")/.."
batch=${1:-4} seq=${2:-1024} threads=${3:-2}
python=${PYTHON:-/usr/bin/python3}
field() { sed -n "s/.*\"$1\": \([0-9.]*\).*/\1/p"; }
torch() { $python bench/torch_model.py --batch "$batch" --seq "$seq" --threads "$threads" --steps 2 --json "$@" 2>/dev/null; }

make -s build/cc/hola >&2
for type in hola gated_deltanet; do
    plain=$(torch --model-type $type --plain | field tokens_per_s)
    tuned=$(torch --model-type $type | field tokens_per_s)
    ours=$(./build/cc/hola bench --train-only --model-type $type -t "$threads" --batch "$batch" --seq-len "$seq" -r 2 --json |
        tr ',' '\n' | sed -n 's/.*"tokens_per_s": \([0-9.]*\).*/\1/p' | head -1)
    echo "$type $plain $tuned $ours" | awk '{
        printf "%-15s PyTorch %.0f tokens/s, tuned %.0f; hola %.0f: %.2f and %.2f times as fast\n", $1, $2, $3, $4, $4 / $2, $4 / $3 }'
done
