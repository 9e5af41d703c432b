#!/bin/sh
# hola eval, the program: tasks from small files, JSON, samples, the page, going on after an interruption, and bad
# input. The model is random: what is checked is what does not depend on it.
set -u
. "${0%/*}/common.sh"
put() { mkdir -p "$dir/data/${1%/*}" && cat >"$dir/data/$1"; }

cat >"$dir/config.json" <<JSON
{"model_type": "hola", "hidden_size": 32, "num_hidden_layers": 2, "vocab_size": 258, "num_heads": 2, "head_dim": 16,
 "expand_v": 1, "intermediate_size": 64, "cache_window": 8, "cache_chunk": 32, "initializer_range": 0.2,
 "max_position_embeddings": 256}
JSON
"$hola" init -o "$dir/m" --config "$dir/config.json" -s 1 >/dev/null 2>&1 || exit 1
"$hola" init -o "$dir/m2" --config "$dir/config.json" -s 2 >/dev/null 2>&1 || exit 1

sed 's/|$//' <<'T' | put wikitext/wiki.test.raw
 |
 = First page = |
 |
 The cats ' tails , it 's 5 @.@ 2 @-@ year old . |
 = Second page = |
 |
 Some words ( in brackets ) here . |
T
put arc_easy/test.jsonl <<'T'
{"question": "Which?", "choices": ["one", "two", "three"], "gold": 1}
{"question": "What?", "choices": {"text": ["a", "b"], "label": ["1", "2"]}, "answerKey": "2"}
T
put boolq/validation.jsonl <<'T'
{"passage": "It is so.", "question": "is it so", "answer": true}
T
put fda/validation.jsonl <<'T'
{"text": "Name: x. Number:", "value": "K1", "key": "Number"}
T
put lambada/lambada_test.jsonl <<'T'
{"text": "a b c"}
T
ours() { "$hola" eval -m "$dir/m" --tokenizer byte --backend cpu --data "$dir/data" "$@"; }

ours --tasks wikitext,arc_easy,boolq,fda,lambada_openai --json --log-samples "$dir/samples" --html "$dir/page.html" >"$dir/json" || bad "it failed, see above"
command -v python3 >/dev/null || echo "SKIP the JSON, number by number: there is no python3 here"
command -v python3 >/dev/null && { python3 - "$dir" <<'PY' || bad "it failed, see above"
import hashlib, json, math, sys
d = sys.argv[1]
r = json.load(open(d + "/json"))
s = [json.loads(l) for l in open(d + "/samples")]
res = r["results"]
assert list(res) == ["wikitext", "arc_easy", "boolq", "fda", "lambada_openai"], list(res)
assert [x["n"] for x in res.values()] == [2, 2, 1, 1, 1]
wiki = [x for x in s if x["task"] == "wikitext"]
assert len(wiki) == 2 and all(x["is_greedy"] is None and x["choice"] == 0 for x in wiki)
L = sum(x["loglikelihood"] for x in wiki)
raw = open(d + "/data/wikitext/wiki.test.raw").read()
pages = [" = First page = \n \n The cats ' tails , it 's 5 @.@ 2 @-@ year old . ", " = Second page = \n \n Some words ( in brackets ) here . \n"]
import re
W, B = sum(len(re.split(r"\s+", p)) for p in pages), sum(len(p.encode()) for p in pages)
texts = [" = First page =\n\nThe cats'tails, it's 5.2-year old. ", " = Second page =\n\nSome words (in brackets) here.\n"]
assert [x["tokens"] for x in wiki] == [1 + len(t) for t in texts], [x["tokens"] for x in wiki]
w = res["wikitext"]
for got, want in ((w["word_perplexity"], math.exp(-L / W)), (w["byte_perplexity"], math.exp(-L / B)),
                  (w["bits_per_byte"], -L / B / math.log(2)), (w["token_perplexity"], math.exp(-L / w["tokens"]))):
    assert abs(got / want - 1) < 1e-9, (got, want)
arc = [x for x in s if x["task"] == "arc_easy"]
assert [(x["doc"], x["choice"], x["tokens"]) for x in arc] == [(0, 0, 4), (0, 1, 4), (0, 2, 6), (1, 0, 2), (1, 1, 2)]
pick = lambda doc, norm: max(range(len(doc)), key=lambda i: doc[i]["loglikelihood"] / ([3, 3, 5] if len(doc) == 3 else [1, 1])[i] ** norm)
for metric, norm in (("acc", 0), ("acc_norm", 1)):
    assert res["arc_easy"][metric] == ((pick(arc[:3], norm) == 1) + (pick(arc[3:], norm) == 1)) / 2
assert [(x["gold"], x["chars"]) for x in arc] == [(1, 3), (1, 3), (1, 5), (1, 1), (1, 1)]
assert all("gold" not in x and "score" not in x for x in wiki)
fda = [x for x in s if x["task"] == "fda"][0]
assert fda["target"] == "K1" and fda["score"] == fda["correct"] == ("k1" in fda["output"].lower()) == bool(res["fda"]["contains"])
assert "acc_norm" not in res["boolq"] and "perplexity_stderr" not in res["lambada_openai"]
c = r["configs"]["wikitext"]
assert c["bos"] == "double" and c["max_length"] == 256 and c["limit"] == 0 and c["split"] == "test" and c["version"] == 2
assert c["file_sha256"] == hashlib.sha256(raw.encode()).hexdigest()
assert r["model_sha256"] == hashlib.sha256(open(d + "/m/config.json", "rb").read() + open(d + "/m/model.safetensors", "rb").read()).hexdigest()
PY
}
check "the paper in the page" grep -q '27.32' "$dir/page.html"
check "and that its models are of another size" grep -q 'Of another size than the paper' "$dir/page.html"
check "nothing from elsewhere" [ "$(grep -c 'https\?://' "$dir/page.html")" -eq 0 ]
ours --tasks arc_easy >"$dir/table" || bad "it failed, see above"
check "a table" grep -q 'arc_easy *acc_norm  *2  0.4167 ' "$dir/table"
ours --tasks arc_easy --limit 1 --json | grep -q '"n": 1' || bad "--limit"

# one scoring after the other gives the numbers of hola score
printf 'Some text to score.' >"$dir/text"
ours --text "$dir/text" --bos never --json --log-samples "$dir/samples" >"$dir/out" || bad "it failed, see above"
"$hola" score -m "$dir/m" --tokenizer byte --backend cpu -f "$dir/text" --json >"$dir/score" || bad "it failed, see above"
nll=$(sed 's/.*"nll": \([0-9.]*\).*/\1/' "$dir/score") ll=$(sed 's/.*"loglikelihood": -\([0-9.]*\).*/\1/' "$dir/samples")
check "nll $nll, log-likelihood -$ll" awk "BEGIN { exit !($nll - $ll < 1e-3 && $ll - $nll < 1e-3 && $ll > 1) }"

# several models side by side, and the same answers in a file that is gone on with
"$hola" eval -m "$dir/m" -m "$dir/m2" --tokenizer byte --backend cpu --data "$dir/data" --tasks arc_easy,fda --out "$dir/kept" --json >"$dir/one" || bad "it failed, see above"
check "two models" [ "$(grep -o '"model_sha256"' "$dir/one" | wc -l)" -eq 3 ]
check "a file per model and task" [ "$(ls "$dir/kept" | wc -l)" -eq 4 ]
for f in "$dir/kept"/*; do # each cut in the middle of a line
    size=$(wc -c <"$f")
    head -c $((size - 20)) "$f" >"$dir/cut" && cp "$dir/cut" "$f"
done
"$hola" eval -m "$dir/m" -m "$dir/m2" --tokenizer byte --backend cpu --data "$dir/data" --tasks arc_easy,fda --out "$dir/kept" --json >"$dir/two" 2>"$dir/err" || bad "it failed, see above"
check "answers were there: $(cat "$dir/err")" grep -q '4 of 5 answers' "$dir/err"
for f in one two; do sed 's/"seconds": [0-9.e-]*//g' "$dir/$f" >"$dir/$f.same"; done
check "the same results after an interruption" cmp "$dir/one.same" "$dir/two.same"
kept() { ours --tasks "$1" --out "$dir/$2" --json 2>"$dir/err"; }
"$hola" eval -m "$dir/m" -m "$dir/m2" --tokenizer byte --backend cpu --data "$dir/data" --tasks arc_easy,fda --out "$dir/kept" --json >"$dir/two" 2>"$dir/err" || bad "it failed, see above"
check "all answers were there: $(cat "$dir/err")" [ "$(grep -c '5 of 5 answers\|1 of 1 answers' "$dir/err")" -eq 4 ]
sed 's/"seconds": [0-9.e-]*//g' "$dir/two" >"$dir/two.same"
check "the same results a third time" cmp "$dir/one.same" "$dir/two.same"
# what a file of answers says is what counts: likelihoods and greedy ones; an answer comes once
kept lambada_openai read >/dev/null || bad "it failed, see above"
sed -i 's/"ll": [^,]*, "greedy": false/"ll": -2.5, "greedy": true/' "$dir/read"/lambada*
kept lambada_openai read >"$dir/out" || bad "it failed, see above"
check "answers of the file: $(cat "$dir/out")" grep -q '"perplexity": 12.18249396[0-9]*, "acc": 1' "$dir/out"
tail -n 1 "$dir/read"/lambada* >"$dir/line" && cat "$dir/line" >>"$(echo "$dir/read"/lambada*)"
kept lambada_openai read >"$dir/out"
ended "an answer twice" $? 1 'line 3 is not an answer of this evaluation'

# requests of the harness, as texts and as ids
cat >"$dir/requests" <<'T'
{"type": "loglikelihood", "context": "ab", "continuation": " cd"}
{"type": "loglikelihood", "context_ids": [256, 97, 98], "continuation_ids": [32, 99, 100]}
{"type": "loglikelihood_rolling", "text": "abc"}
{"type": "generate_until", "context": "ab", "until": ["x"], "max_gen_toks": 5}
T
ours --requests "$dir/requests" >"$dir/answers" || bad "it failed, see above"
check "an answer each" [ "$(wc -l <"$dir/answers")" -eq 4 ]
check "texts and ids agree" [ "$(sed -n 1p "$dir/answers")" = "$(sed -n 2p "$dir/answers")" ]

# RULER: several lengths, samples to a file and back, NVIDIA's; and what was printed once more
ruler() { ours --tasks ruler_fwe,ruler_vt --limit 2 "$@"; }
ruler --length 3000,4096 --max-length 9000 --dump "$dir/prompts" --json --log-samples "$dir/s1" >"$dir/one" || bad "it failed, see above"
check "both lengths" grep -q '"ruler_fwe": {"n": 4, "3000": [^}]*"4096": ' "$dir/one"
check "samples say their length" [ "$(grep -c '"length": 4096, .*"score": ' "$dir/s1")" -eq 4 ]
check "eight samples" [ "$(wc -l <"$dir/prompts")" -eq 8 ]
ruler --prompts "$dir/prompts" --max-length 9000 --json --log-samples "$dir/s2" >"$dir/two" || bad "it failed, see above"
sed 's/"length": [0-9]*, //' "$dir/s1" | cut -d, -f1,4- >"$dir/s1.same" && cut -d, -f1,4- "$dir/s2" >"$dir/s2.same"
check "the same answers to prompts of a file" cmp "$dir/s1.same" "$dir/s2.same"
check "and the same figures" [ "$(grep -o '"results.*"configs"' "$dir/one")" = "$(grep -o '"results.*"configs"' "$dir/two")" ]
ruler --length 3000 --max-length 9000 --ruler nvidia --dump "$dir/theirs" >/dev/null || bad "it failed, see above"
check "NVIDIA's prompts are others" [ "$(head -n 1 "$dir/theirs")" != "$(head -n 1 "$dir/prompts")" ]
"$hola" eval --results "$dir/one" --results "$dir/json" --html "$dir/both.html" >"$dir/table" || bad "it failed, see above"
check "results of two runs" [ "$(grep -c 'ruler_fwe \|arc_easy ' "$dir/table")" -eq 4 ]
check "one model" grep -q '"models":\[{"label":"[^"]*"}\]' "$dir/both.html"
check "a curve" grep -q '"curves":\[{"task":"ruler_fwe","n":2,' "$dir/both.html"
cat >"$dir/theirs" <<'T'
{"model": "x", "model_sha256": "0", "dtype": "BF16", "parameters": 5000000,
 "results": {"niah_single_1": {"n": 9, "8192": 0.25, "8192_stderr": 0.125, "2048": 1.0, "4096": 0.5}},
 "configs": {"niah_single_1": {"version": 1, "profile": "harness-0.4.8", "bos": "never", "retrieval": "harness-v1",
  "max_length": 777, "precision": "bf16-harness", "limit": 9, "seed": 3, "seconds": 1, "split": null}}}
T
"$hola" eval --results "$dir/theirs" --html "$dir/both.html" >"$dir/table" || bad "it failed, see above"
check "points by length" grep -q '"points":\[\[2048.0,1.0,null\],\[4096.0,0.5,null\],\[8192.0,0.25,0.125\]\]' "$dir/both.html"
check "an error with its figure" grep -q '8192  *3  *0.2500 ± 0.1250' "$dir/table"
check "their settings" grep -q 'profile harness-0.4.8, bos never, retrieval harness-v1, max_length 777, log-likelihoods bf16' "$dir/table"
check "their size and weights in the page" grep -q '<span>5.0M</span><td><span>BF16</span><td><span>777</span>' "$dir/both.html"
check "their settings in the page" grep -q 'Profile harness-0.4.8, BOS never, retrieval prompts harness-v1, log-likelihoods in bf16-harness, seed of prompts 3, limit 9' "$dir/both.html"

# models side by side, with a test of their difference
two() { "$hola" eval -m "$dir/m" -m "$dir/m2" --tokenizer byte --backend cpu --data "$dir/data" "$@"; }
two --tasks arc_easy,wikitext --json >"$dir/json" || bad "it failed, see above"
check "a paired test" grep -q '"compared": {"arc_easy": {"acc": {"difference": [-0-9.]*, "p": [0-9.]*, "test": "mcnemar"}' "$dir/json"
check "two documents are too few" grep -q '"word_perplexity": {"difference": [-0-9.e]*, "p": null, "test": "none"}' "$dir/json"
check "chance" grep -q '"chance": {"acc": 0.41666666666666[0-9]*, "acc_norm"' "$dir/json"
two --tasks arc_easy >"$dir/table" || bad "it failed, see above"
check "a table of two: $(cat "$dir/table")" grep -q 'n  chance *A ± error *B ± error *B - A *p' "$dir/table"
check "one row a figure" [ "$(grep -c '^arc_easy' "$dir/table")" -eq 2 ]

# three models on terminals of several widths
one_of_three() { # NAME ACC WORDS
    echo "{\"model\": \"runs/$1\", \"model_sha256\": \"$1\", \"dtype\": \"F32\", \"parameters\": 46000000, \"results\": {
      \"arc_challenge\": {\"n\": 500, \"acc\": $2, \"acc_stderr\": 0.02, \"acc_norm\": 0.31, \"acc_norm_stderr\": 0.02},
      \"wikitext\": {\"n\": 62, \"word_perplexity\": $3, \"word_perplexity_stderr\": 1234.5, \"tokens\": 314905}},
     \"configs\": {\"arc_challenge\": {\"version\": 1, \"chance\": {\"acc\": 0.25, \"acc_norm\": 0.25}, \"limit\": 500},
      \"wikitext\": {\"version\": 2}}}"
}
echo "{\"models\": [$(one_of_three a 0.2512 20741.25), $(one_of_three b 0.4071 8.1e6), $(one_of_three c 0.2893 99.5)]}" >"$dir/three.json"
if command -v python3 >/dev/null; then
    python3 "${0%/*}/eval_terminal.py" "$hola" "$dir/three.json" || bad 'the table on a terminal, see above'
    checks=$((checks + 1))
else
    echo "SKIP the table on a terminal: there is no python3 here"
fi
for i in $(seq 27); do one_of_three "$i" 0.5 9 | tr -d '\n' && echo; done | paste -sd, | sed 's/.*/{"models": [&]}/' >"$dir/many.json"
refused 1 'more than 26 models' eval --results "$dir/many.json"
refused 1 "$dir/config.json" eval --results "$dir/three.json" --results "$dir/config.json"

# everything is checked before anything is computed: no answer is kept
late() { # late TEXT ARGS...
    text=$1
    shift
    refused 1 "$text" eval --tokenizer byte --backend cpu --data "$dir/data" --out "$dir/late" "$@"
    check "nothing was computed: $*" [ -z "$(ls "$dir/late" 2>/dev/null)" ]
}
late 'exceed max_length 256' -m "$dir/m" --tasks wikitext,ruler_fwe --length 3000
late 'allenai/winogrande' -m "$dir/m" --tasks wikitext,winogrande
late 'nowhere' -m "$dir/m" --tasks wikitext --html "$dir/nowhere/x.html"
late 'nowhere' -m "$dir/m" --tasks wikitext --log-samples "$dir/nowhere/x"
late 'none' -m "$dir/m" -m "$dir/none" --tasks wikitext
sed 's/"vocab_size": 258/"vocab_size": 200/' "$dir/config.json" >"$dir/small.json"
"$hola" init -o "$dir/small" --config "$dir/small.json" -s 1 >/dev/null 2>&1 || bad "init failed"
late 'more than the model' -m "$dir/m" -m "$dir/small" --tasks wikitext
late 'a continuation of' -m "$dir/m" --tasks wikitext,arc_easy --max-length 3
touch "$dir/plain"
refused 1 'plain' eval -m "$dir/m" --tokenizer byte --data "$dir/data" --tasks arc_easy --out "$dir/plain"
# a file that cannot be written costs that file, not the table
for option in --log-samples --html; do
    ours --tasks arc_easy $option /dev/full >"$dir/table" 2>"$dir/err"
    check "$option on a full disk" [ $? -eq 1 ]
    check "$option: the table is there" grep -q '^arc_easy *acc_norm' "$dir/table"
    check "$option: one line: $(cat "$dir/err")" [ "$(grep -c '^hola: /dev/full: cannot write: No space left' "$dir/err")" -eq 1 ]
done
# --length is of tasks with lengths alone
for length in 3000 3100; do
    ours --tasks arc_easy,ruler_fwe --length $length --limit 1 --max-length 9000 --out "$dir/lengths" >/dev/null 2>"$dir/err" || bad "it failed: $(cat "$dir/err")"
done
check "arc_easy once, ruler_fwe twice" [ "$(ls "$dir/lengths" | grep -c arc_easy) $(ls "$dir/lengths" | grep -c ruler_fwe)" = "1 2" ]

# hola score: pipes, one token; a text that is none
"$hola" score -m "$dir/m" --tokenizer byte --backend cpu -f - --json <"$dir/text" >"$dir/out" || bad "score -f -"
check "score -f -" cmp "$dir/out" "$dir/score"
mkfifo "$dir/pipe"
cat "$dir/text" >"$dir/pipe" &
"$hola" score -m "$dir/m" --tokenizer byte --backend cpu -f "$dir/pipe" --json >"$dir/out" || bad "score -f PIPE"
check "score of a pipe" cmp "$dir/out" "$dir/score"
echo '[65]' | "$hola" score -m "$dir/m" --backend cpu --ids - >"$dir/out" || bad "score of one token"
check "one token: $(cat "$dir/out")" grep -q 'ppl  *- (one token: there is nothing to predict)' "$dir/out"
refused 1 'standard input: empty file' score -m "$dir/m" --tokenizer byte -f - </dev/null
printf 'a\000b' >"$dir/binary"
refused 1 'a zero byte at 1: not a text' eval -m "$dir/m" --tokenizer byte --text "$dir/binary"

# bad input
refused 2 'unknown task' eval -m "$dir/m" --data "$dir/data" --tasks arc
refused 2 'tasks' eval -m "$dir/m" --data "$dir/data"
refused 2 'model' eval --tasks arc_easy
refused 2 'bos' eval -m "$dir/m" --bos twice --tasks arc_easy
refused 1 'allenai/winogrande' eval -m "$dir/m" --tokenizer byte --data "$dir/data" --tasks winogrande
refused 1 'data DIR is required' eval -m "$dir/m" --tokenizer byte --tasks winogrande
refused 1 'neither tokenizer.model' eval -m "$dir/m" --data "$dir/data" --tasks arc_easy
refused 2 'not a list of numbers' eval -m "$dir/m" --tokenizer byte --data "$dir/data" --tasks ruler_vt --length 12,x
refused 1 'exceed max_length 256' eval -m "$dir/m" --tokenizer byte --data "$dir/data" --tasks ruler_fwe --length 3000
refused 1 'wonderwords' eval -m "$dir/m" --tokenizer byte --data "$dir/data" --tasks niah_single_1 --length 256
refused 1 'hotpotqa.github.io' eval -m "$dir/m" --tokenizer byte --data "$dir/data" --tasks ruler_qa_hotpot --length 256
refused 1 'no "results"' eval --results "$dir/config.json"
printf '%s\n' '{"input": "a", "answer_prefix": "b", "outputs": ["c"]}' '{"input": "a", "outputs": ["c"]}' >"$dir/prompts"
refused 1 'line 2: no "input"' eval -m "$dir/m" --tokenizer byte --tasks ruler_vt --prompts "$dir/prompts" --dump "$dir/none"
check "no dump" [ ! -e "$dir/none" ]
wrong() { # wrong FILE TASK WORD <<ROWS
    put "$1"
    refused 1 "$3" eval -m "$dir/m" --tokenizer byte --data "$dir/data" --tasks "$2" --log-samples "$dir/none" --html "$dir/none.html"
    check "nothing half-written" [ ! -e "$dir/none" ] && check "no page" [ ! -e "$dir/none.html" ]
}
wrong arc_easy/test.jsonl arc_easy 'row 2: "gold" is 9' <<'T'
{"question": "q", "choices": ["a", "b"], "gold": 1}
{"question": "q", "choices": ["a", "b"], "gold": 9}
T
wrong piqa/validation.jsonl piqa 'row 1: no field "sol2"' <<'T'
{"goal": "g", "sol1": "a", "label": 0}
T
wrong piqa/validation.jsonl piqa 'row 3: not JSON' <<'T'
{"goal": "g", "sol1": "a", "sol2": "b", "label": 0}

{"goal": "g", "sol1":
T
wrong piqa/validation.jsonl piqa '"label" is not a number' <<'T'
{"goal": "g", "sol1": "a", "sol2": "b", "label": true}
T
wrong winogrande/validation.jsonl winogrande 'has no _' <<'T'
{"sentence": "s", "option1": "a", "option2": "b", "answer": "1"}
T
wrong boolq/validation.jsonl boolq '"answer" is not true or false' <<'T'
{"passage": "p", "question": "q", "answer": "yes"}
T
wrong sciq/test.jsonl sciq 'empty file' </dev/null
wrong hellaswag/validation.jsonl hellaswag '"label" is not a number' <<'T'
{"activity_label": "x", "ctx_a": "a", "ctx_b": "", "endings": ["a", "b"], "label": ""}
T
wrong swde/validation.jsonl swde 'row 1: "value" is empty' <<'T'
{"text": "t", "value": "  "}
T
wrong squad/dev-v1.1.json squad_rebuilt 'question 0' <<'T'
{"data": [{"paragraphs": [{"context": "c", "qas": [{"question": "q", "answers": []}]}]}]}
T
wrong lambada/lambada_test.jsonl lambada_openai 'row 1: "text" is not a string' <<'T'
{"text": ["a"]}
T
finish
