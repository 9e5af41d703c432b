#!/bin/sh
# The pages of hola plot, eval --html and inspect --memory --html in Debian's Chromium: three widths, both colour schemes.
set -u
. "${0%/*}/common.sh"
command -v python3 >/dev/null || { echo "SKIP the pages: there is no python3 here" && exit 77; }
python3 -c "import sys; sys.path.insert(0, '${0%/*}'); import browser; sys.exit(bool(browser.missing()))" ||
    { echo "SKIP the pages: there is no chromium with chromedriver here" && exit 77; }

cat >"$dir/config.json" <<JSON
{"model_type": "hola", "hidden_size": 32, "num_hidden_layers": 2, "vocab_size": 258, "num_heads": 2, "head_dim": 16,
 "expand_v": 1, "intermediate_size": 64, "cache_window": 8, "cache_chunk": 32, "initializer_range": 0.2,
 "max_position_embeddings": 256}
JSON
for i in 1 2 3; do
    "$hola" init -o "$dir/a<b>long-name-of-a-model-$i" --config "$dir/config.json" -s $i >/dev/null 2>&1 || exit 1
done
mkdir -p "$dir/data/arc_easy" "$dir/data/lambada" "$dir/run" "$dir/other"
i=0
while [ $i -lt 12 ]; do
    echo "{\"question\": \"Which is $i?\", \"choices\": [\"one\", \"two\", \"three\", \"four\"], \"gold\": $((i % 4))}"
    i=$((i + 1))
done >"$dir/data/arc_easy/test.jsonl"
echo '{"text": "once there was a ship"}' >"$dir/data/lambada/lambada_test.jsonl"
"$hola" eval -m "$dir/a<b>long-name-of-a-model-1" -m "$dir/a<b>long-name-of-a-model-2" -m "$dir/a<b>long-name-of-a-model-3" \
    --tokenizer byte --backend cpu --data "$dir/data" --tasks arc_easy,lambada_openai --html "$dir/eval.html" >"$dir/table" || bad "eval failed"
check "three models side by side: $(cat "$dir/table")" grep -q '^arc_easy  *acc  *12  0.2500 ' "$dir/table"
check "their test" grep -q "McNemar's exact test" "$dir/table"
cat >"$dir/niah" <<'T'
{"model": "x/y", "model_sha256": "0", "dtype": "BF16", "parameters": 340000000,
 "results": {"niah_single_1": {"n": 30, "8192": 0.25, "8192_stderr": 0.125, "2048": 1.0, "4096": 0.5, "4096_stderr": 0.1},
  "wikitext": {"n": 62, "word_perplexity": 78421266.0, "tokens": 67738}},
 "configs": {"niah_single_1": {"version": 1, "seconds": 1}, "wikitext": {"version": 1, "seconds": 1}}}
T
sed 's/340000000/2000000/; s/"0"/"1"/' "$dir/niah" >"$dir/niah2"
"$hola" eval --results "$dir/niah" --results "$dir/niah2" --html "$dir/lengths.html" >"$dir/table" || bad "eval failed"
check "7.8e7: $(cat "$dir/table")" grep -q ' 7.8e7 ' "$dir/table"
printf 'The cat </script> sat on the mat, 7391. ' >"$dir/t" && cat "$dir/t" "$dir/t" "$dir/t" >"$dir/text"
"$hola" inspect -m "$dir/a<b>long-name-of-a-model-1" --tokenizer byte --memory -f "$dir/text" --html "$dir/memory.html" >/dev/null || bad "inspect failed"
awk 'BEGIN { for (i = 1; i <= 300; i++) printf "{\"step\": %d, \"tokens\": %d, \"epoch\": 0, \"skipped\": 0, \"loss\": %.4f, \"lr\": %g, \"grad_norm\": %g, \"tok_per_s\": 1000, \"seconds\": %g%s}\n",
    i, i * 4096, 3 + 5 / i ^ .5, 3e-3 / i, i == 50 ? 900 : 1, i * 4, i % 100 ? "" : ", \"val_loss\": " (i == 200 ? 3.25 : 3.5) }' >"$dir/run/metrics.jsonl"
cp "$dir/run/metrics.jsonl" "$dir/other/"
echo '{"hola": "x", "run": {"seed": 7, "steps": 300, "lr": 0.003, "config": {"model_type": "hola"}}, "options": {"backend": "cpu"}}' >"$dir/run/run.json"
"$hola" plot -o "$dir/plot.html" "$dir/run" "$dir/other" >"$dir/out" || bad "plot failed"
check "the best validation loss" grep -q 'best validation loss 3.2500 at step 200' "$dir/out"
"$hola" plot -o "$dir/plot.svg" "$dir/run" >/dev/null || bad "plot failed"
check "the best validation loss in the SVG" grep -q 'best validation loss 3.2500, step 200' "$dir/plot.svg"
checks=$((checks + 1))
python3 "${0%/*}/pages.py" "$dir" || bad "pages, see above"
finish
