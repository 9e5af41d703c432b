"""What is correct, by definition: loops over tokens in double, written without looking at hola.torch."""

import math

import numpy
import torch


def delta_rule(q, k, v, g, beta, h0=None, lengths=None, scale=None, forget=None):
    """q, k [B, T, H, K] ... -> o, states, scores. forget: a wrong version,
    which loses its state every so many tokens."""
    (B, T, H, K), (HV, V) = q.shape, v.shape[2:]
    scale = K**-0.5 if scale is None else scale
    lengths = [T] * B if lengths is None else lengths
    flat = lambda x: x.double().flatten(0, 1)  # noqa: E731
    q, k, v, g, beta = map(flat, (q, k, v, g, beta))
    q, k = (x.repeat_interleave(HV // H, 1) for x in (q, k))
    o, states, scores, at = [], [], [], 0
    for i, n in enumerate(lengths):
        S = q.new_zeros(HV, K, V) if h0 is None else h0[i].double()
        for t in range(at, at + n):
            if forget and (t - at) % forget == forget - 1:
                S = torch.zeros_like(S)
            S = g[t].exp().view(HV, 1, 1) * S
            e = v[t] - (k[t].unsqueeze(-1) * S).sum(1)
            S = S + beta[t].view(HV, 1, 1) * k[t].unsqueeze(-1) * e.unsqueeze(1)
            o.append(scale * (q[t].unsqueeze(-1) * S).sum(1))
            scores.append(beta[t] * e.square().sum(-1).sqrt())
        states.append(S)
        at += n
    o = torch.stack(o) if o else v
    m = torch.stack(scores) if scores else beta
    return o.unflatten(0, (B, T)), torch.stack(states), m.unflatten(0, (B, T))


def per_channel(q, k, v, g, beta=None, h0=None, lengths=None, scale=None, one_decay=False):
    """KDA, and without beta gated linear attention: -> o, states. one_decay: a wrong version, which takes the first
    channel's decay for all."""
    (B, T, H, K), (HV, V) = q.shape, v.shape[2:]
    scale = K**-0.5 if scale is None else scale
    q, k, v, g = (x.double().flatten(0, 1) for x in (q, k, v, g))
    q, k = (x.repeat_interleave(HV // H, 1) for x in (q, k))
    g = g[..., :1].expand_as(g) if one_decay else g
    o, states, at = [], [], 0
    for i, n in enumerate([T] * B if lengths is None else lengths):
        S = q.new_zeros(HV, K, V) if h0 is None else h0[i].double()
        for t in range(at, at + n):
            S = g[t].exp().unsqueeze(-1) * S
            w = v[t]
            if beta is not None:
                w = beta.double().flatten(0, 1)[t].unsqueeze(-1) * (w - (k[t].unsqueeze(-1) * S).sum(1))
            S = S + k[t].unsqueeze(-1) * w.unsqueeze(1)
            o.append(scale * (q[t].unsqueeze(-1) * S).sum(1))
        states.append(S)
        at += n
    o = torch.stack(o) if o else v
    return o.unflatten(0, (B, T)), torch.stack(states)


def attention(q, k, v, scale, left=-1, lengths=None, sees_next=False):
    """Causal softmax attention, query by query; left: keys before its own that it sees, -1: all. sees_next: a wrong
    version, in which a query sees the key behind it."""
    (B, T, H, D), times = q.shape, q.shape[2] // k.shape[2]
    q, k, v = (x.double().flatten(0, 1) for x in (q, k, v))
    k, v = k.repeat_interleave(times, 1), v.repeat_interleave(times, 1)
    rows, at = [], 0
    for n in [T] * B if lengths is None else lengths:
        for t in range(at, at + n):
            J = slice(at if left < 0 else max(at, t - left), min(t + 1 + sees_next, at + n))
            p = (scale * (k[J] * q[t]).sum(-1)).softmax(0)
            rows.append((p.unsqueeze(-1) * v[J]).sum(0))
        at += n
    return torch.stack(rows).unflatten(0, (B, T))


def memory(q, k, v, score, sink, tau, window, chunk, lengths=None, newer=False):
    """The read of the exact memory. newer: a wrong version, which prefers the newer of two equal scores."""
    (B, T, H, K), HV = q.shape, v.shape[2]
    lengths = [T] * B if lengths is None else lengths
    q, k, v, score = (x.double().flatten(0, 1) for x in (q, k, v, score))
    rows, at = [], 0
    for n in lengths:
        for t in range(n):
            s, heads = t // chunk * chunk, []
            for h in range(HV):
                rank = sorted(range(s), key=lambda j: (-float(score[at + j, h]), -j if newer else j))[:window]
                J = [at + j for j in sorted(rank) + list(range(s, t + 1))]
                z = k[J, h // (HV // H)] @ q[at + t, h // (HV // H)] * K**-0.5 * tau[h]
                p = torch.cat([z, sink[h : h + 1].double()]).softmax(0)
                heads.append(p[:-1] @ v[J, h])
            rows.append(torch.stack(heads))
        at += n
    return torch.stack(rows).unflatten(0, (B, T))


def error(got, want):
    """Relative, root mean square."""
    got, want = got.detach().double(), want.detach().double()
    return float((got - want).norm() / want.norm().clamp(min=1e-30))


# ---- the weights of the test vectors: functions of a tensor's name ----


def _uniform(name, n):
    seed = 0xCBF29CE484222325
    for byte in name.encode():
        seed = (seed ^ byte) * 0x100000001B3 & (1 << 64) - 1
    u = numpy.uint64
    with numpy.errstate(over="ignore"):
        x = u(seed) + numpy.arange(1, n + 1, dtype=u) * u(0x9E3779B97F4A7C15)
        x = (x ^ (x >> u(30))) * u(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> u(27))) * u(0x94D049BB133111EB)
    return ((x ^ (x >> u(31))) >> u(11)).astype(numpy.float64) * 2.0**-53


def weight(name, shape, l2):
    u = _uniform(name, math.prod(shape))
    last, norm = name.rsplit(".", 1)[-1], "norm" in name.split(".")[-2]
    if last == "A_log":
        x = numpy.log(0.5 + 4 * u)
    elif last == "dt_bias":
        dt = numpy.exp(u * math.log(100) + math.log(0.001))
        x = dt + numpy.log(-numpy.expm1(-dt))
    elif last == "cache_gate":
        x = -1 + 0.5 * (2 * u - 1)
    elif last == "cache_sink":
        x = 0.5 * (2 * u - 1)
    elif last == "cache_tau":
        x = numpy.full_like(u, 2.5 if l2 else 1.0)
    elif norm:
        x = 1 + 0.2 * (2 * u - 1)
    elif last == "bias":
        x = 0.3 * (2 * u - 1)
    elif "conv1d" in name:
        x = 0.6 * (2 * u - 1)
    elif "embeddings" in name:
        x = 2 * u - 1
    else:
        x = (2 * u - 1) * math.sqrt(3 / shape[-1])
    return torch.tensor(x).reshape(shape)
