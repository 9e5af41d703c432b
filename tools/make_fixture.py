#!/usr/bin/env python3
"""Writes the small model directories of tests/data: checkpoints with the names and habits of
flash-linear-attention, each beside an expected.json with

    ids       70 token ids
    logprobs  log p(ids[i+1] | ids[..i]), float64, from the weights as stored (rounded)
    loss      minus their mean

    python3 tools/make_fixture.py [FOLDER]       (default tests/data; needs only torch)

Weights are those of sec. 10 under another seed, so the files come out the same every time."""
import json
import math
import os
import struct
import sys

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..")
sys.path.insert(0, os.path.join(ROOT, "bench"))
import torch
from torch_model import Model, splitmix64, vector_weight

T = 70
DTYPES = {"float32": ("F32", torch.float32), "bfloat16": ("BF16", torch.bfloat16),
          "float16": ("F16", torch.float16)}

# What every fla configuration carries and a reader may not know.
COMMON = {
    "attn": None, "attn_mode": "chunk", "bos_token_id": 1, "conv_size": 4, "eos_token_id": 2,
    "fuse_cross_entropy": True, "fuse_linear_cross_entropy": False, "fuse_norm": True,
    "fuse_swiglu": True, "hidden_act": "swish", "hidden_ratio": 4, "hidden_size": 32,
    "initializer_range": 0.02, "max_position_embeddings": 2048, "norm_eps": 1e-06,
    "num_heads": 2, "num_hidden_layers": 2, "transformers_version": "4.51.3", "use_cache": True,
    "use_l2warp": False, "use_short_conv": True, "vocab_size": 61,
}
GDN = dict(COMMON, architectures=["GatedDeltaNetForCausalLM"], model_type="gated_deltanet",
           allow_neg_eigval=False, expand_v=2.0, head_dim=16, intermediate_size=8,
           num_v_heads=None, tie_word_embeddings=False, use_gate=True)
DELTA = dict(COMMON, architectures=["DeltaNetForCausalLM"], model_type="delta_net", expand_k=1,
             expand_v=1, intermediate_size=64, qk_activation="silu", qk_norm="l2",
             tie_word_embeddings=True, use_beta=True, use_gate=False, use_output_norm=True)
HOLA = dict(COMMON, architectures=["HolaForCausalLM"], model_type="hola", allow_neg_eigval=True,
            cache_chunk=16, cache_evict="betae", cache_gate_init=-4.0, cache_norm="rms",
            cache_tau_freeze=True, cache_tau_init=1.0, cache_window=4, expand_v=1.0, head_dim=16,
            intermediate_size=16, num_v_heads=4, tie_word_embeddings=True, use_gate=True)


def raw(t):
    """A tensor's bytes, little endian."""
    if t.dtype == torch.float32:
        return struct.pack("<%df" % t.numel(), *t.flatten().tolist())
    return struct.pack("<%dh" % t.numel(), *t.view(torch.int16).flatten().tolist())


def write_safetensors(path, tensors, dtype_name):
    header, data = {"__metadata__": {"format": "pt"}}, b""
    for name in sorted(tensors):
        piece = raw(tensors[name])
        header[name] = {"dtype": dtype_name, "shape": list(tensors[name].shape),
                        "data_offsets": [len(data), len(data) + len(piece)]}
        data += piece
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + data)
    return len(data)


def write_json(path, value, **style):
    with open(path, "w") as f:
        f.write(json.dumps(value, **style) + "\n")


def smallest_gap(model, ids):
    """Smallest relative distance between the last kept and the first dropped score, over layers,
    heads and blocks: with a wide one, float32 selects the same tokens."""
    c, gaps = model.c, []

    def look(layer, score):
        for s in range(c.C, ids.shape[1], c.C):
            top = score[:, :s].topk(c.w + 1).values
            gaps.append((1 - top[:, c.w] / top[:, c.w - 1]).min().item())

    model.on_score = look
    model.logits(ids)
    model.on_score = None
    return min(gaps)


@torch.no_grad()
def build(config, seed):
    """(model in float64 with the weights rounded to torch_dtype, {name: stored tensor}, ids)"""
    dtype, stored = DTYPES[config["torch_dtype"]][1], {}

    def get(name, shape):
        if name.endswith("cache_tau"):
            w = torch.full(shape, config["cache_tau_init"])
        else:
            w = vector_weight(name, shape, "#%d" % seed)
        stored[name] = w.to(dtype)
        return stored[name].double()

    model = Model(config, torch.float64)
    model.load(get)
    ids = torch.tensor([[splitmix64(1000 * seed + i) % model.c.vocab for i in range(T)]])
    return model, stored, ids


@torch.no_grad()
def make(folder, config, dtype, seed, shards=1):
    config = dict(config, torch_dtype=dtype)
    model, stored, ids = build(config, seed)
    while model.c.cache and smallest_gap(model, ids) < 1e-3:
        seed += 1
        model, stored, ids = build(config, seed)
    os.makedirs(folder, exist_ok=True)
    write_json(os.path.join(folder, "config.json"), config, indent=2, sort_keys=True)

    st_name, names = DTYPES[dtype][0], sorted(stored)
    if shards == 1:
        write_safetensors(os.path.join(folder, "model.safetensors"), stored, st_name)
    else:
        where, total, per = {}, 0, math.ceil(len(names) / shards)
        for i in range(shards):
            name = "model-%05d-of-%05d.safetensors" % (i + 1, shards)
            part = {n: stored[n] for n in names[i * per:(i + 1) * per]}
            total += write_safetensors(os.path.join(folder, name), part, st_name)
            where.update(dict.fromkeys(part, name))
        write_json(os.path.join(folder, "model.safetensors.index.json"),
                   {"metadata": {"total_size": total}, "weight_map": where}, indent=2,
                   sort_keys=True)

    lp = torch.log_softmax(model.logits(ids)[0, :-1], -1).gather(1, ids[0, 1:, None]).squeeze(1)
    write_json(os.path.join(folder, "expected.json"),
               {"ids": ids[0].tolist(), "logprobs": [round(x, 12) for x in lp.tolist()],
                "loss": round(-lp.mean().item(), 12)}, separators=(",", ":"))
    size = sum(os.path.getsize(os.path.join(folder, f)) for f in os.listdir(folder))
    print("%-16s %-8s seed %d  loss %.6f  %d tensors  %d bytes%s"
          % (os.path.basename(folder), dtype, seed, -lp.mean().item(), len(stored), size,
             "  smallest gap %.1e" % smallest_gap(model, ids) if model.c.cache else ""))


def main():
    out = sys.argv[1] if len(sys.argv) > 1 else os.path.join(ROOT, "tests", "data")
    make(os.path.join(out, "fla_gdn"), GDN, "float32", 1)
    make(os.path.join(out, "fla_gdn_sharded"), GDN, "bfloat16", 1, shards=2)
    make(os.path.join(out, "fla_delta_net"), DELTA, "float16", 2)
    make(os.path.join(out, "hola_tiny"), HOLA, "float32", 3)


if __name__ == "__main__":
    main()
