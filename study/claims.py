"""claims.py -- what the paper claims, its numbers, and what this study's runs say about each claim."""
import compare as cmp
from compare import Comparison


class Claim:
    def __init__(self, section, text, paper, check):
        self.section, self.text, self.paper, self.check = section, text, paper, check


CANNOT = "cannot be tested here"


def pair(study, old, new, m):
    """"old -> new" of one metric."""
    a, b = study.mean(old, m), study.mean(new, m)
    return f"{m.show(a[0])} -> {m.show(b[0])}" if a and b else ""


def better(old, new, *metrics, unit="samples", labels=True):
    """new beats old in each of these; the verdict is that of all of them together."""
    def check(study):
        c = Comparison(study, old, new, *metrics)
        ours = "; ".join(filter(None, ((f"{m.label} " if labels else "") + pair(study, old, new, m) for m in metrics))) \
            if c.ok else ""
        return ours, c.words(unit), c.verdict()
    return check


def perplexity_falls(old, new, low=0.15):
    """WikiText's perplexity falls by 15 % or more."""
    def check(study):
        c = Comparison(study, old, new, cmp.WIKI)
        if not c.ok or not c.test:
            return "", "", "not yet run"
        word = study.mean(new, cmp.WIKI_WORD)[0] / study.mean(old, cmp.WIKI_WORD)[0] - 1
        token, least, most = cmp.change(c)
        ours = (f"token {pair(study, old, new, cmp.WIKI)} ({-100 * token:+.1f} %, 95 % interval {-100 * least:+.1f} to "
                f"{-100 * most:+.1f}); word {pair(study, old, new, cmp.WIKI_WORD)} ({100 * word:+.1f} %)")
        verdict = c.verdict()
        if verdict == "holds" and most < low and -word < low:
            verdict = "holds in sign, not in size"
        if verdict == "not decided" and most < low:
            verdict = "does not hold"
        return ours, c.words("articles"), verdict
    return check


def below_all(new, others):
    """The lowest WikiText perplexity of all that were run."""
    def check(study):
        found = [(o, Comparison(study, o, new, cmp.WIKI)) for o in others]
        run = [(o, c) for o, c in found if c.ok]
        if not run:
            return "", "", "not yet run"
        ours = "; ".join(f"{o} {pair(study, o, new, cmp.WIKI)}" for o, c in run)
        if len(run) < len(found):
            return ours, f"{len(run)} of {len(found)} run", "not yet run"
        verdicts = {c.verdict() for _, c in run}
        verdict = "holds" if verdicts == {"holds"} else "does not hold" if "does not hold" in verdicts else "not decided"
        return ours, "each " + run[0][1].words("articles"), verdict
    return check


def tie(old, new, metrics, within):
    """The mean of these metrics differs by less than this."""
    def check(study):
        a, b = ([study.mean(n, m) for m in metrics] for n in (old, new))
        c = Comparison(study, old, new, *metrics)
        if not c.ok:
            return "", "", "not yet run"
        x, y = (100 * sum(v[0] for v in r) / len(r) for r in (a, b))
        verdict = "holds" if abs(y - x) < within else "does not hold" if c.p() < 0.05 else "not decided"
        return f"six-task mean {x:.2f} -> {y:.2f}", c.words(), verdict
    return check


def transformer_collapses(study):
    long = [m for m in cmp.NIAH["S-NIAH-1"] if int(m.name) > 4096]
    values = [study.mean("c-transformer", m) for m in long]
    if not all(values):
        return "", "", "not yet run"
    ours = ", ".join(f"{m.label} {v[0]:.2f}" for m, v in zip(long, values))
    return ours, "1 seed, 50 samples each", "holds" if max(v[0] for v in values) < 0.05 else "does not hold"


def parameters(study):
    a, b = study.family("b-gdn"), study.family("b-hola")
    if not a or not b:
        return "", "", "not yet run"
    extra = b[0].data["parameters"] - a[0].data["parameters"]
    c = b[0].data["config"]
    want = c["num_hidden_layers"] * (2 * c["head_dim"] + 2 * c["num_v_heads"])
    share = extra / a[0].data["parameters"]
    return f"{extra:,} more ({100 * share:.4f} %)", "counted", "holds" if extra == want else "does not hold"


def learned_tau(study):
    runs = study.family("d-l2-learned")
    if not runs:
        return "", "", "not yet run"
    tau = [x for layer in runs[0].data["measures"]["weights"]["tau"] for x in layer]
    mean = sum(tau) / len(tau)
    return f"mean {mean:.2f}, {min(tau):.2f} to {max(tau):.2f}", "1 seed", "holds" if 5 < mean < 8 else "does not hold"


def nothing(study):
    return "", "", CANNOT


G, H, R = "b-gdn", "b-hola", "b-recency"
LONG = [m for m in cmp.NIAH["S-NIAH-1"] if int(m.name) >= 2048]
HARDER = [m for k in ("S-NIAH-2", "S-NIAH-3") for m in cmp.NIAH[k] if 2048 <= int(m.name) <= 8192]
MULTI = [m for k in ("MK1", "MV", "MQ") for m in cmp.NIAH[k] if 2048 <= int(m.name) <= 8192]
OTHERS = ["c-deltanet", "c-gla", "c-gsa", "c-kda", G]

CLAIMS = [
    Claim("4.2, Tab. 1", "WikiText perplexity falls by 16.1 % at 340M", "27.32 -> 22.92", nothing),
    Claim("4.3, Tab. 2", "... and by 15 to 16 % at every scale: 46M", "71.0 -> 59.5", perplexity_falls(G, H)),
    Claim("4.3, Tab. 2", "... by the paper's own rate, 46M", "71.0 -> 59.5", perplexity_falls("a-gdn", "a-hola")),
    Claim("4.3, Tab. 2", "... 170M (ours: 0.6B of its 6.2B tokens)", "35.98 -> 30.51", perplexity_falls("e-gdn", "e-hola")),
    Claim("4.2, Tab. 1", "perplexity below every linear model's", "22.92; 26.18 (KDA) to 29.04", below_all(H, OTHERS)),
    Claim("4.2, Tab. 1", "perplexity below Transformer++'s", "26.88 -> 22.92", below_all(H, ["c-transformer"])),
    Claim("4.2, Tab. 1", "LAMBADA perplexity falls", "30.95 -> 30.26", better(G, H, cmp.LAMBADA, unit="passages", labels=False)),
    Claim("4.2, Tab. 1", "commonsense is a tie (six-task mean within 0.7)", "42.54 -> 42.85", tie(G, H, cmp.SIX, 0.7)),
    Claim("4.2, Tab. 1", "FDA, SWDE and SQuAD rise (ours: rebuilt rows)", "11.7 -> 20.1; 29.0 -> 35.9; 32.5 -> 33.8",
          better(G, H, *cmp.EXTRACTION)),
    Claim("4.4, Fig. 1b", "S-NIAH-1 from 2k to 32k: HOLA above GDN", "2k 1.00 -> 1.00; 8k .83 -> .98; 32k .14 -> .58",
          better(G, H, *LONG)),
    Claim("4.4, Fig. 1b", "... and above HOLA + recency", "2k 1.00 -> 1.00; 8k .74 -> .98; 32k .24 -> .58", better(R, H, *LONG)),
    Claim("4.4, Tab. 3", "S-NIAH-2 and -3, 2k to 8k: HOLA above GDN", "S-NIAH-2: .38 -> 1.00, .52 -> .89, .09 -> .35",
          better(G, H, *HARDER)),
    Claim("4.4, Tab. 3", "most multi-needle cells: HOLA above GDN", "2k: MK1 .17 -> .25, MV .17 -> .28, MQ .24 -> .18",
          better(G, H, *MULTI)),
    Claim("4.4, Tab. 3", "Transformer++ falls to 0 past its training length", "0.00 from 4k on", transformer_collapses),
    Claim("4.5", "beta norm(e) beats recency in perplexity", "25.04 -> 22.92", better(R, H, cmp.WIKI, unit="articles", labels=False)),
    Claim("4.5", "recency hardly helps the far needle", "S-NIAH-1 at 32k: GDN .14, recency .24, HOLA .58",
          better(R, H, cmp.FAR, labels=False)),
    Claim("4.5, Tab. 4", "beta norm(e) above norm(e): far pass key, 1 to 4 keys", "far .22 -> .67; 1 key .71 -> .97",
          better("d-e", "d-hola", cmp.FAR, *cmp.MULTIKEY[:3])),
    Claim("4.5, Tab. 4", "... above beta norm(v)", "far .42 -> .67; 1 key .97 -> .97; 2 keys .72 -> .74",
          better("d-betav", "d-hola", cmp.FAR, *cmp.MULTIKEY[:3])),
    Claim("4.5, Tab. 4", "... above cumulative attention (H2O)", "far .43 -> .67; 1 key .97 -> .97; 2 keys .69 -> .74",
          better("d-h2o", "d-hola", cmp.FAR, *cmp.MULTIKEY[:3])),
    Claim("4.5, Tab. 4", "... and lowest perplexity of the four", "70.10; 70.50 to 71.45",
          below_all("d-hola", ["d-e", "d-betav", "d-h2o"])),
    Claim("4.5, Tab. 5", "RMSNorm read against unit-L2: perplexity falls by 15 %", "70.10 -> 59.5",
          perplexity_falls("d-l2-learned", "d-hola")),
    Claim("4.5, Tab. 5", "... and multi-key recall rises", "4 keys .56 -> .77; 8 .41 -> .67; 16 .31 -> .41",
          better("d-l2-learned", "d-hola", *cmp.MULTIKEY[2:])),
    Claim("3.4", "a learned tau of the unit-L2 read ends near 6.6", "6.6", learned_tau),
    Claim("4.5, Tab. 5", "1 to 16 keys at 46M: HOLA above GDN", "1 key .78 -> .97; 4 .41 -> .77; 8 .35 -> .67; 16 .31 -> .41",
          better(G, H, *cmp.MULTIKEY)),
    Claim("4.5, Tab. 5", "far pass key (depth 0.1 of 4k) at 46M: HOLA above GDN", ".55 -> .75", better(G, H, cmp.FAR, labels=False)),
    Claim("4.5, Tab. 5", "pass key, mean of the depths: HOLA above GDN", ".60 -> .69", better(G, H, cmp.PASSKEY, labels=False)),
    Claim("3.5", "almost no parameters: L (2 d + 2 H)", "12,480 at 340M", parameters),
    Claim("3.5", "peak memory of decoding 5 % above GDN's", "0.72 -> 0.75 GB", nothing),
]
