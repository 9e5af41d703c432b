#!/bin/sh
# hola inspect --memory: table, heat map, JSON, the page in a real browser, and bad input.
set -u
. "${0%/*}/common.sh"

cat >"$dir/config.json" <<JSON
{"model_type": "hola", "hidden_size": 32, "num_hidden_layers": 2, "vocab_size": 258, "num_heads": 2, "head_dim": 16,
 "expand_v": 1, "intermediate_size": 64, "cache_window": 8, "cache_chunk": 32, "initializer_range": 0.2}
JSON
"$hola" init -o "$dir/m" --config "$dir/config.json" -s 1 >/dev/null 2>&1 || exit 1
# markup, an unfinished character, control bytes: all must come out as text
printf 'The <b>cat</b> sat </script><script>alert(1)</script> \303\244 \303 \001 on the mat.\nAgain & again, "quoted".\n' >"$dir/t.txt"
cat "$dir/t.txt" "$dir/t.txt" >"$dir/text"

memory() { "$hola" inspect -m "$dir/m" --tokenizer byte --memory -f "$dir/text" "$@"; }
memory --html "$dir/page.html" >"$dir/table" || bad "it failed, see above"
check "four heads in the table" [ "$(grep -c '^ *[01] *[01] *8 ' "$dir/table")" -eq 4 ]
check "no colour in a file" [ "$(grep -c "$(printf '\033')" "$dir/table")" -eq 0 ]
memory --color always >"$dir/table" || bad "it failed, see above"
check "colour when it is asked for" grep -q "$(printf '\033')\\[48;5;" "$dir/table"
memory --layer 1 --head 0 --query 40 >"$dir/table" || bad "it failed, see above"
check "eight tokens listed" [ "$(grep -c '|$' "$dir/table")" -ge 8 ]

memory --json --query 40 >"$dir/json" || bad "it failed, see above"
command -v python3 >/dev/null || echo "SKIP the JSON, number by number: there is no python3 here"
command -v python3 >/dev/null && { python3 - "$dir/json" <<'PY' || bad "it failed, see above"
import json, sys
d = json.load(open(sys.argv[1]))
n = len(d["tokens"])
assert n == 1 + len(open(sys.argv[1].replace("json", "text"), "rb").read()), n
assert len(d["heads"]) == 4 and d["query"] == 40
closed = n // d["chunk"] * d["chunk"]
for h in d["heads"]:
    assert abs(sum(r["p"] for r in h["read"]) + h["sink"] - 1) < 1e-5
    best = sorted(range(closed), key=lambda t: (-h["m"][t], t))[: d["window"]]
    assert sorted(best) == [k["position"] for k in h["kept"]]
    assert all(k["recency"] == (closed - d["window"] <= k["position"]) and k["age"] == n - k["position"] for k in h["kept"])
PY
}

check "no markup from the text" [ "$(grep -c 'alert(1)</script>' "$dir/page.html")" -eq 0 ]
check "nothing from elsewhere" [ "$(grep -c 'https\?://' "$dir/page.html")" -eq 0 ]
browser=$(command -v chromium || command -v chromium-browser || true)
if [ -n "$browser" ]; then
    # the page draws itself, answers a click on the map's last row, and a mouse over a token
    sed 's|^</html>$|<script>{const b = document.getElementById("map").getBoundingClientRect(); const at = {clientX: b.left + 5, clientY: b.bottom - 1, bubbles: true}; document.getElementById("map").dispatchEvent(new MouseEvent("click", at)); document.querySelector("[data-t=\\"3\\"]").dispatchEvent(new MouseEvent("mousemove", at));}</script></html>|' \
        "$dir/page.html" >"$dir/click.html"
    for page in page click; do
        timeout 60 "$browser" --headless --no-sandbox --disable-gpu --user-data-dir="$dir/browser" --window-size=1200,900 \
            --dump-dom "file://$dir/$page.html" >"$dir/$page.dom" 2>/dev/null
    done
    check "the page opens with the first head" grep -q 'data-drawn="0"' "$dir/page.dom"
    check "so do its tables" grep -q 'id="share">layer 0, head 0: ' "$dir/page.dom"
    check "BOS has its name" grep -q 'data-t="0"[^>]*>&lt;s&gt;</span>' "$dir/page.dom"
    check "a click chooses the last head" grep -q 'data-drawn="3"' "$dir/click.dom"
    check "the text is markup's text" grep -q 'data-t="5"[^>]*>&lt;</span>' "$dir/page.dom"
    check "every token has a place" [ "$(grep -o 'data-t=' "$dir/page.dom" | wc -l)" -eq "$(($(wc -c <"$dir/text") + 1))" ]
    check "a mouse over a token tells of it" grep -q '<div>layer 1, head 1: m = ' "$dir/click.dom"
else
    echo "SKIP the page in a browser: there is no chromium here"
fi

# every policy names what it ranks by
for rule in 'betae m m' 'e |e| |e|' 'betav beta|v| beta|v|' 'h2o sum p sum p' 'recency m position' 'streaming m position' \
    'lola |v-kS| |v-kS|' 'lte learned learned'; do
    evict=${rule%% *} words=${rule#* }
    case $evict in h2o) table='sum p' json='sum p' ;; *) table=${words% *} json=${words#* } ;; esac
    sed "s/\"cache_chunk\"/\"cache_evict\": \"$evict\", \"cache_chunk\"/" "$dir/config.json" >"$dir/$evict.json"
    "$hola" init -o "$dir/m_$evict" --config "$dir/$evict.json" -s 1 >/dev/null 2>&1 || bad "init with $evict failed"
    "$hola" inspect -m "$dir/m_$evict" --tokenizer byte --memory -f "$dir/text" >"$dir/table" || bad "$evict failed"
    check "$evict: the table says $table" grep -qF "ranked by $table  " "$dir/table"
    "$hola" inspect -m "$dir/m_$evict" --tokenizer byte --memory -f "$dir/text" --json >"$dir/json" || bad "$evict failed"
    check "$evict: JSON says $json" grep -qF "\"ranked_by\": \"$json\"" "$dir/json"
done

# one set per layer: the heads of a layer list the same tokens
sed 's/"cache_chunk"/"cache_layer_set": true, "cache_chunk"/' "$dir/config.json" >"$dir/layer.json"
"$hola" init -o "$dir/layer" --config "$dir/layer.json" -s 1 >/dev/null 2>&1 || bad "init with a set per layer failed"
"$hola" inspect -m "$dir/layer" --tokenizer byte --memory -f "$dir/text" >"$dir/table" || bad "a set per layer failed"
check "a set per layer: the table says |m|" grep -qF 'ranked by |m|  ' "$dir/table"
check "... and says so" grep -q '^The heads of a layer keep the same tokens' "$dir/table"
sets() { # MODEL: how many different sets its 2 x 2 heads keep
    "$hola" inspect -m "$1" --tokenizer byte --memory -f "$dir/text" --json >"$dir/json" || bad "inspect of $1 failed"
    python3 -c 'import json, sys; d = json.load(open(sys.argv[1]))
print(len({(h["layer"], *(k["position"] for k in h["kept"])) for h in d["heads"]}), d["ranked_by"])' "$dir/json"
}
if command -v python3 >/dev/null; then
    check "a set per layer" [ "$(sets "$dir/layer")" = '2 |m|' ]
    check "a set per head" [ "$(sets "$dir/m")" = '4 m' ]
fi

refused 2 'either --file or --ids' inspect -m "$dir/m" --memory
refused 2 'need --memory' inspect -m "$dir/m" --layer 0
refused 1 'the text has' inspect -m "$dir/m" --tokenizer byte --memory -f "$dir/text" --query 100000
refused 1 '2 layers x 2 heads' inspect -m "$dir/m" --tokenizer byte --memory -f "$dir/text" --layer 2
refused 1 "$dir/none" inspect -m "$dir/m" --tokenizer byte --memory -f "$dir/none"
refused 1 'nowhere' inspect -m "$dir/m" --tokenizer byte --memory -f "$dir/text" --html "$dir/nowhere/page.html"
"$hola" init -o "$dir/gdn" --config "$dir/config.json" --model-type gated_deltanet -s 1 >/dev/null 2>&1
refused 1 'no exact memory' inspect -m "$dir/gdn" --tokenizer byte --memory -f "$dir/text"
finish
