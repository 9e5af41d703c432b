#!/bin/sh
# test_serve.sh -- hola serve as its clients meet it: the API, and whatever else may come over a network.
. "${0%/*}/common.sh"
# freed memory goes back at once: one row measures what the server holds
export ASAN_OPTIONS="${ASAN_OPTIONS:+$ASAN_OPTIONS:}quarantine_size_mb=4"
command -v python3 >/dev/null || { echo 'SKIP hola serve: there is no python3 here' && exit 77; }
here=$(cd "${0%/*}" && pwd)
case $hola in /*) ;; *) hola=$PWD/$hola ;; esac

cat >"$dir/c.json" <<END
{"model_type": "hola", "hidden_size": 48, "num_hidden_layers": 2, "num_heads": 2, "head_dim": 24, "expand_v": 1,
 "intermediate_size": 96, "vocab_size": 260, "tie_word_embeddings": true, "initializer_range": 0.2,
 "cache_window": 8, "cache_chunk": 32, "cache_gate_init": 0.0}
END
"$hola" init -o "$dir/tiny" --config "$dir/c.json" -s 5 >/dev/null || exit 1
export HOLA="$hola" PYTHONDONTWRITEBYTECODE=1

# ---- usage ----

refused 2 '' serve
refused 2 'it needs keys' serve -m "$dir/tiny" --tokenizer byte --host 0.0.0.0
refused 2 'needs --session-dir' serve -m "$dir/tiny" --tokenizer byte --shared-sessions
refused 2 'not a size' serve -m "$dir/tiny" --tokenizer byte --cache-mem 1X
refused 1 'neither tokenizer.model' serve -m "$dir/tiny" --port 0
refused 1 'No such file' serve -m "$dir/none" --tokenizer byte
refused 1 'chat' serve -m "$dir/tiny" --tokenizer byte --port 0 --chat-template "$dir/nochat"

for part in serve_api serve_http serve_fields serve_rows serve_shared serve_proxy serve_page serve_page_faults serve_openai serve_lm_eval; do
    checks=$((checks + 1))
    timeout 300 python3 "$here/$part.py" "$dir/tiny" "$dir" >"$dir/said" 2>&1
    case $? in
    0) ;;
    77) ;;
    *) bad "$part: $(tail -n 30 "$dir/said")" ;;
    esac
    grep '^SKIP' "$dir/said"
done
finish
