#!/usr/bin/env python3
"""Times flash-linear-attention's chunked operators where it is installed, and ours in the same run.

    bench/compare_fla.py [gdn] [kda] [gla] [gsa]     default: all; needs the programs build/cc/bench/NAME
                                                     (make build/cc/bench/gdn build/cc/bench/kda build/cc/bench/gla)

Forward with fla's own L2 norm of q and k where its layers use it; backward of gdn where this version's gradients are
usable (checked against fla's own recurrent form on a small case first; known to be wrong on Hopper with several Triton
versions). Medians by CUDA events; the first call of each shape tunes for minutes. BENCH names another folder."""
import os
import subprocess
import sys
import time

# sequences, tokens, heads, d_k, d_v, slots
SHAPES = {
    "gdn": [(16, 2048, 4, 256, 256, 0), (32, 2048, 4, 128, 128, 0), (1, 32768, 4, 256, 256, 0)],
    "kda": [(32, 2048, 4, 128, 128, 0), (16, 2048, 8, 128, 128, 0), (1, 32768, 4, 128, 128, 0)],
    "gla": [(32, 2048, 4, 128, 128, 0), (32, 2048, 4, 64, 128, 0), (16, 2048, 4, 128, 256, 0)],
    "gsa": [(32, 2048, 4, 128, 128, 64), (16, 2048, 4, 256, 256, 64)],
}
PROGRAMS = {"gdn": "gdn", "kda": "kda", "gla": "gla", "gsa": "gla"}


def ours(names):
    folder = os.environ.get("BENCH", "build/cc/bench")
    for name in dict.fromkeys(PROGRAMS[n] for n in names):
        try:
            run = subprocess.run([os.path.join(folder, name), "cuda"], check=True, stdout=subprocess.PIPE, text=True)
        except (OSError, subprocess.CalledProcessError) as e:
            sys.exit(f"compare_fla: {e}")
        print(run.stdout, flush=True)


def main():
    names = sys.argv[1:] or list(SHAPES)
    for name in names:
        if name not in SHAPES:
            sys.exit(f"compare_fla: {name} is not one of {', '.join(SHAPES)}")
    ours(names)
    try:
        import torch
        import triton
        from fla.ops.gated_delta_rule import chunk_gated_delta_rule, fused_recurrent_gated_delta_rule
        from fla.ops.gla import chunk_gla
        from fla.ops.gsa import chunk_gsa
        from fla.ops.kda import chunk_kda
    except ImportError as e:
        print(f"flash-linear-attention is not timed: {e} (pip install flash-linear-attention, beside torch and triton)")
        return
    if not torch.cuda.is_available():
        print("flash-linear-attention is not timed: torch sees no CUDA device")
        return

    def random(*shape, grad=False, low=None):
        if low is None:
            return torch.randn(*shape, device="cuda", dtype=torch.bfloat16, requires_grad=grad)
        return (low * torch.rand(*shape, device="cuda")).requires_grad_(grad)

    def inputs(op, n, length, heads, k_size, v_size, slots, grad=False):
        q, k = (random(n, length, heads, k_size, grad=grad) for _ in range(2))
        v = random(n, length, heads, v_size, grad=grad)
        beta = torch.rand(n, length, heads, device="cuda", dtype=torch.bfloat16).requires_grad_(grad)
        if op == "gdn":
            return q, k, v, random(n, length, heads, grad=grad, low=-0.1), beta
        if op == "kda":
            return q, k, v, random(n, length, heads, k_size, grad=grad, low=-0.1), beta
        if op == "gla":
            return q, k, v, random(n, length, heads, k_size, grad=grad, low=-0.1)
        f = random(n, length, heads, slots, grad=grad, low=-0.1)
        return q, k, v, (1 - f.exp()).to(q.dtype), f

    def call(op, x):
        if op == "gdn":
            return chunk_gated_delta_rule(*x[:3], g=x[3], beta=x[4], use_qk_l2norm_in_kernel=True)
        if op == "kda":
            return chunk_kda(*x[:3], g=x[3], beta=x[4], use_qk_l2norm_in_kernel=True)
        if op == "gla":
            return chunk_gla(*x[:3], g=x[3])
        return chunk_gsa(*x[:3], s=x[3], g=x[4], scale=1.0)

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
        x = inputs("gdn", 1, 192, 2, 64, 64, 0, grad=True)
        out = []
        for f in (chunk_gated_delta_rule, fused_recurrent_gated_delta_rule):
            o, _ = f(*x[:3], g=x[3], beta=x[4], use_qk_l2norm_in_kernel=True)
            out.append((o, torch.autograd.grad(o.float().square().sum(), x)))
        far = [((a - b).float().norm() / b.float().norm()).item() for a, b in zip(out[0][1], out[1][1])]
        return max(far) < 0.03, far

    print(f"flash-linear-attention, triton {triton.__version__}, {torch.cuda.get_device_name()}")
    usable = {name: name != "gdn" for name in names}
    if "gdn" in names:
        try:
            usable["gdn"], far = right()
        except Exception as e:  # its recurrent form may have no backward
            far = repr(e)[:100]
        if not usable["gdn"]:
            print(f"gdn: its backward is not usable here: {far}")
    for op in names:
        for shape in SHAPES[op]:
            x, t = inputs(op, *shape), time.time()
            with torch.no_grad():
                ms = median(lambda: call(op, x))
            line = "%s %3d x %6d, %d heads x %3d, %3d: forward %.3f ms" % (op, *shape[:5], ms)
            if usable[op]:
                x = inputs(op, *shape, grad=True)
                wanted = [y for y in x if y.is_leaf]
                o = call(op, x)[0]
                d = torch.randn_like(o)
                line += ", backward %.3f ms" % median(lambda: torch.autograd.grad(o, wanted, d, retain_graph=True))
            print(line, " (%.0f s)" % (time.time() - t), flush=True)


main()
