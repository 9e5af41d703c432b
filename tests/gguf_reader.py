"""gguf_reader.py FILE.gguf DIR -- the same model as a GGUF file, read by the package gguf, and as a directory: the same
numbers in every tensor, and keys that agree with config.json."""

import json
import struct
import sys

import gguf
import numpy as np


def safetensors(path):
    """Name -> floats, codes times their scales."""
    data = open(path, "rb").read()
    n = struct.unpack("<Q", data[:8])[0]
    head = json.loads(data[8 : 8 + n])
    raw = {}
    for name, t in head.items():
        if name == "__metadata__":
            continue
        a, b = t["data_offsets"]
        kind = {"F32": "<f4", "BF16": "<u2", "F16": "<f2", "I8": "i1", "U8": "u1"}[t["dtype"]]
        x = np.frombuffer(data[8 + n + a : 8 + n + b], kind).reshape(t["shape"])
        if t["dtype"] == "BF16":
            x = (x.astype(np.uint32) << 16).view(np.float32)
        raw[name] = (t["dtype"], x)
    out = {}
    for name, (dtype, x) in raw.items():
        if name.endswith("_scale"):
            continue
        if dtype == "U8":
            x = np.stack([x & 15, x >> 4], -1).reshape(x.shape[0], -1).astype(np.float32) - 8
        if dtype in ("I8", "U8"):
            group = 128 if dtype == "I8" else 64
            scale = np.repeat(raw[name + "_scale"][1], group, axis=1)
            x = x.astype(np.float32) * scale[:, : x.shape[1]]
        out[name] = x.astype(np.float32)
    return out


NAMES = {
    "model.embeddings.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}
PARTS = [("attn.q_proj", "attn_q"), ("attn.k_proj", "attn_k"), ("attn.v_proj", "attn_v"), ("attn.o_proj", "attn_output")]
PARTS += [("mlp.gate_proj", "ffn_gate"), ("mlp.up_proj", "ffn_up"), ("mlp.down_proj", "ffn_down"), ("mlp_norm", "ffn_norm")]


def llama(name, x, config):
    """A tensor of ours as llama.cpp's conversion of Hugging Face's models writes it."""
    if name in NAMES:
        return NAMES[name], x
    heads = {"q_proj": config["num_heads"], "k_proj": config["num_kv_heads"] or config["num_heads"]}
    for part, n in heads.items():
        if part in name:
            x = x.reshape(n, 2, x.shape[0] // n // 2, *x.shape[1:]).swapaxes(1, 2).reshape(x.shape)
    name = name.replace("model.layers.", "blk.")
    for ours, theirs in PARTS:
        name = name.replace(ours, theirs)
    return name, x


def main(path, directory):
    reader = gguf.GGUFReader(path)
    config = json.load(open(directory + "/config.json"))
    fields = {k: v.contents() for k, v in reader.fields.items() if not k.startswith("GGUF.")}
    arch = fields["general.architecture"]
    assert arch == ("llama" if config["model_type"] == "transformer" else "hola"), arch
    sizes = {"embedding_length": "hidden_size", "block_count": "num_hidden_layers", "vocab_size": "vocab_size"}
    sizes |= {"feed_forward_length": "intermediate_size", "context_length": "max_position_embeddings"}
    for key, field in sizes.items():
        assert fields[f"{arch}.{key}"] == config[field], key
    if arch == "llama":
        assert fields["llama.attention.head_count"] == config["num_heads"]
        assert fields["llama.attention.head_count_kv"] == config["num_kv_heads"]
        assert fields["llama.rope.freq_base"] == np.float32(config["rope_theta"])
        assert fields["llama.attention.layer_norm_rms_epsilon"] == np.float32(config["norm_eps"])
    else:
        assert json.loads(fields["hola.config"]) == config
    want = safetensors(directory + "/model.safetensors")
    if arch == "llama":
        want = dict(llama(name, x, config) for name, x in want.items())
    got = {t.name: t for t in reader.tensors}
    assert set(got) == set(want), set(got) ^ set(want)
    for name, x in want.items():
        t = got[name]
        y = gguf.quants.dequantize(t.data, t.tensor_type).reshape(x.shape)
        assert [int(n) for n in t.shape][::-1] == list(x.shape), name
        assert np.array_equal(x, y), (name, np.abs(x - y).max())
    if "tokenizer.ggml.tokens" in fields:
        n = config["vocab_size"]
        assert len(fields["tokenizer.ggml.tokens"]) == n and len(fields["tokenizer.ggml.token_type"]) == n
    print(path, len(want), "tensors agree")


if __name__ == "__main__":
    main(*sys.argv[1:])
