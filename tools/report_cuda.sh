#!/bin/sh
# report_cuda.sh OUT [PART...]: runs the contents of `make pack-cuda` on this machine's GPU. OUT gets a file per
# program and report.txt. PART: tests, ops, hola, models, context (default: all, in this order). SECONDS_LEFT=540:
# starts nothing that could not finish in time. Needs no internet, compiler or library of this machine.
here=$(cd "$(dirname "$0")" && pwd)
[ $# -gt 0 ] || { echo 'usage: report.sh OUT [tests|ops|hola|models|context]...' >&2; exit 2; }
out=$1
shift
[ $# -gt 0 ] || set -- tests ops hola models context
mkdir -p "$out" || exit 1
start=$(date +%s) limit=${SECONDS_LEFT:-100000}
PATH=$here:$PATH

run() { # SECONDS NAME COMMAND...: its output goes to OUT/NAME.txt and, the last 40 lines, to the terminal
    most=$1 name=$2
    shift 2
    if [ $(($(date +%s) - start + most)) -gt "$limit" ]; then
        echo "== $name: passed over, it may take $most s" | tee -a "$out/report.txt"
        return
    fi
    began=$(date +%s)
    timeout "$most" "$@" >"$out/$name.txt" 2>&1
    rc=$?
    {
        echo "== $name (status $rc, $(($(date +%s) - began)) s): $*"
        tail -n 40 "$out/$name.txt"
    } | tee -a "$out/report.txt"
}
bench() { # SECONDS NAME OPTION...
    most=$1 name=$2
    shift 2
    run "$most" "$name" hola bench --backend cuda --json "$@"
}

nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader | tee -a "$out/report.txt"
hola --version | tee -a "$out/report.txt"
for part in "$@"; do
    case $part in
    tests) JOBS=${JOBS:-4} TEST_SECONDS=${TEST_SECONDS:-240} run 300 tests "$here/run.sh" "$here"/cuda_* ;;
    ops)
        run 60 gdn bench_gdn
        run 60 gdn_long bench_gdn cuda 1x32768x16x128 8x4096x16x128
        run 60 kda bench_kda
        run 60 gla bench_gla
        run 90 attention bench_attention_cuda
        run 90 fp8 bench_fp8
        run 60 lookup bench_lookup cuda 340m
        run 60 pointwise bench_pointwise
        ;;
    hola)
        bench 60 train_46m --preset 46m --train-only --batch 32 --seq-len 2048
        bench 90 train_340m --preset 340m --train-only --batch 16 --seq-len 2048
        bench 60 infer_46m --preset 46m --infer-only --prefill 32768 --sessions 64
        bench 90 infer_340m --preset 340m --infer-only --prefill 32768 --sessions 64
        ;;
    models)
        for type in transformer gla gsa kda; do
            bench 60 "train_46m_$type" --alone --model-type $type --preset 46m --train-only --batch 32 --seq-len 2048
            bench 60 "train_340m_$type" --alone --model-type $type --preset 340m --train-only --batch 16 --seq-len 2048
            bench 60 "infer_340m_$type" --alone --model-type $type --preset 340m --infer-only --prefill 8192
        done
        ;;
    context)
        run 60 context_constant bench_context cuda 340m "$out/context_constant.json" 131072 gla,gsa,kda
        run 120 context bench_context cuda 340m "$out/context.json" 131072
        bench_context table "$out"/context*.json | tee -a "$out/report.txt"
        bench_context draw "$out"/context*.json "$out/context.svg"
        ;;
    *) echo "report.sh: $part: no such part" >&2 && exit 2 ;;
    esac
done
