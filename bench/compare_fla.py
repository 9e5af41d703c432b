#!/usr/bin/env python3
"""Times flash-linear-attention's chunked gated delta rule where it is installed, and ours in the same run.

    bench/compare_fla.py [path of bench_gdn, default build/cc/bench/gdn]     (make build/cc/bench/gdn)

Forward with fla's own L2 norm of q and k, as its layers use it; backward where this version's gradients are usable
(checked against fla's own recurrent form on a small case first; known to be wrong on Hopper with several Triton
versions). Medians by CUDA events; the first call of each shape tunes for minutes."""
import subprocess
import sys
import time

SHAPES = [(16, 2048, 4, 256), (32, 2048, 4, 128), (1, 32768, 4, 256)]


def main():
    ours = sys.argv[1] if len(sys.argv) > 1 else "build/cc/bench/gdn"
    try:
        print(subprocess.run([ours, "cuda"], check=True, stdout=subprocess.PIPE, text=True).stdout, flush=True)
    except (OSError, subprocess.CalledProcessError) as e:
        sys.exit(f"compare_fla: {e}")
    try:
        import torch
        import triton
        from fla.ops.gated_delta_rule import chunk_gated_delta_rule, fused_recurrent_gated_delta_rule
    except ImportError as e:
        print(f"flash-linear-attention is not timed: {e} (pip install flash-linear-attention, beside torch and triton)")
        return
    if not torch.cuda.is_available():
        print("flash-linear-attention is not timed: torch sees no CUDA device")
        return

    def inputs(n, length, heads, size, grad):
        x = dict(device="cuda", dtype=torch.bfloat16)
        q, k, v = (torch.randn(n, length, heads, size, requires_grad=grad, **x) for _ in range(3))
        beta = torch.rand(n, length, heads, requires_grad=grad, **x)
        g = (-0.1 * torch.rand(n, length, heads, device="cuda")).requires_grad_(grad)
        return q, k, v, g, beta

    def median(f, runs=20):
        for _ in range(3):
            f()
        times = []
        for _ in range(runs):
            a, b = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            a.record()
            f()
            b.record()
            b.synchronize()
            times.append(a.elapsed_time(b))
        return sorted(times)[runs // 2]

    def right():
        x = inputs(1, 192, 2, 64, True)
        out = []
        for f in (chunk_gated_delta_rule, fused_recurrent_gated_delta_rule):
            o, _ = f(*x[:3], g=x[3], beta=x[4], use_qk_l2norm_in_kernel=True)
            out.append((o, torch.autograd.grad(o.float().square().sum(), x)))
        far = [((a - b).float().norm() / b.float().norm()).item() for a, b in zip(out[0][1], out[1][1])]
        return max(far) < 0.03, far

    print(f"flash-linear-attention, triton {triton.__version__}, {torch.cuda.get_device_name()}")
    try:
        usable, far = right()
    except Exception as e:  # its recurrent form may have no backward
        usable, far = False, repr(e)[:100]
    if not usable:
        print(f"its backward is not usable here: {far}")
    for shape in SHAPES:
        x, t = inputs(*shape, False), time.time()
        with torch.no_grad():
            ms = median(lambda: chunk_gated_delta_rule(*x[:3], g=x[3], beta=x[4], use_qk_l2norm_in_kernel=True))
        line = "%3d x %6d, %d heads x %3d: forward %.3f ms" % (*shape, ms)
        if usable:
            x = inputs(*shape, True)
            o, _ = chunk_gated_delta_rule(*x[:3], g=x[3], beta=x[4], use_qk_l2norm_in_kernel=True)
            d = torch.randn_like(o)
            line += ", backward %.3f ms" % median(lambda: torch.autograd.grad(o, x, d, retain_graph=True))
        print(line, " (%.0f s)" % (time.time() - t), flush=True)


main()
