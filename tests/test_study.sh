#!/bin/bash
# test_study.sh -- the study: its report is what its results give, and one small entry goes all the way on the CPU,
# from text over training, a stop in the middle, evaluation and measurements to a report.
. "${0%/*}/common.sh"
command -v python3 >/dev/null || { echo "SKIP the study: there is no python3 here" && exit 77; }
study=$(cd "${0%/*}/../study" && pwd) || exit 1
hola=$(realpath "$hola")
export PYTHONDONTWRITEBYTECODE=1

check "study/README.md is what the results give" python3 "$study/report.py" --check

# ---- one entry ----

python3 - "$dir" <<'PY' || exit 1
import json, os, random, sys
d, r = sys.argv[1], random.Random(1)
words = "the old river stone went over a hill and found small bird that sang of rain".split()
text = lambda n: " ".join(r.choice(words) for _ in range(n))
os.makedirs(d + "/eval/wikitext")
open(d + "/text.jsonl", "w").writelines(json.dumps({"text": text(200)}) + "\n" for _ in range(150))
open(d + "/eval/wikitext/wiki.test.raw", "w").writelines(f" \n = Page {i} = \n \n {text(100)} . \n" for i in range(4))
PY
ok "$hola" prepare -o "$dir/tiny" --tokenizer byte --val 0.05 "$dir/text.jsonl"
run() { HOLA=$hola DATA=$dir OUT=$dir/results WORK=$dir/scratch "$study/run.sh" "$@" >"$dir/out" 2>"$dir/err"; }
in_training() { # RUN: waits for its first step, without a sleep, because all its steps take less than a second
    local end=$((SECONDS + 60))
    until [ -s "$dir/scratch/$1/train/metrics.jsonl" ] || [ "$SECONDS" -gt "$end" ]; do :; done
}
run tiny-gdn-s1 tiny-hola-s1 &
in_training tiny-gdn-s1
pkill -TERM -P "$(pgrep -P $! -f run.py || echo $!)" 2>/dev/null # hola itself: it saves a checkpoint and ends
wait
check "stopped in training" [ -e "$dir/scratch/tiny-gdn-s1/train/latest/training.json" -a ! -e "$dir/results/tiny-gdn-s1.json" ]
run tiny-gdn-s1 tiny-hola-s1 || bad "run.sh: $(cat "$dir/err")"
check "two results" [ "$(ls "$dir/results")" = "$(printf 'tiny-gdn-s1.json\ntiny-hola-s1.json')" ]
run tiny-gdn-s1
check "what is done is left alone" grep -q '^tiny-gdn-s1: done already$' "$dir/out"
# a list with a run that fails, and a time that is too short for any
run --for 3600 nonsense tiny-variant-s1 && bad "--for: a failure"
check "--for: a failure is named" grep -q '^run.sh: nonsense: no such run' "$dir/err"
check "--for: ... and passed over" [ -e "$dir/results/tiny-variant-s1.json" ]
run --for 5 @tries || bad "--for: no time: $(cat "$dir/err")"
check "--for: nothing is begun in the last seconds" grep -q '^run.sh: x-gate-token: the time is over' "$dir/out"
run --for x tiny-gdn-s1 && bad "--for: no number"
run @nonsense && bad "a list that is not in the table"
check "it is named" grep -q '^run.sh: @nonsense: no such list; there are @tries' "$dir/err"
# killed in training: hola ends as well, and the same command goes on
rm -r "$dir/results/tiny-variant-s1.json" "$dir/scratch/tiny-variant-s1"
run tiny-variant-s1 &
in_training tiny-variant-s1
kill -KILL "$(pgrep -P $! -f run.py || echo $!)" 2>/dev/null
wait
for _ in $(seq 300); do pgrep -f "$dir/scratch/tiny-variant-s1" >/dev/null || break; sleep 0.1; done
pgrep -f "$dir/scratch/tiny-variant-s1" >/dev/null && bad "hola goes on without run.py"
run tiny-variant-s1 || bad "run.sh after a kill: $(cat "$dir/err")"
python3 - "$dir/results/tiny-variant-s1.json" <<'PY' || bad "the variant's result, see above"
import json, sys
r = json.load(open(sys.argv[1]))
assert r["config"]["cache_gate_token"] and r["config"]["cache_redundancy"] == 0.5 and r["parameters"] == 32080 + 2 * 2 * 32
assert [v[0] for v in r["curve"]["val"]] == [5, 10, 15, 20] and r["measures"]["memory"][0]["heads"]
PY
# a memory for a finished model: all tensors are trained, or the memory's alone
run tiny-added-s1 tiny-alone-s1 || bad "a memory added: $(cat "$dir/err")"
python3 - "$dir" <<'PY' || bad "a memory added, see above"
import json, sys
read = lambda n: json.load(open(f"{sys.argv[1]}/results/{n}.json"))
old, both = read("tiny-gdn-s1"), [read("tiny-added-s1"), read("tiny-alone-s1")]
last, first = old["curve"]["train"][-1][1], [r["curve"]["train"][0][1] for r in both]
assert all(abs(x - last) < 0.3 for x in first), (last, first)  # not from a random start, whose loss is 5.5
assert all(r["parameters"] == 32080 and r["measures"]["memory"] for r in both)
tensors = lambda n: open(f"{sys.argv[1]}/scratch/{n}/train/latest/model.safetensors", "rb").read()
def named(n):
    raw = tensors(n)
    size = int.from_bytes(raw[:8], "little")
    head = json.loads(raw[8:8 + size])
    return {k: raw[8 + size + v["data_offsets"][0]:8 + size + v["data_offsets"][1]] for k, v in head.items() if k != "__metadata__"}
start, added, alone = map(named, ("tiny-gdn-s1", "tiny-added-s1", "tiny-alone-s1"))
assert all(alone[k] == v for k, v in start.items()) and any(added[k] != v for k, v in start.items())
PY
# what the runs change in the config is what hola takes, and all lists name runs
python3 - "$study/runs.json" "$dir" <<'PY' || bad "runs.json, see above"
import json, os, sys
table = json.load(open(sys.argv[1]))
os.mkdir(sys.argv[2] + "/configs")
for name, run in table["runs"].items():
    if "config" in run:
        config = {**table["bases"]["tiny"]["shape"], "model_type": run["type"], **run["config"]}
        json.dump(config, open(f"{sys.argv[2]}/configs/{name}.json", "w"))
missing = [n for names in table["lists"].values() for n in names if n not in table["runs"]]
assert not missing, missing
assert "d-layer-set" in table["lists"]["ablations"]
PY
for f in "$dir"/configs/*.json; do
    "$hola" init -o "${f%.json}" --config "$f" >"$dir/out" 2>&1 || bad "$f: $(cat "$dir/out")"
done
check "one set per layer" grep -q '"cache_layer_set": true' "$dir/configs/d-layer-set/config.json"
run nonsense && bad "a run that is not in the table"
check "it is named" grep -q '^run.sh: nonsense: no such run' "$dir/err"
run && bad "no name"

python3 - "$dir/results/tiny-hola-s1.json" "$study" <<'PY' || bad "the result, see above"
import json, math, sys
sys.path.insert(0, sys.argv[2])
import measure, stats
r = json.load(open(sys.argv[1]))
assert r["settings"]["type"] == "hola" and r["config"]["max_position_embeddings"] == 256 and r["parameters"] == 32080
assert [v[0] for v in r["curve"]["val"]] == [5, 10, 15, 20] and len(r["curve"]["train"]) == 20
assert len(r["model_sha256"]) == 64 and set(r["data"]["sha256"]) == {"train_000000.bin", "val_000000.bin"}
w = r["samples"]["wikitext"]
assert abs(math.exp(-sum(w["ll"]) / sum(w["tokens"])) / r["results"]["wikitext"]["token_perplexity"] - 1) < 1e-3
assert len(measure.unpack(r["samples"]["passkey@512"]["score"])) == r["results"]["passkey"]["n"] == 10
p = r["published"]["int8"]
assert p["bytes"] < 60000 and p["wikitext"]["n"] == 4 and p["greedy"][0][0] == "the old"
m = r["measures"]
assert m["documents"] == 3 and len(m["short"]["by_kind"]) == 5 and [len(x) for x in m["weights"]["gate"]] == [2, 2] and len(m["memory"][0]["heads"]) == 4
for doc, kinds in zip(m["loss"]["by_position"], m["loss"]["by_kind"]):
    assert sum(n for _, n in doc) == 511 == sum(n for row in kinds for _, n in row)
    assert abs(sum(s for s, _ in doc) - sum(s for row in kinds for s, _ in row)) < 0.1
assert measure.unpack(measure.pack([0, 1, 0.2, 1])) == [0, 1, 0.2, 1]
assert measure.kinds([5, 6, 5, 6, 6, 7]) == [4, 3, 0, 3, 4]
# Student's t against tables, and a ratio of sums
assert abs(stats.p_of_t(2.228, 10) - 0.05) < 1e-4 and abs(stats.p_of_t(12.706, 1) - 0.05) < 1e-4
assert stats.Paired([1, 1, 1, -1]).p > 0.05 > stats.Paired([1, 1.1, 0.9, 1.05]).p
assert abs(stats.Paired([2, 4], [1, 2]).mean - 2) < 1e-12 and stats.Paired([2, 4], [1, 2]).error == 0
PY

# ---- the report ----

# the same two as runs of the study's own names, so that claims, tables and figures have something to say
mkdir "$dir/claims" "$dir/report"
for n in gdn hola; do sed "s/\"tiny-$n-s1\"/\"b-$n-s1\"/" "$dir/results/tiny-$n-s1.json" >"$dir/claims/b-$n-s1.json"; done
report() { python3 "$study/report.py" --results "$dir/claims" --out "$dir/report" "$@" 2>"$dir/err"; }
report || bad "report.py: $(cat "$dir/err")"
check "perplexity falls by 15 %: tested" grep -q '46M | 71.0 → 59.5 | token .* | paired over 4 articles, p .*; 1 seed | ' "$dir/report/README.md"
check "counted" grep -q '72 more .* | counted | holds |' "$dir/report/README.md"
check "claims without runs say so" grep -q 'below Transformer++.* | not yet run |' "$dir/report/README.md"
check "forms of a published model" grep -q 'b-hola-s1.json), int8 | 0.0 | ' "$dir/report/README.md"
check "no place is left empty" [ "$(grep -c '{[a-z_]*}' "$dir/report/README.md")" -eq 0 ]
check "figures" [ "$(ls "$dir/report/figures" | tr '\n' ' ')" = "depths.svg fade.svg gates.svg position.svg " ]
for f in "$dir"/report/figures/*.svg; do
    check "$f is XML" python3 -c 'import sys, xml.dom.minidom as m; m.parse(sys.argv[1])' "$f"
done
check "the same again" report --check
sed -i 's/"token_perplexity": [0-9]/&1/' "$dir/claims/b-hola-s1.json"
report --check && bad "another number in a result, and the report still passes"
check "it names the page" grep -q 'README.md' "$dir/err"

finish
