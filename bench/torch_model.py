#!/usr/bin/env python3
"""HOLA, Gated DeltaNet and DeltaNet in PyTorch on the CPU: the yardstick for hola's own speed.

    python3 bench/torch_model.py --preset 46m --model-type hola --batch 4 --seq 1024 --json
    python3 bench/torch_model.py --check ../shared/vectors      (float64, exit 1 on a mismatch)

Written for speed within torch 1.13 (no torch.compile): chunked delta rule as batched matmuls with a
Python loop over chunks only, blockwise cache read, fused projections, hand-written backward where
autograd would make extra passes over memory.

Shapes: x [B,T,d]; per head [B*HV, T, width], so a chunk (64) or block (C) of a head is contiguous.
"""
import argparse
import ctypes
import glob
import json
import math
import os
import statistics
import sys
import time
from concurrent.futures import ThreadPoolExecutor


def early_threads():
    """Data parallel over threads, each with a BLAS of one thread, is twice as fast here as threads
    inside every small matmul. OpenBLAS reads its thread count when torch loads it."""
    ap = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    ap.add_argument("--threads", type=int, default=2)
    ap.add_argument("--batch", type=int, default=4)
    ap.add_argument("--plain", action="store_true")
    a = ap.parse_known_args()[0]
    own = not a.plain and a.batch % a.threads == 0
    os.environ["OMP_NUM_THREADS"] = str(a.threads)
    os.environ["OPENBLAS_NUM_THREADS"] = str(1 if own else a.threads)


if __name__ == "__main__":
    early_threads()
import torch
import torch.nn.functional as F
from torch.autograd import Function

CHUNK = 64  # of the delta rule; the cache's block is config cache_chunk

PRESETS = {
    "46m": dict(hidden_size=512, num_hidden_layers=12, num_heads=4, head_dim=128, hidden_ratio=2,
                use_gate=True),
    "170m": dict(hidden_size=1024, num_hidden_layers=12, num_heads=4, head_dim=256, hidden_ratio=4,
                 use_gate=False),
    "340m": dict(hidden_size=1024, num_hidden_layers=24, num_heads=4, head_dim=256, hidden_ratio=4,
                 use_gate=False),
}
PRESET_COMMON = dict(expand_v=1.0, tie_word_embeddings=True, vocab_size=32000)


class Config:
    """The fields of config.json that matter here, with fla's defaults."""

    def __init__(self, c):
        self.type = c["model_type"]
        if self.type not in ("hola", "gated_deltanet", "delta_net"):
            raise ValueError("model_type " + self.type)
        delta = self.type == "delta_net"
        self.d, self.L = c.get("hidden_size", 2048), c.get("num_hidden_layers", 24 if delta else 21)
        self.H = c.get("num_heads", 16 if delta else 6)
        self.HV = (not delta and c.get("num_v_heads")) or self.H
        if delta:
            self.dk = int(self.d * c.get("expand_k", 1)) // self.H
            self.dv = int(self.d * c.get("expand_v", 1)) // self.H
        else:
            self.dk = c.get("head_dim", 256)
            self.dv = int(self.dk * c.get("expand_v", 2))
        self.gate = c.get("use_gate", not delta)
        self.decay = not delta
        self.beta_scale = 2.0 if c.get("allow_neg_eigval") else 1.0
        self.eps = c.get("norm_eps", 1e-6)
        self.I = c.get("intermediate_size") or 256 * -(-int(self.d * (c.get("hidden_ratio") or 4)
                                                            * 2 / 3) // 256)
        self.vocab, self.tied = c.get("vocab_size", 32000), c.get("tie_word_embeddings", False)
        self.cache = self.type == "hola"
        self.evict, self.norm = c.get("cache_evict", "betae"), c.get("cache_norm", "rms")
        self.w, self.C = c.get("cache_window", 64), c.get("cache_chunk", 256)
        self.tau_init, self.gate_init = c.get("cache_tau_init", 1.0), c.get("cache_gate_init", -4.0)
        if self.cache and self.evict not in ("betae", "e", "betav", "recency"):
            raise ValueError("cache_evict " + self.evict)


def param_table(c):
    """[(our name, frozen, [(Hugging Face name, shape)])]: one parameter of ours may be several
    tensors of the checkpoint stacked on rows, so that one matmul does their work."""
    K, V = c.H * c.dk, c.HV * c.dv
    t = [("emb", False, [("model.embeddings.weight", (c.vocab, c.d))])]
    for i in range(c.L):
        def add(key, *tensors, frozen=False):
            names = [("model.layers.%d.%s" % (i, n), s) for n, s in tensors]
            t.append(("%d.%s" % (i, key), frozen, names))

        add("norm1", ("attn_norm.weight", (c.d,)))
        add("norm2", ("mlp_norm.weight", (c.d,)))
        add("qkv", ("attn.q_proj.weight", (K, c.d)), ("attn.k_proj.weight", (K, c.d)),
            ("attn.v_proj.weight", (V, c.d)))
        add("conv", ("attn.q_conv1d.weight", (K, 1, 4)), ("attn.k_conv1d.weight", (K, 1, 4)),
            ("attn.v_conv1d.weight", (V, 1, 4)))
        ab = [("attn.b_proj.weight", (c.HV, c.d))]
        if c.decay:
            ab.append(("attn.a_proj.weight", (c.HV, c.d)))
            add("A_log", ("attn.A_log", (c.HV,)))
            add("dt_bias", ("attn.dt_bias", (c.HV,)))
        add("ba", *ab)
        if c.gate:
            add("g", ("attn.g_proj.weight", (V, c.d)))
        add("o_norm", ("attn.o_norm.weight", (c.dv,)))
        add("o", ("attn.o_proj.weight", (c.d, V)))
        if c.cache:
            if c.norm == "rms":
                add("gq", ("attn.cache_q_norm.weight", (c.dk,)))
                add("gk", ("attn.cache_k_norm.weight", (c.dk,)))
            add("sink", ("attn.cache_sink", (c.HV,)))
            add("lam", ("attn.cache_gate", (c.HV,)))
            add("tau", ("attn.cache_tau", (c.HV,)), frozen=c.norm == "rms")
        add("gu", ("mlp.gate_proj.weight", (c.I, c.d)), ("mlp.up_proj.weight", (c.I, c.d)))
        add("down", ("mlp.down_proj.weight", (c.d, c.I)))
    t.append(("norm", False, [("model.norm.weight", (c.d,))]))
    if not c.tied:
        t.append(("head", False, [("lm_head.weight", (c.vocab, c.d))]))
    return t


# ---- pieces with a hand-written backward --------------------------------------------------------

class Norm(Function):
    """y = x * r * w, r = 1/sqrt(sum(x^2)/n + eps): RMSNorm has n = width, L2 norm n = 1, w None."""

    @staticmethod
    def forward(ctx, x, w, n, eps):
        r = torch.linalg.vector_norm(x, dim=-1, keepdim=True).square_().div_(n).add_(eps).rsqrt_()
        ctx.save_for_backward(x, r, w)
        ctx.n = n
        y = x * r
        return y if w is None else y.mul_(w)

    @staticmethod
    def backward(ctx, dy):
        x, r, w = ctx.saved_tensors
        xh = x * r
        t = dy * xh
        if w is None:
            dw, c = None, t.sum(-1, keepdim=True)
            dx = torch.addcmul(dy, xh, c.div_(-ctx.n))
        else:
            dw = t.reshape(-1, t.shape[-1]).sum(0)
            c = (t @ w).unsqueeze(-1)
            dx = (dy * w).addcmul_(xh, c.div_(-ctx.n))
        return dx.mul_(r), dw, None, None


class Conv(Function):
    """Depthwise causal convolution of 4 taps over [B,T,C] as shifted multiply-adds.
    torch's own grouped conv1d takes five times as long, most of it in backward."""

    @staticmethod
    def forward(ctx, x, w):
        taps = w.squeeze(1).t().contiguous()
        ctx.save_for_backward(x, taps)
        y = x * taps[3]
        for i in (1, 2, 3):
            y[:, i:].addcmul_(x[:, :-i], taps[3 - i])
        return y

    @staticmethod
    def backward(ctx, dy):
        x, taps = ctx.saved_tensors
        dx, dtaps = dy * taps[3], torch.empty_like(taps)
        dtaps[3] = (dy * x).sum((0, 1))
        for i in (1, 2, 3):
            dx[:, :-i].addcmul_(dy[:, i:], taps[3 - i])
            dtaps[3 - i] = (dy[:, i:] * x[:, :-i]).sum((0, 1))
        return dx, dtaps.t().unsqueeze(1)


class Read(Function):
    """o = softmax over keys and a sink whose value is 0. q [n,C,dk] (scaled),
    k [n,J,dk], v [n,J,dv], bias [n,C,J] or broadcast (0 / -inf), sink [n,1,1]."""

    @staticmethod
    def forward(ctx, q, k, v, bias, sink):
        p = torch.baddbmm(bias, q, k.transpose(1, 2))
        top = torch.maximum(p.amax(-1, keepdim=True), sink)
        p.sub_(top).exp_()
        ps = torch.exp(sink - top)
        den = p.sum(-1, keepdim=True).add_(ps).reciprocal_()
        o = torch.bmm(p, v).mul_(den)
        ctx.save_for_backward(q, k, v, p, ps, den, o)
        return o

    @staticmethod
    def backward(ctx, do):
        q, k, v, p, ps, den, o = ctx.saved_tensors
        do = do * den  # p is not normalised: its divisor goes here
        R = (do * o).sum(-1, keepdim=True)
        dv = torch.bmm(p.transpose(1, 2), do)
        ds = torch.baddbmm(R, do, v.transpose(1, 2), beta=-1).mul_(p)
        dsink = (ps * R).sum(1, keepdim=True).neg_()
        return torch.bmm(ds, k), torch.bmm(ds.transpose(1, 2), q), dv, None, dsink


class HeadLoss(Function):
    """Mean cross entropy of x W^T, by pieces of rows: the gradients are formed while a piece of the
    logits is there, so the whole matrix never exists, and forward holds all the work."""

    ROWS = 1024

    @staticmethod
    def forward(ctx, x, w, target):
        dx, dw, loss = torch.empty_like(x), torch.zeros_like(w), 0.0
        n = x.shape[0]
        for i in range(0, n, HeadLoss.ROWS):
            xs, ts = x[i:i + HeadLoss.ROWS], target[i:i + HeadLoss.ROWS, None]
            z = xs @ w.t()
            lp = torch.log_softmax(z, -1)
            loss -= lp.gather(1, ts).sum()
            p = torch.exp(lp, out=lp)
            p.scatter_add_(1, ts, p.new_full(ts.shape, -1.0))
            dx[i:i + HeadLoss.ROWS] = p @ w
            dw.addmm_(p.t(), xs)
        ctx.save_for_backward(dx.div_(n), dw.div_(n))
        return loss / n

    @staticmethod
    def backward(ctx, g):
        dx, dw = ctx.saved_tensors
        return dx.mul_(g), dw.mul_(g), None


# ---- the layer ----------------------------------------------------------------------------------

def l2norm(x):
    return Norm.apply(x, None, 1, 1e-6)


def delta_rule(q, k, v, beta, g):
    """Sec. 4.1. q k [M,T,dk] (q scaled), v [M,T,dv], beta g [M,T] (g None: no decay), T a multiple
    of CHUNK. Returns out and v_new = beta * residual, both [M,T,dv]."""
    M, T, dk = q.shape
    N, dv = T // CHUNK, v.shape[-1]
    q, k, v = (x.view(M * N, CHUNK, -1) for x in (q, k, v))
    b = beta.reshape(M * N, 1, CHUNK)
    kk, P = torch.bmm(k, k.transpose(1, 2)), torch.bmm(q, k.transpose(1, 2))
    qe, ke, last = q, k, None
    if g is not None:
        G = g.reshape(M * N, CHUNK).cumsum(-1)
        above = torch.ones(CHUNK, CHUNK, dtype=torch.bool).triu_(1)
        D = (G.unsqueeze(2) - G.unsqueeze(1)).masked_fill_(above, -math.inf).exp_()
        eG = G.exp()
        kk, P = kk * D, P * D  # D is 0 above the diagonal, so P is lower triangular now
        qe = q * eG.unsqueeze(2)
        ke = k * (G[:, -1:] - G).exp().unsqueeze(2)
        last = eG[:, -1].view(M, N, 1, 1).unbind(1)
        be = b * eG.unsqueeze(1)
    else:
        P, be = P.tril(), b
    # the solver ignores the upper triangle and takes the diagonal as ones
    A = torch.linalg.solve_triangular(kk * b.transpose(1, 2), torch.eye(CHUNK, dtype=q.dtype)
                                      .expand(M * N, -1, -1), upper=False, unitriangular=True)
    u, w = torch.bmm(A * b, v), torch.bmm(A * be, k)  # b on A's columns is cheaper than on v's rows

    def chunks(x):
        return x.view(M, N, CHUNK, -1).unbind(1)

    h = torch.zeros(M, dk, dv, dtype=q.dtype)
    us, ws, qs, ks = chunks(u), chunks(w), chunks(qe), chunks(ke)
    new, inter = [], []
    for n in range(N):
        vn = torch.baddbmm(us[n], ws[n], h, alpha=-1)
        inter.append(torch.bmm(qs[n], h))
        if n + 1 < N:
            h = torch.baddbmm(h if last is None else h * last[n], ks[n].transpose(1, 2), vn)
        new.append(vn)
    new = torch.stack(new, 1)
    out = torch.baddbmm(torch.stack(inter, 1).view(M * N, CHUNK, dv), P, new.view(M * N, CHUNK, dv))
    return out.view(M, T, dv), new.view(M, T, dv)


def select(score, c):
    """score [M,T] -> (indices [M,T/C,w], scores): top w of all earlier blocks; -inf: none left."""
    M, T = score.shape
    nb = T // c.C
    pos = torch.arange(T)
    past = pos < (torch.arange(nb) * c.C).unsqueeze(1)  # [nb,T]
    s = torch.where(past, score.unsqueeze(1), torch.full((), -math.inf, dtype=score.dtype))
    top = s.topk(min(c.w, T), dim=-1, sorted=True)
    return top.indices, top.values


def cache_read(q, k, v, score, sink, c):
    """Sec. 8.2: q k (normalised; q scaled by tau/sqrt(dk)) v [M,T,..] -> o_cache [M,T,dv]."""
    M, T, dk = q.shape
    nb, dv, C = T // c.C, v.shape[-1], c.C
    bias = torch.full((C, C), -math.inf, dtype=q.dtype).triu_(1)
    kb, vb = k.view(M * nb, C, dk), v.view(M * nb, C, dv)
    if c.w > 0 and nb > 1:
        idx, val = select(score, c)
        rows = (idx + torch.arange(M).view(M, 1, 1) * T).view(M * nb, -1)
        # F.embedding is the gather with the fast backward
        kb = torch.cat([F.embedding(rows, k.view(M * T, dk)), kb], 1)
        vb = torch.cat([F.embedding(rows, v.view(M * T, dv)), vb], 1)
        gone = torch.zeros_like(val).masked_fill_(val == -math.inf, -math.inf)
        bias = torch.cat([gone.view(M * nb, 1, -1).expand(-1, C, -1),
                          bias.expand(M * nb, -1, -1)], 2)
    else:
        bias = bias.expand(M * nb, -1, -1)
    s = sink.expand(M // c.HV, c.HV).reshape(M, 1).expand(M, nb).reshape(M * nb, 1, 1)
    return Read.apply(q.view(M * nb, C, dk), kb, vb, bias, s).view(M, T, dv)


class Model:
    def __init__(self, config, dtype=torch.float32):
        self.c = Config(config)
        self.table = param_table(self.c)
        self.p, self.on_score = {}, None  # on_score(layer, scores [M,T]): for tools
        for key, frozen, tensors in self.table:
            shape = (sum(s[0] for _, s in tensors),) + tuple(tensors[0][1][1:])
            self.p[key] = torch.empty(shape, dtype=dtype).requires_grad_(not frozen)

    # -- weights --

    @torch.no_grad()
    def load(self, get):
        """get(name, shape) -> tensor, for every tensor of the checkpoint."""
        for key, _, tensors in self.table:
            self.p[key].copy_(torch.cat([get(n, s).view(s) for n, s in tensors]))

    def init(self, seed=0):
        """Fresh weights."""
        gen = torch.Generator().manual_seed(seed)

        def get(name, s):
            leaf = name.split(".")[-1]
            if leaf == "A_log":
                return torch.rand(s, generator=gen).mul_(16).clamp_(min=1e-4).log_()
            if leaf == "dt_bias":
                dt = torch.exp(torch.rand(s, generator=gen) * math.log(100) + math.log(0.001))
                return dt + torch.log(-torch.expm1(-dt))
            const = {"cache_sink": 0.0, "cache_gate": self.c.gate_init,
                     "cache_tau": self.c.tau_init}
            if leaf in const or "norm" in name:
                return torch.full(s, const.get(leaf, 1.0))
            return torch.empty(s).normal_(0, 0.02, generator=gen)

        self.load(get)
        return self

    def trained(self):
        return [self.p[key] for key, frozen, _ in self.table if not frozen]

    def names(self):
        """The Hugging Face names of the trained tensors."""
        return [n for _, frozen, tensors in self.table if not frozen for n, _ in tensors]

    def split(self, grads):
        """Gradients of trained(), in its order -> gradients of names()."""
        rows = [[s[0] for _, s in tensors] for _, frozen, tensors in self.table if not frozen]
        return [part for g, r in zip(grads, rows) for part in g.split(r)]

    # -- forward --

    def mixer(self, i, x):
        c, p = self.c, lambda key: self.p["%d.%s" % (i, key)]
        B, T, _ = x.shape
        M, pad = B * c.HV, -T % (math.lcm(CHUNK, c.C) if c.cache else CHUNK)
        y = F.silu(Conv.apply(F.linear(x, p("qkv")), p("conv")))

        def heads(z, n, width):  # [B,T,n*width] -> [B*HV,T+pad,width]
            z = z.view(B, T, n, width).transpose(1, 2)
            if n != c.HV:
                z = z.repeat_interleave(c.HV // n, dim=1)
            if pad:
                z = F.pad(z, (0, 0, 0, pad))
            return z.reshape(M, T + pad, width).contiguous()

        q, k, v = y.split([c.H * c.dk, c.H * c.dk, c.HV * c.dv], -1)
        q, k, v = heads(q, c.H, c.dk), heads(k, c.H, c.dk), heads(v, c.HV, c.dv)

        ba = F.linear(x, p("ba"))
        beta = heads(torch.sigmoid(ba[..., :c.HV]) * c.beta_scale, c.HV, 1).squeeze(-1)
        g = None
        if c.decay:
            g = -torch.exp(p("A_log")) * F.softplus(ba[..., c.HV:] + p("dt_bias"))
            g = heads(g, c.HV, 1).squeeze(-1)
        qn, kn = l2norm(q), l2norm(k)
        o, new = delta_rule(qn * c.dk ** -0.5, kn, v, beta, g)
        if c.cache:
            with torch.no_grad():
                if c.evict == "recency":
                    score = torch.arange(T + pad, dtype=o.dtype).expand(M, -1)
                elif c.evict == "betav":
                    score = beta * v.norm(dim=-1)
                else:
                    score = new.norm(dim=-1)
                    if c.evict == "e":
                        score = torch.where(beta > 0, score / beta, score)  # beta 0: padding
            if self.on_score:
                self.on_score(i, score[:, :T])
            tau = (p("tau") * c.dk ** -0.5).expand(B, c.HV).reshape(M, 1, 1)
            if c.norm == "rms":
                qt = Norm.apply(q, p("gq"), c.dk, 1e-6)
                kt = Norm.apply(k, p("gk"), c.dk, 1e-6)
            else:
                qt, kt = qn, kn
            oc = cache_read(qt * tau, kt, v, score, p("sink"), c)
            o = torch.addcmul(o, oc, torch.sigmoid(p("lam")).expand(B, c.HV).reshape(M, 1, 1))
        o = Norm.apply(o, p("o_norm"), c.dv, c.eps)
        o = o.view(B, c.HV, T + pad, c.dv)[:, :, :T].transpose(1, 2).reshape(B, T, c.HV * c.dv)
        if c.gate:
            o = o * F.silu(F.linear(x, p("g")))
        return F.linear(o, p("o"))

    def hidden(self, ids):
        c, p = self.c, self.p
        x = F.embedding(ids, p["emb"])
        for i in range(c.L):
            x = x + self.mixer(i, Norm.apply(x, p["%d.norm1" % i], c.d, c.eps))
            z = F.linear(Norm.apply(x, p["%d.norm2" % i], c.d, c.eps), p["%d.gu" % i])
            gate, up = z.split(c.I, -1)
            x = x + F.linear(F.silu(gate) * up, p["%d.down" % i])
        return Norm.apply(x, p["norm"], c.d, c.eps)

    def head(self):
        return self.p["emb"] if self.c.tied else self.p["head"]

    def logits(self, ids):
        return F.linear(self.hidden(ids), self.head())

    def loss(self, ids):
        x = self.hidden(ids)[:, :-1].reshape(-1, self.c.d)
        return HeadLoss.apply(x, self.head(), ids[:, 1:].reshape(-1))


# ---- check against the vectors ------------------------------------------------------------------

MASK = (1 << 64) - 1
GOLD = 0x9e3779b97f4a7c15


def splitmix64(y):
    y = (y + GOLD) & MASK
    y = ((y ^ (y >> 30)) * 0xbf58476d1ce4e5b9) & MASK
    y = ((y ^ (y >> 27)) * 0x94d049bb133111eb) & MASK
    return y ^ (y >> 31)


def vector_weight(name, shape, key=""):
    """The weights of the vectors; `key` is mixed into the seed to get another set of the same kind."""
    seed = 0xcbf29ce484222325
    for ch in (name + key).encode():
        seed = ((seed ^ ch) * 0x100000001b3) & MASK
    count = math.prod(shape)
    u = torch.tensor([(splitmix64((seed + i * GOLD) & MASK) >> 11) * 2.0 ** -53
                      for i in range(count)], dtype=torch.float64).view(shape)
    s, leaf = 2 * u - 1, name.split(".")[-1]
    if leaf == "A_log":
        return torch.log(0.5 + 4 * u)
    if leaf == "dt_bias":
        dt = torch.exp(u * (math.log(0.1) - math.log(0.001)) + math.log(0.001))
        return dt + torch.log(-torch.expm1(-dt))
    if leaf == "cache_gate":
        return -1 + 0.5 * s
    if leaf == "cache_sink":
        return 0.5 * s
    if leaf == "cache_tau":
        return torch.full(shape, 2.5, dtype=torch.float64)
    if "norm" in name:
        return 1 + 0.2 * s
    if "conv1d" in name:
        return 0.6 * s
    return s if "embeddings" in name else s * math.sqrt(3 / shape[-1])


def check(folder):
    """The vectors have T = 50: with chunks of 16 they also cross chunk borders."""
    global CHUNK
    ok = True
    names = [f for pat in ("hola_*", "gated_deltanet_*", "delta_net")
             for f in sorted(glob.glob(os.path.join(folder, pat + ".json")))]
    if not names:
        sys.exit("no vectors in " + folder)
    for path in names:
        with open(path) as f:
            vec = json.load(f)
        m = Model(vec["config"], torch.float64)
        rms = m.c.norm == "rms"

        def get(name, shape):
            if rms and name.endswith("cache_tau"):
                return torch.ones(shape, dtype=torch.float64)
            return vector_weight(name, shape)

        m.load(get)
        want, line = vec["grad_l2"], "%-24s" % os.path.basename(path)[:-5]
        for CHUNK in (64, 16):
            loss = m.loss(torch.tensor([vec["ids"]]))
            got = dict(zip(m.names(), m.split(torch.autograd.grad(loss, m.trained()))))
            err = abs(loss.item() - vec["loss"])
            worst = max(abs(got[n].norm().item() / want[n] - 1) if n in got else math.inf
                        for n in want)
            good = err < 1e-9 and worst < 1e-7 and set(got) == set(want)
            ok = ok and good
            line += "  chunk %d: loss error %.1e, %d gradients %.1e %s" % (
                CHUNK, err, len(want), worst, "ok" if good else "MISMATCH")
        print(line)
    CHUNK = 64
    return ok


# ---- benchmark ----------------------------------------------------------------------------------

def keep_memory():
    """Let glibc keep freed blocks: else every large tensor is mapped and page-faulted anew."""
    libc = ctypes.CDLL(None)
    libc.mallopt(-4, 0)  # M_MMAP_MAX
    libc.mallopt(-1, 2 ** 31 - 1)  # M_TRIM_THRESHOLD
    libc.mallopt(-8, 1)  # M_ARENA_MAX: other arenas hand memory back


def bench(a):
    if not a.plain:
        keep_memory()
    torch.set_num_threads(a.threads)
    workers = a.threads if a.batch % a.threads == 0 and not a.plain else 1
    m = Model(dict(PRESET_COMMON, **PRESETS[a.preset], model_type=a.model_type)).init()
    params = m.trained()
    opt = torch.optim.AdamW(params, lr=4e-4, betas=(0.9, 0.95), weight_decay=0.01,
                            foreach=a.foreach)
    ids = torch.randint(m.c.vocab, (a.batch, a.seq), generator=torch.Generator().manual_seed(1))
    pool = ThreadPoolExecutor(workers, initializer=torch.set_num_threads,
                              initargs=(a.threads // workers,))
    rows = []
    for step in range(a.steps + 1):  # the first is the warm-up
        t0, c0 = time.perf_counter(), time.process_time()
        losses = list(pool.map(m.loss, ids.chunk(workers)))
        t1 = time.perf_counter()
        grads = list(pool.map(lambda l: torch.autograd.grad(l, params), losses))
        for p, *g in zip(params, *grads):
            p.grad = g[0]
            for other in g[1:]:
                p.grad.add_(other)
            if workers > 1:
                p.grad.div_(workers)
        t2 = time.perf_counter()
        opt.step()
        loss = sum(l.item() for l in losses) / workers
        opt.zero_grad(set_to_none=True)
        del losses, grads, g
        t3 = time.perf_counter()
        rows.append((t3 - t0, t1 - t0, t2 - t1, t3 - t2, time.process_time() - c0))
        print("step %d loss %.4f %.2f s" % (step, loss, t3 - t0), file=sys.stderr)
    step, fwd, bwd, adam, cpu = (1e3 * statistics.median(r[i] for r in rows[1:]) for i in range(5))
    out = dict(preset=a.preset, plain=a.plain, model_type=a.model_type, batch=a.batch, seq=a.seq,
               threads=a.threads, params=sum(p.numel() for p in params),
               tokens_per_s=round(a.batch * a.seq / step * 1e3, 1), ms_per_step=round(step, 1),
               forward_ms=round(fwd, 1), backward_ms=round(bwd, 1), optimizer_ms=round(adam, 1),
               cpu_ms=round(cpu, 1),  # far below threads * ms_per_step: the cores were shared
               torch=torch.__version__)
    if a.json:
        print(json.dumps(out))
    else:
        print("\n".join("%-14s %s" % kv for kv in out.items()))


def main():
    ap = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    ap.add_argument("--preset", choices=sorted(PRESETS), default="46m")
    ap.add_argument("--model-type", choices=("hola", "gated_deltanet"), default="hola")
    ap.add_argument("--batch", type=int, default=4)
    ap.add_argument("--seq", type=int, default=1024)
    ap.add_argument("--steps", type=int, default=3)
    ap.add_argument("--threads", type=int, default=2)
    ap.add_argument("--foreach", action="store_true", help="AdamW with foreach kernels")
    ap.add_argument("--plain", action="store_true",
                    help="torch as it comes: threads inside each op, malloc's defaults")
    ap.add_argument("--json", action="store_true")
    ap.add_argument("--check", metavar="DIR", help="compare with the test vectors in DIR")
    a = ap.parse_args()
    if a.check:
        sys.exit(0 if check(a.check) else 1)
    bench(a)


if __name__ == "__main__":
    main()
