"""run.py [--for SECONDS] NAME...: trains, evaluates and measures the runs of runs.json; called by run.sh, which says where things are.

Every stage leaves a file in WORK/NAME, written whole or not at all, and is skipped where that is there:
config.json, train/ (hola train resumes by itself), eval-PART.json and samples-PART.jsonl.xz, measures.json. The last
one gathers them in OUT/NAME.json, the only file that the report reads. @LIST stands for the names of a list of runs.json,
most important first. --for ends in time: what runs then is stopped, with a checkpoint where it trains, and what it has
is left in OUT/partial-NAME.json; a run that fails does not keep the next ones from theirs."""
import ctypes
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


class TimeOver(Failed):
    pass


GRACE = 30  # seconds that a checkpoint may take
LEAST = 10  # seconds that are worth a start
deadline = None  # of --for, by time.monotonic()


def left():
    return None if deadline is None else max(0.0, deadline - time.monotonic())


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

def end_with_parent():
    """hola ends, as by SIGTERM, when this program is killed: it would go on writing where the next one begins."""
    ctypes.CDLL(None).prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG


def wait(child):
    """The child's status; at the deadline it is told to end."""
    try:
        return child.wait(left())
    except subprocess.TimeoutExpired:
        child.terminate()
    try:
        return child.wait(GRACE)
    except subprocess.TimeoutExpired:
        child.kill()
        return child.wait()


def hola(*args, capture=None):
    """Runs the program; its standard output goes to the file capture, whole or not at all."""
    command = [os.environ["HOLA"], *map(str, args)]
    part = Path(f"{capture}.part") if capture else None
    if left() is not None and left() < LEAST:
        raise TimeOver("the time is over")
    with open(part or os.devnull, "wb") as out, subprocess.Popen(command, stdout=out, preexec_fn=end_with_parent) as child:
        tell = lambda *_: child.send_signal(signal.SIGTERM)  # hola train saves a checkpoint and ends
        before = [signal.signal(s, tell) for s in (signal.SIGINT, signal.SIGTERM)]
        status = wait(child)
        for s, handler in zip((signal.SIGINT, signal.SIGTERM), before):
            signal.signal(s, handler)
    if status != 0 and left() == 0:
        raise TimeOver("the time is over")
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
    write_result(name, record)
    (where("OUT") / f"partial-{name}.json").unlink(missing_ok=True)


def write_result(name, record):
    where("OUT").mkdir(parents=True, exist_ok=True)
    path = where("OUT") / f"{name}.json"
    part = Path(f"{path}.part")
    part.write_text(measure.dump(record))
    part.rename(path)


def gather_partial(name, run, work):
    """The curve of a run that is not complete: machines are handed back, with what is on them."""
    metrics = work / "train" / "metrics.jsonl"
    if not metrics.exists() or not metrics.read_text().strip():
        return
    step = json.loads(metrics.read_text().strip().split("\n")[-1])["step"]
    write_result(f"partial-{name}", {
        "run": f"partial-{name}",
        "settings": run,
        "note": f"Stopped at step {step} of {run['train']['steps']}; the learning rate was still above its end.",
        "hola": line_of(os.environ["HOLA"], "--version"),
        "commit": os.environ.get("COMMIT") or line_of("git", "rev-parse", "HEAD") or "unknown",
        "device": device(),
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "curve": curve(metrics),
    })


def one(table, name):
    run = settings(table, name)
    parts = table["evals"][run.get("eval", "full")]
    work = where("WORK") / name
    if (where("OUT") / f"{name}.json").exists():
        print(f"{name}: done already")
        return
    work.mkdir(parents=True, exist_ok=True)
    try:
        if not train(run, work):
            raise (TimeOver if left() == 0 else Failed)("stopped; the same command goes on")
        stages(run, parts, work)
    except Failed as e:
        gather_partial(name, run, work)
        raise type(e)(f"{name}: {e}")
    gather(name, run, parts, work)
    print(f"{name}: done", flush=True)


def stages(run, parts, work):
    """All that follows training."""
    for part in parts:
        evaluate(run, part, work)
    if not (work / "measures.json").exists():
        write_json(work / "measures.json", measure.all_of(run, hola, work, where("DATA") / run["data"]))
    if "publish" in run and not (work / "publish.json").exists():
        write_json(work / "publish.json", publish(run, work))


def expand(table, names):
    """@LIST: all names of the list."""
    for name in names:
        if not name.startswith("@"):
            yield name
        elif name[1:] in table["lists"]:
            yield from table["lists"][name[1:]]
        else:
            raise Failed(f"{name}: no such list; there are @{', @'.join(table['lists'])}")


def run_all(table, names):
    """The exit status. Without a deadline the first failure ends all."""
    failed = False
    for name in expand(table, names):
        try:
            one(table, name)
        except TimeOver as e:
            print(f"run.sh: {e}", flush=True)
            break
        except Failed as e:
            if deadline is None:
                raise
            print(f"run.sh: {e}", file=sys.stderr)
            failed = True
    return 1 if failed else 0


def main(names):
    global deadline
    table = json.loads(Path(os.environ.get("RUNS", HERE / "runs.json")).read_text())
    if names == ["--list"]:
        for name in table["runs"]:
            print(f"{name:24} {settings(table, name).get('about', '')}")
        return 0
    try:
        if len(names) > 2 and names[0] == "--for":
            deadline = time.monotonic() + float(names[1])
            names = names[2:]
        if not names or names[0].startswith("-"):
            raise ValueError
    except ValueError:
        print("usage: run.sh [--for SECONDS] NAME... | --list", file=sys.stderr)
        return 2
    try:
        return run_all(table, names)
    except Failed as e:
        print(f"run.sh: {e}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
