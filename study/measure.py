"""measure.py -- what the study measures beyond benchmarks: samples one by one (for paired tests), loss by position and
by kind of token, gates, and what the exact memory keeps. Standard library only."""
import array
import bisect
import json
import math
import struct
import tempfile
from pathlib import Path

# ---- samples ----

DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz"


def pack(values):
    """A list of scores as a table of the distinct ones and a string with one character per sample."""
    distinct = sorted(set(values))
    if len(distinct) > len(DIGITS):
        return [round(v, 4) for v in values]
    place = {v: DIGITS[i] for i, v in enumerate(distinct)}
    return {"values": distinct, "index": "".join(place[v] for v in values)}


def unpack(packed):
    if isinstance(packed, list):
        return packed
    return [packed["values"][DIGITS.index(c)] for c in packed["index"]]


def argmax(values):
    return max(range(len(values)), key=lambda i: (values[i], -i))


def samples(lines):
    """The lines of --log-samples as {task or task@length: {metric: scores, in the order of the documents}}."""
    docs = {}
    for line in lines:
        task = line["task"]
        if "output" in line and "score" not in line:
            return {}  # hola 0.1.0 writes too little
        name = f"{task}@{line['length']}" if "length" in line else task
        docs.setdefault(name, {}).setdefault(line["doc"], []).append(line)
    return {name: scores(list(by_doc.values())) for name, by_doc in docs.items()}


def scores(docs):
    first = docs[0][0]
    if "gold" in first:
        out = {"acc": [], "acc_norm": []}
        for choices in docs:
            ll = [c["loglikelihood"] for c in choices]
            out["acc"].append(int(argmax(ll) == choices[0]["gold"]))
            if all(c.get("chars") for c in choices):
                norm = [c["loglikelihood"] / c["chars"] for c in choices]
                out["acc_norm"].append(int(argmax(norm) == choices[0]["gold"]))
        return {k: pack(v) for k, v in out.items() if len(v) == len(docs)}
    if "score" in first:
        return {"score": pack([line["score"] for line, in docs])}
    if first["is_greedy"] is None:
        return {"ll": [round(line["loglikelihood"], 3) for line, in docs], "tokens": [line["tokens"] for line, in docs]}
    return {"acc": pack([int(line["is_greedy"]) for line, in docs]),
            "ll": [round(line["loglikelihood"], 2) for line, in docs]}


# ---- documents of the validation set ----

def tokens_of(path):
    raw = path.read_bytes()
    magic, _, count = struct.unpack("<3i", raw[:12])
    ids = array.array("H" if magic == 20240520 else "I")
    ids.frombytes(raw[1024:])
    assert len(ids) == count
    return ids


def documents(data, length, most):
    """The first documents of the validation set that have so many tokens, cut there."""
    bos = json.loads((data / "dataset.json").read_text())["bos_token_id"]
    ids = array.array("I")
    for path in sorted(data.glob("val_*.bin")):
        ids.extend(tokens_of(path).tolist())
    starts = [i for i, t in enumerate(ids) if t == bos] if bos is not None else [0]
    ends = starts[1:] + [len(ids)]
    long = [ids[a:a + length].tolist() for a, b in zip(starts, ends) if b - a >= length]
    return long[:most]


# ---- loss by position and by kind of token ----

KINDS = ["copy_256", "copy_4096", "copy_far", "repeat", "new"]


def kinds(ids):
    """For each token but the first: how its past foretells it. copy_N: the same pair of tokens stood at most N tokens
    before (copy_far: farther back); repeat: the token alone is in the past; new: it is not."""
    last_pair, seen, out = {}, {ids[0]}, []
    for t in range(1, len(ids)):
        pair = ids[t - 1], ids[t]
        back = t - last_pair[pair] if pair in last_pair else None
        if back is not None:
            out.append(0 if back <= 256 else 1 if back <= 4096 else 2)
        else:
            out.append(3 if ids[t] in seen else 4)
        last_pair[pair] = t
        seen.add(ids[t])
    return out


def losses(docs, scored, trained):
    """scored: of each document, the log-probabilities of all but its first token. Per document: sums and counts, so that
    runs can be compared document by document."""
    edges = [64 << i for i in range(0, 30) if 64 << i <= max((len(d) for d in docs), default=0)]
    by_position, by_kind = [], []
    for ids, logprobs in zip(docs, scored):
        where = [[0.0, 0] for _ in range(len(edges) + 1)]
        what = [[[0.0, 0] for _ in KINDS] for _ in range(2)]  # within the trained length, beyond it
        for t, (lp, kind) in enumerate(zip(logprobs, kinds(ids)), 1):
            for cell in (where[bisect.bisect_right(edges, t)], what[t >= trained][kind]):
                cell[0] -= lp
                cell[1] += 1
        by_position.append([[round(s, 3), n] for s, n in where if n])
        by_kind.append([[[round(s, 3), n] for s, n in row] for row in what])
    return {"edges": edges, "by_position": by_position, "kinds": KINDS, "trained": trained, "by_kind": by_kind}


# ---- weights ----

def small_tensors(model, suffixes):
    """{suffix: {layer: numbers}} of the tensors under attn. with these names; F32 and BF16."""
    out = {s: {} for s in suffixes}
    for path in sorted(model.glob("model*.safetensors")):
        with open(path, "rb") as f:
            size, = struct.unpack("<Q", f.read(8))
            head = json.loads(f.read(size))
            for name, about in head.items():
                for s in suffixes:
                    if name.endswith(f".attn.{s}"):
                        a, b = about["data_offsets"]
                        f.seek(8 + size + a)
                        raw = f.read(b - a)
                        if about["dtype"] == "BF16":
                            raw = b"".join(b"\0\0" + raw[i:i + 2] for i in range(0, len(raw), 2))
                        numbers = array.array("f")
                        numbers.frombytes(raw)
                        out[s][int(name.split(".layers.")[1].split(".")[0])] = list(numbers)
    return out


def sigmoid(x):
    return 1 / (1 + math.exp(-x)) if x >= 0 else math.exp(x) / (1 + math.exp(x))


def weights(model):
    t = small_tensors(model, ["cache_gate", "cache_sink", "cache_tau", "cache_q_norm.weight", "cache_k_norm.weight"])
    if not t["cache_gate"]:
        return {}
    config = json.loads((model / "config.json").read_text())
    opened = (lambda x: max(x, 0.0)) if config.get("cache_gate_linear") else sigmoid
    rows = lambda d, f: [[round(f(x), 5) for x in d[i]] for i in sorted(d)]
    rms = lambda v: round(math.sqrt(sum(x * x for x in v) / len(v)), 4)
    return {
        "gate": rows(t["cache_gate"], opened),
        "sink": rows(t["cache_sink"], float),
        "tau": rows(t["cache_tau"], float),
        "gamma_q": [rms(t["cache_q_norm.weight"][i]) for i in sorted(t["cache_q_norm.weight"])],
        "gamma_k": [rms(t["cache_k_norm.weight"][i]) for i in sorted(t["cache_k_norm.weight"])],
    }


# ---- the exact memory ----

def memory(view):
    """What inspect --memory shows of one text, head by head: how many of the kept rows are a token that another kept
    row of the head holds already, and how many have a key nearly like another's (cosine above 0.95); how far back they
    are; of the last token's read the part of the sink, of kept rows and of the open block; and how large the read is
    beside what the state gave."""
    ids = [t["id"] for t in view["tokens"]]
    heads = []
    for h in view["heads"]:
        kept = [k["position"] for k in h["kept"]]
        ages = sorted(k["age"] for k in h["kept"])
        far = sum(r["p"] for r in h["read"] if r["kept"])
        near = sum(r["p"] for r in h["read"] if not r["kept"])
        heads.append({
            "layer": h["layer"], "head": h["head"], "gate": round(h["gate"], 5), "kept": len(kept),
            "repeated": len(kept) - len({ids[p] for p in kept}),
            "age": ages[len(ages) // 2] if ages else None,
            "recent": sum(k["recency"] for k in h["kept"]),
            "read": [round(h["sink"], 4), round(far, 4), round(near, 4)],
        })
        if "added" in h:  # hola 0.1.0 does not say
            heads[-1]["alike"] = sum(k["alike"] > 0.95 for k in h["kept"])
            heads[-1]["added"] = round(h["added"], 4)
    return {"length": len(ids), "heads": heads}


def all_of(run, hola, work, data):
    """Everything of a trained run. hola(..., capture=) runs the program."""
    wanted = run["measure"]
    model = work / "train" / "latest"
    backend = ["--backend", run["backend"]] if "backend" in run else []
    docs = documents(data, wanted["length"], wanted["documents"])
    short = documents(data, wanted["short"], wanted["shorts"])
    out = {"weights": weights(model), "documents": len(docs)}
    with tempfile.TemporaryDirectory(dir=work) as folder:
        def ask(command, texts, *args):
            """One object per line for each of these texts."""
            files, answer = [], Path(folder) / "out.json"
            for i, ids in enumerate(texts):
                path = Path(folder) / f"ids-{i}.json"
                path.write_text(json.dumps(ids))
                files += ["--ids", path]
            hola(command, "-m", model, *files, *args, *backend, "--json", capture=answer)
            return [json.loads(line) for line in open(answer)]

        for field, texts in (("loss", docs), ("short", short)):
            scored = [r["logprobs"] for i in range(0, len(texts), 16) for r in ask("score", texts[i:i + 16])]
            out[field] = losses(texts, scored, run["train"]["seq-len"])
        if out["weights"]:
            out["memory"] = [memory(ask("inspect", [ids[:wanted["memory"]]], "--memory")[0])
                             for ids in docs[:wanted.get("memories", 2)]]
    return out


# ---- files ----

def dump(value, depth=0):
    """JSON with one line per field and lists of plain values on one line: small, and readable in a diff."""
    if isinstance(value, dict) and value and depth < 4 and any(isinstance(v, (dict, list)) for v in value.values()):
        pad = " " * (depth + 1)
        body = ",\n".join(f"{pad}{json.dumps(k)}: {dump(v, depth + 1)}" for k, v in value.items())
        return "{\n" + body + "\n" + " " * depth + "}" + ("\n" if depth == 0 else "")
    return json.dumps(value)
