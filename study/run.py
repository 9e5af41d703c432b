"""run.py NAME...: trains, evaluates and measures the runs of runs.json; called by run.sh, which says where things are.

Every stage leaves a file in WORK/NAME, written whole or not at all, and is skipped where that is there:
config.json, train/ (hola train resumes by itself), eval-PART.json and samples-PART.jsonl.xz, measures.json. The last
one gathers them in OUT/NAME.json, the only file that the report reads."""
import hashlib
import json
import lzma
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import measure

HERE = Path(__file__).resolve().parent


def where(name):
    return Path(os.environ[name])


class Failed(Exception):
    pass


# ---- the table ----

def merge(base, over):
    """over's fields replace base's; objects are merged."""
    out = dict(base)
    for key, value in over.items():
        out[key] = merge(out[key], value) if isinstance(value, dict) and isinstance(out.get(key), dict) else value
    return out


def settings(table, name):
    """A run of the table with what it inherits by "like"."""
    if name not in table["runs"]:
        raise Failed(f"{name}: no such run; run.py --list names them all")
    run, chain = dict(table["runs"][name]), []
    while "like" in run:
        base = run.pop("like")
        if base in chain:
            raise Failed(f"{name}: inherits from itself")
        chain.append(base)
        run = merge(table["bases"][base], run)
    return run


# ---- stages ----

def hola(*args, capture=None):
    """Runs the program; its standard output goes to the file capture, whole or not at all."""
    command = [os.environ["HOLA"], *map(str, args)]
    part = Path(f"{capture}.part") if capture else None
    with open(part or os.devnull, "wb") as out, subprocess.Popen(command, stdout=out) as child:
        tell = lambda *_: child.send_signal(signal.SIGTERM)  # hola train saves a checkpoint and ends
        before = [signal.signal(s, tell) for s in (signal.SIGINT, signal.SIGTERM)]
        status = child.wait()
        for s, handler in zip((signal.SIGINT, signal.SIGTERM), before):
            signal.signal(s, handler)
    if status != 0:
        raise Failed(f"failed with status {status}: {' '.join(command)}")
    if part:
        part.rename(capture)


def backend(run):
    return ["--backend", run["backend"]] if "backend" in run else []


def write_json(path, value):
    part = Path(f"{path}.part")
    part.write_text(json.dumps(value, indent=1) + "\n")
    part.rename(path)


def make_config(run, work):
    """The preset's config.json with the run's changes. Rows as long as --seq-len are what the model has learnt."""
    path = work / "config.json"
    if path.exists():
        return path
    if "shape" in run:
        config = {"model_type": run["type"], **run["shape"]}
    else:
        shutil.rmtree(work / "init", ignore_errors=True)
        hola("init", "-o", work / "init", "--preset", run["preset"], "--model-type", run["type"])
        config = json.loads((work / "init" / "config.json").read_text())
        shutil.rmtree(work / "init")
    config.update(run.get("config", {}))
    config["max_position_embeddings"] = run["train"]["seq-len"]
    write_json(path, config)
    return path


def model_of(name):
    return where("WORK") / name / "train" / "latest"


def train(run, work):
    """True: trained to the end."""
    done = work / "train.json"
    if done.exists() and not json.loads(done.read_text())["stopped"]:
        return True
    args = ["--data", where("DATA") / run["data"], "--out", work / "train", *backend(run)]
    if "from" in run:
        start = model_of(run["from"])
        if not (start / "config.json").exists():
            raise Failed(f"starts from {run['from']}, which has to be run first")
        args += ["-m", start, "--model-type", run["type"]]
    else:
        args += ["--config", make_config(run, work)]
    for key, value in run["train"].items():
        args += [f"--{key}"] if value is True else [f"--{key}", value]
    begin = time.time()
    hola("train", *args, "--json", capture=done)
    note = work / "train-seconds"
    note.write_text(str((float(note.read_text()) if note.exists() else 0) + time.time() - begin))
    return not json.loads(done.read_text())["stopped"]


def evaluate(run, part, work):
    out, log = work / f"eval-{part['name']}.json", work / f"samples-{part['name']}.jsonl"
    if out.exists():
        return
    begin = time.time()
    hola("eval", "-m", work / "train" / "latest", "--data", where("DATA") / run.get("eval-data", "eval"),
         *part["args"], *backend(run), "--out", work / "answers", "--log-samples", log, "--json", capture=out)
    with lzma.open(f"{log}.xz", "wb", preset=1) as packed:
        packed.write(log.read_bytes())
    log.unlink()
    (work / f"eval-{part['name']}-seconds").write_text(str(time.time() - begin))


def publish(run, work):
    """The model in the forms that are given away, each with its perplexity and what it writes."""
    wanted, out = run["publish"], {}
    for form in wanted["forms"]:
        model, answer = work / f"publish-{form}", work / "answer.json"
        if not (model / "config.json").exists():
            hola("convert", "-m", work / "train" / "latest", "-o", model, "--dtype", form)
        tokenizer = ["--tokenizer", wanted["tokenizer"]] if "tokenizer" in wanted else []
        hola("eval", "-m", model, "--data", where("DATA") / run.get("eval-data", "eval"), "--tasks", "wikitext", *tokenizer,
             *backend(run), "--json", capture=answer)
        r = json.loads(answer.read_text())
        texts = []
        for prompt in wanted["prompts"]:
            hola("generate", "-m", model, "-p", prompt, "-n", wanted["tokens"], "--temp", 0, "-q", *tokenizer, *backend(run),
                 capture=answer)
            texts.append([prompt, answer.read_text()])
        out[form] = {"bytes": sum(f.stat().st_size for f in model.glob("*.safetensors")), "model_sha256": r["model_sha256"],
                     "wikitext": r["results"]["wikitext"], "greedy": texts}
    return out


# ---- the result ----

def sha256(path):
    h = hashlib.sha256()
    with open(path, "rb") as f:
        while block := f.read(1 << 22):
            h.update(block)
    return h.hexdigest()


def data_record(run):
    """What was read, with hashes; they are kept beside the checkpoints, since the shards are large."""
    data = where("DATA") / run["data"]
    files = sorted(data.glob("*.bin"))
    known = where("WORK") / f"hashes-{run['data']}.json"
    stamp = [[f.name, f.stat().st_size, int(f.stat().st_mtime)] for f in files]
    kept = json.loads(known.read_text()) if known.exists() else {}
    if kept.get("stamp") != stamp:
        kept = {"stamp": stamp, "sha256": {f.name: sha256(f) for f in files}}
        write_json(known, kept)
    info = json.loads((data / "dataset.json").read_text())
    info["sources"] = [Path(s).name if isinstance(s, str) else s for s in info.get("sources", [])]
    return {"name": run["data"], "sha256": kept["sha256"], "dataset": info}


def curve(path, points=120):
    """Validation losses, and training losses as means over equal pieces of the run."""
    lines = [json.loads(line) for line in open(path)]
    val = [[m["step"], m["tokens"], m["val_loss"]] for m in lines if m.get("val_loss") is not None]
    size = max(1, -(-len(lines) // points))
    pieces = [lines[i:i + size] for i in range(0, len(lines), size)]
    mean = lambda piece, key: sum(m[key] for m in piece if m[key] is not None) / len(piece)
    return {
        "columns": {"val": ["step", "tokens", "loss"], "train": ["step", "loss", "grad_norm"]},
        "val": val,
        "train": [[p[-1]["step"], round(mean(p, "loss"), 5), round(mean(p, "grad_norm"), 5)] for p in pieces],
        "seconds": lines[-1]["seconds"],
        "tok_per_s": round(sorted(m["tok_per_s"] for m in lines)[len(lines) // 2]),
        "skipped": lines[-1]["skipped"],
    }


def line_of(*command):
    try:
        done = subprocess.run(command, capture_output=True, text=True, cwd=HERE)
    except OSError:
        return ""
    return done.stdout.strip().split("\n")[0] if done.returncode == 0 else ""


def device():
    gpu = line_of("nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader")
    cpu = [l.split(":")[1].strip() for l in open("/proc/cpuinfo") if l.startswith("model name")]
    return gpu or f"{len(cpu)} x {cpu[0]}" if cpu else "unknown"


def gather(name, run, parts, work):
    evals, configs, samples, seconds = {}, {}, {}, {}
    sha = parameters = None
    for part in parts:
        r = json.loads((work / f"eval-{part['name']}.json").read_text())
        sha, parameters = r["model_sha256"], r["parameters"]
        for task, values in r["results"].items():
            evals.setdefault(task, {}).update(values)
            keep = {k: v for k, v in r["configs"][task].items() if v is not None and k not in ("file", "length", "seconds")}
            configs.setdefault(task, []).append(keep)
        seconds[part["name"]] = round(float((work / f"eval-{part['name']}-seconds").read_text()), 1)
        with lzma.open(work / f"samples-{part['name']}.jsonl.xz", "rt") as log:
            samples.update(measure.samples(map(json.loads, log)))
    record = {
        "run": name,
        "settings": run,
        "config": json.loads((work / "train" / "latest" / "config.json").read_text()),
        "hola": line_of(os.environ["HOLA"], "--version"),
        "commit": os.environ.get("COMMIT") or line_of("git", "rev-parse", "HEAD") or "unknown",
        "device": device(),
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "data": data_record(run),
        "model_sha256": sha,
        "parameters": parameters,
        "seconds": {"train": round(float((work / "train-seconds").read_text()), 1), "eval": seconds},
        "curve": curve(work / "train" / "metrics.jsonl"),
        "results": evals,
        "eval_settings": configs,
        "measures": json.loads((work / "measures.json").read_text()),
        "samples": samples,
    }
    if "publish" in run:
        record["published"] = json.loads((work / "publish.json").read_text())
    where("OUT").mkdir(parents=True, exist_ok=True)
    path = where("OUT") / f"{name}.json"
    part = Path(f"{path}.part")
    part.write_text(measure.dump(record))
    part.rename(path)


def one(table, name):
    run = settings(table, name)
    parts = table["evals"][run.get("eval", "full")]
    work = where("WORK") / name
    if (where("OUT") / f"{name}.json").exists():
        print(f"{name}: done already")
        return
    if "needs" in run:
        raise Failed(f"{name}: needs {run['needs']}, which hola does not have")
    work.mkdir(parents=True, exist_ok=True)
    if not train(run, work):
        raise Failed(f"{name}: stopped; the same command goes on")
    for part in parts:
        evaluate(run, part, work)
    if not (work / "measures.json").exists():
        write_json(work / "measures.json", measure.all_of(run, hola, work, where("DATA") / run["data"]))
    if "publish" in run and not (work / "publish.json").exists():
        write_json(work / "publish.json", publish(run, work))
    gather(name, run, parts, work)
    print(f"{name}: done")


def main(names):
    table = json.loads(Path(os.environ.get("RUNS", HERE / "runs.json")).read_text())
    if names == ["--list"]:
        for name in table["runs"]:
            print(f"{name:24} {settings(table, name).get('about', '')}")
        return 0
    if not names or names[0].startswith("-"):
        print("usage: run.sh NAME... | --list", file=sys.stderr)
        return 2
    try:
        for name in names:
            one(table, name)
    except Failed as e:
        print(f"run.sh: {e}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
