"""figures.py -- the report's figures; each function gives an SVG, or None where its runs are missing."""
import math

import compare as cmp
import stats
import svg

SERIES = [("GDN", "b-gdn", 0), ("HOLA", "b-hola", 1), ("HOLA + recency", "b-recency", 2)]
MORE = [("Transformer++", "c-transformer", 3), ("KDA", "c-kda", 4)]
GAP_AT = [65e6, 131e6, 250e6, 500e6]


def gaps(study, old="b-gdn", new="b-hola"):
    """[(tokens, mean of old's validation loss minus new's, standard error over seeds)] along the training. Where old was
    never trained to its end, what is known of a run that was cut off counts."""
    old = old if study.family(old) else f"partial-{old}"
    a, b = ({r.seed: {t: v for _, t, v in r.data["curve"]["val"]} for r in study.family(n)} for n in (old, new))
    seeds = sorted(set(a) & set(b))
    if not seeds:
        return []
    tokens = sorted(set.intersection(*(set(a[s]) & set(b[s]) for s in seeds)))
    return [(t, stats.mean(d), stats.error(d)) for t in tokens for d in [[a[s][t] - b[s][t] for s in seeds]]]


def fade(study):
    series = [("500M tokens, peak rate 6e-3", 1, False, gaps(study))]
    series += [(f"131M tokens, {lr}", colour, True, gaps(study, f"lr-gdn-{lr}", f"lr-hola-{lr}"))
               for lr, colour in (("1.5e-3", 2), ("3e-3", 5), ("6e-3", 3))]
    series = [s for s in series if len(s[3]) > 1]
    return series and svg.chart("By how much HOLA's validation loss is below GDN's", "training tokens", "nats", series, rule=0)


def rates(study):
    series = []
    for label, name, colour in (("GDN", "gdn", 0), ("HOLA", "hola", 1), ("Transformer++", "transformer", 3)):
        found = [(r.data["settings"]["train"]["lr"], r.data["curve"]["val"][-1][2])
                 for n, r in study.runs.items() if n.startswith(f"lr-{name}-")]
        if found:
            series.append((label, colour, False, found))
    return series and svg.chart("Validation loss after 131M tokens by peak rate", "peak learning rate", "nats", series, log_x=True)


def by_metric(study, title, x_label, metrics, xs, paper, log_x=True):
    series = []
    for label, name, colour in SERIES + MORE:
        points = [(x, v[0], v[1]) for x, m in zip(xs, metrics) for v in [study.mean(name, m)] if v]
        if points:
            series.append((label, colour, False, points))
    if not series:
        return None
    series += [(f"{label}, paper", colour, True, list(zip(xs, values))) for label, colour, values in paper if values]
    return svg.chart(title, x_label, "share right", series, log_x=log_x, zero=True, x_ticks=xs)


def keys(study):
    return by_metric(study, "Pass keys among several, 512 tokens", "keys", cmp.MULTIKEY, cmp.KEYS, [])


def niah(study):
    return by_metric(study, "S-NIAH-1 by length (trained at 4k)", "tokens", cmp.NIAH["S-NIAH-1"], cmp.LENGTHS, [])


def depths(study):
    return by_metric(study, "Pass key in 4096 tokens by depth", "depth", cmp.DEPTH, [0.1, 0.3, 0.5, 0.7, 0.9], [], log_x=False)


def position_losses(study, name):
    """[[loss per bin] per document], averaged over seeds, and the bins' ends."""
    runs = [r.data["measures"]["loss"] for r in study.family(name) if r.data.get("measures", {}).get("documents")]
    if not runs:
        return None
    docs = [[stats.mean([r["by_position"][d][i][0] / r["by_position"][d][i][1] for r in runs])
             for i in range(len(runs[0]["by_position"][d]))] for d in range(len(runs[0]["by_position"]))]
    return docs, runs[0]["edges"]


def position(study):
    series = []
    for label, name, colour in SERIES + MORE:
        found = position_losses(study, name)
        if found:
            docs, edges = found
            series.append((label, colour, False, [(e, stats.mean([d[i] for d in docs])) for i, e in enumerate(edges)]))
    return series and svg.chart("Loss by position in long documents (trained at 4k)", "position, up to", "nats per token", series,
                                log_x=True, x_ticks=series[0][3] and [p[0] for p in series[0][3]])


def gate_figure(study):
    series = []
    for label, name, colour in SERIES[1:]:
        runs = [r.data["measures"]["weights"]["gate"] for r in study.family(name) if r.data.get("measures", {}).get("weights")]
        if runs:
            series.append((label, colour, False, [(i, stats.mean([g for r in runs for g in r[i]])) for i in range(len(runs[0]))]))
    if not series:
        return None
    layers = [p[0] for p in series[0][3]]
    return svg.chart("Gate of the exact memory by layer, mean of heads", "layer", "sigmoid(gate)", series, zero=True,
                     x_ticks=layers, rule=1 / (1 + math.exp(4)))


FIGURES = [
    ("fade", fade, "HOLA's lead in validation loss while training. Every curve is one schedule; errors are over seeds."),
    ("rates", rates, "The sweep of the peak rate: one seed each."),
    ("keys", keys, "Recall of one of 1 to 16 pass keys in 512 tokens."),
    ("depths", depths, "Recall of one pass key in 4096 tokens by its depth."),
    ("niah", niah, "RULER's S-NIAH-1 out to eight times the training length."),
    ("position", position, "Loss by position in documents of the validation set with at least 32,768 tokens."),
    ("gates", gate_figure, "Where the memory is used: the line is the value that gates start from, sigmoid(-4) = 0.018."),
]
