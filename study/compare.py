"""compare.py -- the results as the report asks for them: metrics of runs, means over seeds, paired comparisons."""
import json
import math
import re
from pathlib import Path

import measure
import stats

KEYS = [1, 2, 4, 8, 16]
DEPTHS = 5


class Metric:
    """A number of a run. pairs(run) gives what is compared document by document, more being better, and weights.
    digits: decimals in tables; percent: shown times 100."""

    def __init__(self, label, task, name, field, part=None, lower=False, digits=3, percent=False, sample=None):
        self.label, self.task, self.name, self.field, self.part = label, task, name, field, part
        self.lower, self.digits, self.percent, self.sample = lower, digits, percent, sample or task

    def value(self, run):
        """(value, standard error of the evaluation or None), or None: not evaluated."""
        if self.task == "curve":
            val = run.data["curve"]["val"]
            return (val[-1][2], None) if val else None
        r = run.data.get("results", {}).get(self.task, {})
        return (r[self.name], r.get(self.name + "_stderr")) if r.get(self.name) is not None else None

    def pairs(self, run):
        s = run.data.get("samples", {}).get(self.sample, {})
        if self.field not in s:
            return None
        x = measure.unpack(s[self.field])
        return (self.part(x) if self.part else x), s.get("tokens")

    def show(self, x):
        return f"{100 * x if self.percent else x:.{self.digits}f}"


def keys_part(k):
    """multikey's samples come by number of keys; each asks for every key."""
    def part(x):
        contexts = len(x) // sum(KEYS)
        begin = contexts * sum(KEYS[:k])
        return x[begin:begin + contexts * KEYS[k]]
    return part


VAL = Metric("validation loss", "curve", "val", "", lower=True, digits=4)
WIKI = Metric("WikiText, token", "wikitext", "token_perplexity", "ll", lower=True, digits=2)
WIKI_WORD = Metric("WikiText, word", "wikitext", "word_perplexity", "ll", lower=True, digits=2)
LAMBADA = Metric("LAMBADA ppl", "lambada_openai", "perplexity", "ll", lower=True, digits=1)
LAMBADA_ACC = Metric("LAMBADA", "lambada_openai", "acc", "acc", percent=True, digits=2)
SIX = [Metric("ARC-e", "arc_easy", "acc", "acc", percent=True, digits=2),
       Metric("ARC-c", "arc_challenge", "acc_norm", "acc_norm", percent=True, digits=2),
       Metric("HellaSwag", "hellaswag", "acc_norm", "acc_norm", percent=True, digits=2),
       Metric("PIQA", "piqa", "acc", "acc", percent=True, digits=2),
       Metric("WinoGrande", "winogrande", "acc", "acc", percent=True, digits=2), LAMBADA_ACC]
OTHER = [Metric("BoolQ", "boolq", "acc", "acc", percent=True, digits=2),
         Metric("SciQ", "sciq", "acc", "acc", percent=True, digits=2),
         Metric("OpenBookQA", "openbookqa", "acc", "acc", percent=True, digits=2)]
EXTRACTION = [Metric(label, task, "contains", "score", percent=True, digits=1)
              for label, task in (("FDA", "fda"), ("SWDE", "swde"), ("SQuAD", "squad_rebuilt"))]
FAR = Metric("far", "passkey", "far", "score", part=lambda x: x[::DEPTHS])
PASSKEY = Metric("pass key, mean", "passkey", "acc", "score")
DEPTH = [Metric(name, "passkey", metric, "score", part=lambda x, i=i: x[i::DEPTHS]) for i, (name, metric) in enumerate(
    (("0.1 (far)", "far"), ("0.3", "depth_0.3"), ("0.5", "depth_0.5"), ("0.7", "depth_0.7"), ("0.9", "depth_0.9")))]
MULTIKEY = [Metric(f"{k} key" + "s" * (k > 1), "multikey", f"keys_{k}", "score", part=keys_part(i)) for i, k in enumerate(KEYS)]
LENGTHS = [1024, 2048, 4096, 8192, 16384, 32768]
NIAH = {label: [Metric(f"{n // 1024}k", task, str(n), "score", digits=2, sample=f"{task}@{n}") for n in LENGTHS[:count]]
        for label, task, count in (("S-NIAH-1", "niah_single_1", 6), ("S-NIAH-2", "niah_single_2", 6),
                                   ("S-NIAH-3", "niah_single_3", 6), ("MK1", "niah_multikey_1", 6),
                                   ("MV", "niah_multivalue", 3), ("MQ", "niah_multiquery", 3))}


class Run:
    def __init__(self, path):
        self.data = json.loads(path.read_text())
        self.name = self.data["run"]
        self.seed = self.data.get("settings", {}).get("train", {}).get("seed")


class Study:
    def __init__(self, folder):
        self.runs = {r.name: r for r in map(Run, sorted(Path(folder).glob("*.json")))}

    def family(self, name):
        """The runs of an experiment: NAME itself, or NAME-s1, NAME-s2, ... by seed."""
        found = [r for n, r in self.runs.items() if n == name or re.fullmatch(re.escape(name) + r"-s\d+", n)]
        return sorted(found, key=lambda r: (r.seed, r.name))

    def mean(self, name, metric):
        """(mean over seeds, standard error, seeds) or None. One seed: the evaluation's standard error."""
        values = [v for v in map(metric.value, self.family(name)) if v]
        if not values:
            return None
        x = [v[0] for v in values]
        return stats.mean(x), stats.error(x) if len(x) > 1 else values[0][1], len(x)


class Comparison:
    """new against old by one metric, or by several together: pairs of all of them, pooled. gain > 0: new is better."""

    def __init__(self, study, old, new, *metrics):
        a, b = ({r.seed: r for r in study.family(n)} for n in (old, new))
        seeds = sorted(set(a) & set(b))
        self.ok = bool(seeds) and all(m.value(r[s]) for m in metrics for s in seeds for r in (a, b))
        self.seeds, self.test = len(seeds), None
        if not self.ok:
            return
        sign = lambda m: -1 if m.lower else 1
        gain = lambda m, s: sign(m) * (m.value(b[s])[0] - m.value(a[s])[0])
        self.by_seed = stats.Paired([stats.mean([gain(m, s) for m in metrics]) for s in seeds])
        self.agree = len({stats.mean([gain(m, s) for m in metrics]) > 0 for s in seeds}) == 1
        differences, weights = [], []
        for m in metrics:
            both = [(m.pairs(a[s]), m.pairs(b[s])) for s in seeds]
            if any(x is None or y is None for x, y in both):
                return
            count = min(len(p[0]) for pair in both for p in pair)
            differences += [stats.mean([y[0][i] - x[0][i] for x, y in both]) for i in range(count)]
            weights += both[0][0][1] or [1] * count
        self.test = stats.Paired(differences, weights)

    def gain(self):
        return self.test.mean if self.test else self.by_seed.mean

    def p(self):
        return self.test.p if self.test else self.by_seed.p

    def verdict(self):
        """Whether new is better, as far as the pairs can tell."""
        if not self.ok:
            return "not yet run"
        if self.p() >= 0.05 or not self.agree:
            return "not decided"
        return "holds" if self.gain() > 0 else "does not hold"

    def words(self, unit="samples"):
        """How it was tested."""
        if not self.ok:
            return ""
        seeds = "1 seed" if self.seeds == 1 else f"{self.seeds} seeds" + ("" if self.agree else ", of different sign")
        if not self.test:
            return f"{seeds}, p {show_p(self.by_seed.p)} over seeds" if self.seeds > 1 else f"{seeds}, no test"
        return f"paired over {self.test.n:,} {unit}, p {show_p(self.test.p)}; {seeds}"


def show_p(p):
    return "< 0.001" if p < 0.001 else f"{p:.3f}"


def change(c):
    """By how much the perplexity per weight falls, with its 95 % interval, as fractions."""
    e = c.test.half_width()
    return tuple(1 - math.exp(-x) for x in (c.test.mean, c.test.mean - e, c.test.mean + e))
