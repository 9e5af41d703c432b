"""report.py [--results DIR] [--out DIR] [--check]: the report from the results alone: OUT/README.md and
OUT/figures/*.svg, the same bytes for the same results. --check writes nothing and fails if the files there differ."""
import argparse
import json
import math
import sys
from pathlib import Path

import claims
import compare as cmp
import figures
import measure
import stats
from compare import Comparison, Study

HERE = Path(__file__).resolve().parent
NOT_YET = "not yet run"


def cell(study, name, metric):
    v = study.mean(name, metric)
    if not v:
        return ""
    mean, error, _ = v
    text = metric.show(mean)
    if error is None:
        return text
    return f"{text} ± {metric.show(error)}"


def label(study, text, name):
    """A row's name with its files."""
    runs = study.family(name)
    return text + " " + " ".join(f"[{i}](results/{r.name}.json)" for i, r in enumerate(runs, 1)) if runs else text


def table(study, rows, metrics, first=""):
    """One row per experiment; what has not been run says so."""
    out = [f"| {first} | " + " | ".join(m.label for m in metrics) + " |", "|---" * (len(metrics) + 1) + "|"]
    missing = []
    for text, name in rows:
        cells = [cell(study, name, m) for m in metrics]
        if any(cells):
            out.append(f"| {label(study, text, name)} | " + " | ".join(cells) + " |")
        else:
            missing.append(text)
    body = "\n".join(out) if len(out) > 2 else ""
    if missing:
        body += ("\n\n" if body else "") + f"{NOT_YET.capitalize()}: {', '.join(missing)}."
    return body


def claim_table(study):
    out = ["| section | claim | paper | ours | test | verdict |", "|---|---|---|---|---|---|"]
    counts = {}
    for c in claims.CLAIMS:
        ours, test, verdict = c.check(study)
        counts[verdict] = counts.get(verdict, 0) + 1
        out.append(f"| {c.section} | {c.text} | {c.paper} | {ours} | {test} | {verdict} |".replace("->", "→"))
    total = "; ".join(f"{n} {v}" for v, n in sorted(counts.items(), key=lambda x: (-x[1], x[0])))
    return f"{len(claims.CLAIMS)} claims: {total}.\n\n" + "\n".join(out)


def sweep_table(study):
    rates = sorted({r.data["settings"]["train"]["lr"]: n.split("-", 2)[2] for n, r in study.runs.items()
                    if n.startswith("lr-")}.items())
    out = ["| peak rate | GDN | HOLA | HOLA lower by | lower perplexity |", "|---|---|---|---|---|"]
    for _, text in rates:
        a, b = study.mean(f"lr-gdn-{text}", cmp.VAL), study.mean(f"lr-hola-{text}", cmp.VAL)
        if a and b:
            d = a[0] - b[0]
            links = label(study, "", f"lr-gdn-{text}") + label(study, "", f"lr-hola-{text}")
            out.append(f"| {text}{links} | {a[0]:.4f} | {b[0]:.4f} | {d:.4f} | {100 * (1 - math.exp(-d)):.1f} % |")
    return "\n".join(out) if len(out) > 2 else NOT_YET.capitalize() + "."


def fade_table(study):
    gaps = figures.gaps(study)
    if not gaps:
        return NOT_YET.capitalize() + "."
    out = ["| training tokens | HOLA's validation loss below GDN's | lower perplexity |", "|---|---|---|"]
    for t, d, e in sorted({min(gaps, key=lambda g: abs(g[0] - want)) for want in figures.GAP_AT}):
        out.append(f"| {t / 1e6:.0f}M | {d:.4f}" + (f" ± {e:.4f}" if e is not None else "")
                   + f" | {100 * (1 - math.exp(-d)):.1f} % |")
    if not study.family("b-gdn"):
        out.append("\nGDN's run was cut off before its end: " + label(study, "", "partial-b-gdn").strip() + ".")
    return "\n".join(out)


def again_table(study):
    """Runs with the same seed and batches, that differ in rounding alone."""
    names = {"partial-b-gdn-s1": "GDN", "partial-b-gdn-again": "again", "b-gdn-s1": "a third time"}
    found = [study.runs[n] for n in names if n in study.runs]
    if len(found) < 2:
        return NOT_YET.capitalize() + "."
    curves = [{t: v for _, t, v in r.data["curve"]["val"]} for r in found]
    tokens = [t for t in sorted(curves[0]) if t >= 60e6 and any(t in c for c in curves[1:])]
    out = ["| training tokens | " + " | ".join(f"{t / 1e6:.0f}M" for t in tokens) + " |", "|---" * (len(tokens) + 1) + "|"]
    row = lambda text, values: out.append(f"| {text} | " + " | ".join("" if v is None else f"{v:.4f}" for v in values) + " |")
    for r, c in zip(found, curves):
        row(names[r.name], [c.get(t) for t in tokens])
    at = [[c[t] for c in curves if t in c] for t in tokens]
    row("largest difference", [max(values) - min(values) for values in at])
    lead = {t: d for t, d, _ in figures.gaps(study)}
    row("HOLA's lead, as above", [lead.get(t) for t in tokens])
    files = ", ".join(f"[{i}](results/{r.name}.json)" for i, r in enumerate(found, 1))
    return "\n".join(out) + f"\n\nFiles: {files}."


def order(study, metric, names={"b-gdn": "GDN", "b-hola": "HOLA", "b-recency": "HOLA + recency"}):
    """The models that the claims are about, from the lowest value of a metric to the highest."""
    found = sorted((study.mean(name, metric)[0], text) for name, text in names.items() if study.mean(name, metric))
    return ", ".join(f"{text} {metric.show(value)}" for value, text in found)


KIND_NAMES = {"copy_256": "the pair of tokens stood within the last 256", "copy_4096": "... within the last 4096",
              "copy_far": "... farther back", "repeat": "the token alone was there before", "new": "it was not"}


def kind_table(study, old="b-gdn", new="b-hola"):
    """Loss by kind of token without and with the exact memory, and the paired difference over documents."""
    found = [[r.data["measures"] for r in study.family(n) if r.data.get("measures", {}).get("documents")] for n in (old, new)]
    if not all(found):
        return NOT_YET.capitalize() + "."
    which = "short" if all("short" in m for runs in found for m in runs) else "loss"
    a, b = ([m[which] for m in runs] for runs in found)
    out = ["| kind of token | position | tokens | GDN | HOLA | HOLA lower by |", "|---|---|---|---|---|---|"]
    docs, trained = range(len(a[0]["by_kind"])), a[0]["trained"]
    for beyond, where in ((0, f"below {trained}"), (1, f"from {trained} on")):
        for i, kind in enumerate(a[0]["kinds"]):
            total = lambda runs, d, j: stats.mean([r["by_kind"][d][beyond][i][j] for r in runs])
            count = [total(a, d, 1) for d in docs]
            if not sum(count):
                continue
            x, y = (sum(total(r, d, 0) for d in docs) / sum(count) for r in (a, b))
            p = stats.Paired([total(a, d, 0) - total(b, d, 0) for d in docs], count)
            gain = f"{p.mean:.4f}" + (f" ± {p.error:.4f}" if p.error is not None else "")
            out.append(f"| {KIND_NAMES[kind]} | {where} | {sum(count):.0f} | {x:.4f} | {y:.4f} | {gain} |")
    return "\n".join(out)


def added_kinds(study):
    """The same for the longest training that a finished model had both without and with a memory."""
    for steps in (800, 400, 200, 100, 50):
        old, new = f"m-gdn-{steps}", f"m-all-{steps}"
        if study.family(old) and study.family(new):
            return f"Loss by kind of token after {steps} steps, as above:\n\n" + kind_table(study, old, new)
    return ""


def memory_table(study, rows):
    out = ["| | gate, mean (least, most) | the read over the state's | kept rows that repeat a token | that repeat a key | "
           "read of the sink, kept rows, open block |", "|---|---|---|---|---|---|"]
    for text, name in rows:
        runs = [r.data["measures"] for r in study.family(name) if r.data.get("measures", {}).get("memory")]
        if not runs:
            continue
        gates = [g for r in runs for layer in r["weights"]["gate"] for g in layer]
        heads = [h for r in runs for view in r["memory"] for h in view["heads"] if h["kept"]]
        if not heads:
            continue
        repeated = sum(h["repeated"] for h in heads) / sum(h["kept"] for h in heads)
        alike = [h["alike"] / h["kept"] for h in heads if "alike" in h]
        added = sorted(h["added"] for h in heads if "added" in h)
        read = [stats.mean([h["read"][i] for h in heads]) for i in range(3)]
        out.append(f"| {label(study, text, name)} | {stats.mean(gates):.4f} ({min(gates):.4f}, {max(gates):.4f}) | "
                   + (f"{added[len(added) // 2]:.2f}" if added else "") + f" | {100 * repeated:.0f} % | "
                   + (f"{100 * stats.mean(alike):.0f} %" if alike else "") + " | " + ", ".join(f"{x:.2f}" for x in read) + " |")
    return "\n".join(out) if len(out) > 2 else NOT_YET.capitalize() + "."


def published_table(study):
    runs = [r for r in study.runs.values() if r.data.get("published")]
    if not runs:
        return ""
    out = ["| form | MB | WikiText, token | word | model |", "|---|---|---|---|---|"]
    texts = []
    for r in runs:
        for form, x in r.data["published"].items():
            w = x["wikitext"]
            out.append(f"| [{r.name}](results/{r.name}.json), {form} | {x['bytes'] / 1e6:.1f} | {w['token_perplexity']:.3f} | "
                       f"{w['word_perplexity']:.3f} | {x['model_sha256'][:12]} |")
        form, x = list(r.data["published"].items())[-1]
        texts += [f"> {text}".replace("\n", " ").strip() for _, text in x["greedy"]]
    return "\n".join(out) + "\n\nWhat the last form writes, greedily:\n\n" + "\n>\n".join(texts)


def release_table(study):
    r = study.runs.get("release-0.1.0")
    if not r:
        return ""
    d = r.data
    out = ["| 0.1.0, 1.5e-3 | " + " | ".join(c.replace("_", " ") for c in d["columns"]) + " |", "|---" * (len(d["columns"]) + 1) + "|"]
    for name, text in (("gdn", "GDN"), ("hola", "HOLA"), ("recency", "HOLA + recency")):
        out.append(f"| {text} | " + " | ".join(f"{x:g}" for x in d[name]) + " |")
    fade = ", ".join(f"{100 * x:.1f} % at {t / 1e6:.0f}M tokens" for t, x in d["fade"])
    return "\n".join(out) + f"\n\nValidation perplexity of its HOLA below its GDN's: {fade}. ([file](results/release-0.1.0.json))"


def runs_table(study):
    out = ["| run | trained | device | hola | commit | model |", "|---|---|---|---|---|---|"]
    for name, r in sorted(study.runs.items()):
        d = r.data
        if "curve" not in d:
            continue
        seconds = d["curve"].get("seconds")
        out.append(f"| [{name}](results/{name}.json) | {seconds:.0f} s | " if seconds else f"| [{name}](results/{name}.json) | | ")
        out[-1] += f"{d.get('device', '')} | {d.get('hola', '')} | {d['commit'][:9] if 'commit' in d else 'not recorded'} | {(d.get('model_sha256') or '')[:12]} |"
    return "\n".join(out)


B = [("GDN", "b-gdn"), ("HOLA", "b-hola"), ("HOLA + recency", "b-recency")]
C = [("DeltaNet", "c-deltanet"), ("GLA", "c-gla"), ("GSA", "c-gsa"), ("KDA", "c-kda"), ("Transformer++", "c-transformer"),
     ("KDA + memory", "c-kda-memory")]
PAPER = [("GDN", "a-gdn"), ("HOLA", "a-hola"), ("HOLA + recency", "a-recency")]
D = [("GDN", "d-gdn"), ("HOLA (beta norm(e), w = 64)", "d-hola"), ("recency", "d-recency"), ("norm(e)", "d-e"),
     ("beta norm(v)", "d-betav"), ("h2o", "d-h2o"), ("streaming", "d-streaming"), ("lola", "d-lola"), ("lte", "d-lte"),
     ("w = 0", "d-w0"), ("w = 16", "d-w16"), ("w = 32", "d-w32"), ("w = 128", "d-w128"), ("w = 256", "d-w256"),
     ("unit-L2 read, tau learned", "d-l2-learned"), ("unit-L2 read, tau 1", "d-l2-frozen"),
     ("one set per layer", "d-layer-set")]
E = [("GDN", "e-gdn"), ("HOLA", "e-hola")]


def listed(prefix):
    """Rows of all runs of the table that begin so."""
    runs = json.loads((HERE / "runs.json").read_text())["runs"]
    return [(r["about"].split(": ", 1)[-1], n) for n, r in runs.items() if n.startswith(prefix)]


def fill(study, drawn):
    """README.md: text.md with tables and figures in place of {names}."""
    language = [cmp.VAL, cmp.WIKI, cmp.WIKI_WORD, cmp.LAMBADA]
    probes = [cmp.FAR, cmp.PASSKEY, *cmp.MULTIKEY]
    small = [cmp.VAL, cmp.WIKI, *probes]
    x_rows = [("GDN", "lr-gdn-6e-3"), ("HOLA", "lr-hola-6e-3")] + listed("x-")
    ruler = "\n\n".join(f"{name}:\n\n" + table(study, B + C, NIAH) for name, NIAH in cmp.NIAH.items())
    parts = {
        "claims": claim_table(study), "language": table(study, B + C, language + cmp.EXTRACTION),
        "order_val": order(study, cmp.VAL), "order_wiki": order(study, cmp.WIKI),
        "commonsense": table(study, B + C, cmp.SIX + cmp.OTHER), "probes": table(study, B + C, probes),
        "depths": table(study, B + C, cmp.DEPTH), "ruler": ruler, "recipe": table(study, PAPER, language + probes),
        "sweep": sweep_table(study), "fade": fade_table(study), "again": again_table(study),
        "kinds": kind_table(study), "added_kinds": added_kinds(study),
        "memory": memory_table(study, B[1:] + [("HOLA as INT8, WikiText", "int8-b-hola")] + [("HOLA, 250M tokens", "d-hola")]
                               + listed("x-") + listed("m-all-")),
        "ablations": table(study, D, small), "scale": table(study, E, language + probes), "why": table(study, x_rows, small),
        "added": table(study, [("GDN, 500M tokens", "b-gdn-s1")] + listed("m-"), small), "release": release_table(study),
        "published": table(study, listed("p-"), language + probes) + "\n\n" + published_table(study), "runs": runs_table(study),
    }
    for name, draw, caption in figures.FIGURES:
        parts[f"figure_{name}"] = f"![{caption}](figures/{name}.svg)\n\n{caption}" if name in drawn else ""
    text = (HERE / "text.md").read_text()
    for name, value in parts.items():
        text = text.replace("{" + name + "}", value)
    while "\n\n\n" in text:
        text = text.replace("\n\n\n", "\n\n")
    return text


def main():
    args = argparse.ArgumentParser(description=__doc__)
    args.add_argument("--results", default=HERE / "results", type=Path)
    args.add_argument("--out", default=HERE, type=Path)
    args.add_argument("--check", action="store_true")
    o = args.parse_args()
    study = Study(o.results)
    drawn = {name: image for name, draw, _ in figures.FIGURES if (image := draw(study))}
    files = {f"figures/{name}.svg": image for name, image in drawn.items()}
    files["README.md"] = fill(study, drawn)
    stale = {str(p.relative_to(o.out)) for p in (o.out / "figures").glob("*.svg")} - set(files)
    if o.check:
        differ = sorted(f for f, text in files.items() if not (o.out / f).exists() or (o.out / f).read_text() != text)
        differ += sorted(stale)
        if differ:
            print(f"report.py: not what the results give: {', '.join(differ)}; run study/report.py", file=sys.stderr)
        return 1 if differ else 0
    for f in stale:
        (o.out / f).unlink()
    for f, text in files.items():
        (o.out / f).parent.mkdir(parents=True, exist_ok=True)
        (o.out / f).write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
