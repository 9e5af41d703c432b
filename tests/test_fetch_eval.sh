#!/bin/sh
# tools/fetch_eval.py against a server on this machine: sets arrive as hola eval reads them, or not at all.
set -u
. "${0%/*}/common.sh"
command -v python3 >/dev/null || { echo "SKIP fetch_eval: there is no python3 here" && exit 77; }
tools=${0%/*}/../tools
cat >"$dir/server.py" <<'PY'
"""A hub: rows by page, parquet where pyarrow is, one single file; some sets are wrong in some way."""
import hashlib, http.server, io, json, sys, urllib.parse
rows = {
    "allenai/openbookqa": [{"question_stem": "Which is %d, \u00e4?" % i, "choices": {"text": ["a", "b"], "label": ["A", "B"]}, "answerKey": "B"} for i in range(500)],
    "hazyresearch/based-fda": [{"text": "Name: x. Number:", "key": "Number", "value": "K1"}],
    "allenai/sciq": [{"question": "q"}] * 3,                    # too few
    "hazyresearch/based-swde-v2": [{"text": "t", "key": "k"}],   # a field is missing
}
busy, files, seen, wrong = {"n": 0}, {}, [], set(sys.argv[1:])
class H(http.server.BaseHTTPRequestHandler):
    def log_message(self, *a):
        pass
    def give(self, body, code=200, length=None):
        self.send_response(code)
        self.send_header("Content-Length", str(len(body) if length is None else length))
        self.send_header("X-Repo-Commit", "abc")
        self.send_header("X-Revision", "abc")
        self.end_headers()
        self.wfile.write(body)
    def parquet(self, rows, part, q):
        """Two files; the hub gives commit, size and SHA-256, and sends on to where the file is."""
        if part == 2 or (part == 1 and "lost" in wrong):
            return self.give(b"none" if part == 2 else b"gone", 404 if part == 2 else 403)
        import pyarrow, pyarrow.parquet
        f, half = io.BytesIO(), len(rows) // 2
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows[half:] if part else rows[:half]), f)
        body = f.getvalue()
        files[str(part)] = body
        self.send_response(302)
        self.send_header("Location", "/cdn?key=%d" % part)
        self.send_header("X-Repo-Commit", "fed")
        self.send_header("X-Linked-Size", str(len(body) + ("size" in wrong)))
        self.send_header("X-Linked-Etag", '"%s"' % ("0" * 64 if "sum" in wrong else hashlib.sha256(body).hexdigest()))
        self.send_header("Content-Length", "0")
        self.end_headers()
    def piece(self, key):
        """The file; the first answer ends in the middle, a Range goes on there."""
        body, at = files[key], self.headers.get("Range")
        seen.append(at)
        if "junk" in wrong:
            body = b"junk"
        if at and self.headers["If-Range"] == '"tag"':
            at = int(at[6:-1])
            self.send_response(206)
            self.send_header("Content-Range", "bytes %d-%d/%d" % (at, len(body) - 1, len(body)))
        else:
            at = 0
            self.send_response(200)
        self.send_header("ETag", '"tag"')
        self.send_header("Content-Length", str(len(body) - at))
        self.end_headers()
        self.wfile.write(body[at:] if at or "cut" not in wrong else body[:len(body) // 3])
    def do_GET(self):
        u = urllib.parse.urlparse(self.path)
        q = {k: v[0] for k, v in urllib.parse.parse_qs(u.query).items()}
        if u.path == "/rows" and q["dataset"] == "hazyresearch/based-squad":
            return self.give(b'{"rows": [', length=1000)  # cut off
        if u.path == "/rows" and q["dataset"] in rows:
            busy["n"] += 1
            if busy["n"] == 2:
                return self.give(b"busy", 503)
            all, at = rows[q["dataset"]], int(q["offset"])
            return self.give(json.dumps({"rows": [{"row": r, "truncated_cells": []} for r in all[at:at + int(q["length"])]], "num_rows_total": len(all)}).encode())
        for name in rows:
            if u.path.startswith("/datasets/%s/resolve/refs%%2Fconvert%%2Fparquet/main/test/" % name):
                return self.parquet(rows[name], int(u.path[-12:-8]), q)
        if u.path == "/cdn":
            return self.piece(q["key"])
        if u.path == "/kept":
            return self.give(json.dumps(seen).encode())
        if u.path == "/dev-v2.0.json":
            return self.give(b'{"version": "v2.0", "data": []}')
        if u.path == "/dev-v1.1.json":
            return self.give(b'{"data": []}')  # not the one that is known
        self.give(b"none", 404)
s = http.server.ThreadingHTTPServer(("127.0.0.1", 0), H)
print(s.server_port, flush=True)
s.serve_forever()
PY
python=${HOLA_TEST_PYTHON:-python3}
server=
trap 'kill $server; rm -rf "$dir"' EXIT
serve() { # WRONG...: a server with these faults, in place of the last one
    [ -z "$server" ] || kill $server
    : >"$dir/port"
    "$python" "$dir/server.py" "$@" >"$dir/port" 2>/dev/null &
    server=$!
    while [ ! -s "$dir/port" ]; do sleep 0.1; done
    url=http://127.0.0.1:$(cat "$dir/port")
}
serve
fetch() { "$python" "$tools/fetch_eval.py" "$@" --hub "$url" --rows "$url" --files "$url" >"$dir/out" 2>"$dir/err"; }

fetch "$dir/data" --no-parquet --tasks openbookqa,fda,ruler_qa_squad
rc=$?
check "three sets: $(cat "$dir/err")" [ $rc -eq 0 ]
check "500 rows" [ "$(wc -l <"$dir/data/openbookqa/test.jsonl")" -eq 500 ]
check "in order, as UTF-8" [ "$(sed -n 301p "$dir/data/openbookqa/test.jsonl" | grep -c 'Which is 300, ä?')" -eq 1 ]
check "their sources" [ "$(grep -c '"sha256": "' "$dir/data/SOURCES.json")" -eq 3 ]
check "the revision" grep -q '"revision": "abc"' "$dir/data/SOURCES.json"
sha=$(sha256sum <"$dir/data/openbookqa/test.jsonl" | cut -d' ' -f1)
check "the checksum of what was written" grep -q "$sha" "$dir/data/SOURCES.json"
"$hola" eval --list | awk '{ print $1 }' >"$dir/tasks"
"$python" "$tools/fetch_eval.py" --list | awk '{ print $1 }' | while read -r t; do grep -qx "$t" "$dir/tasks" || echo "$t"; done >"$dir/unknown"
check "sets that hola does not know: $(cat "$dir/unknown")" [ ! -s "$dir/unknown" ]
cat >"$dir/config.json" <<JSON
{"model_type": "hola", "hidden_size": 16, "num_hidden_layers": 1, "vocab_size": 258, "num_heads": 1, "head_dim": 16,
 "expand_v": 1, "intermediate_size": 32, "cache_window": 8, "cache_chunk": 32, "max_position_embeddings": 256}
JSON
"$hola" init -o "$dir/m" --config "$dir/config.json" -s 1 >/dev/null 2>&1 || exit 1
ok "$hola" eval -m "$dir/m" --tokenizer byte --backend cpu --data "$dir/data" --tasks openbookqa,fda --limit 3
fetch "$dir/data" --no-parquet --tasks openbookqa
check "a file that is there stays" grep -q 'is there' "$dir/out"

# what is wrong is not written, and said
fetch "$dir/bad" --no-parquet --tasks sciq,swde,squad_completion,squad_rebuilt,piqa
check "wrong sets" [ $? -eq 1 ]
for word in 'sciq: missing .*3 rows, not 1000' 'swde: missing .*row 1 has no field "value"' 'squad_completion: missing .*cut off: IncompleteRead' \
    'squad_rebuilt: missing .*SHA-256 is not' 'piqa: missing .*piqa/validation.jsonl (baber/piqa, default, validation): .*404' '5 of 5 sets are missing'; do
    check "'$word' in $(cat "$dir/err")" grep -q "$word" "$dir/err"
done
check "nothing half-written: $(find "$dir/bad" -type f 2>/dev/null)" [ -z "$(find "$dir/bad" -type f 2>/dev/null)" ]
# without a network
"$python" "$tools/fetch_eval.py" "$dir/off" --no-parquet --tasks openbookqa,ruler_qa_squad --rows http://127.0.0.1:9 --files "file://$dir/nowhere" >"$dir/out" 2>"$dir/err"
check "offline" [ $? -eq 1 ]
check "it says what and from where: $(cat "$dir/err")" [ "$(grep -c 'missing .*openbookqa/test.jsonl (allenai/openbookqa, main, test)\|missing .*squad/dev-v2.0.json (https' "$dir/err")" -eq 2 ]
"$python" "$tools/fetch_eval.py" "$dir/off" --tasks arc >"$dir/out" 2>"$dir/err"
check "an unknown set" [ $? -eq 2 ]
# from files
mkdir "$dir/tree" && printf '{"data": [1]}' >"$dir/tree/dev-v2.0.json"
ok "$python" "$tools/fetch_eval.py" "$dir/off" --tasks ruler_qa_squad --files "file://$dir/tree"
check "a file from a directory" [ "$(cat "$dir/off/squad/dev-v2.0.json")" = '{"data": [1]}' ]

if "$python" -c 'import pyarrow' 2>/dev/null; then
    fetch "$dir/parquet" --tasks openbookqa
    check "parquet gives the same: $(cat "$dir/err")" cmp "$dir/parquet/openbookqa/test.jsonl" "$dir/data/openbookqa/test.jsonl"
    check "the revision, named before the redirect" grep -q '"revision": "fed"' "$dir/parquet/SOURCES.json"
    serve cut
    fetch "$dir/cut" --tasks openbookqa
    check "cut off, and the same: $(cat "$dir/err")" cmp "$dir/cut/openbookqa/test.jsonl" "$dir/data/openbookqa/test.jsonl"
    "$python" -c "import sys, urllib.request; sys.stdout.write(urllib.request.urlopen('$url/kept').read().decode())" >"$dir/ranges"
    check "it went on where it was cut: $(cat "$dir/ranges")" [ "$(grep -o 'bytes=[1-9][0-9]*-' "$dir/ranges" | wc -l)" -eq 2 ]
    for fault in 'sum SHA-256 is not the hub' 'size bytes, not the' 'junk bytes, not the' 'lost 0001.parquet: 403'; do
        serve "${fault%% *}"
        fetch "$dir/wrong" --tasks openbookqa
        check "$fault" [ $? -eq 1 ]
        check "$fault: $(cat "$dir/err")" grep -q "openbookqa: missing .*${fault#* }" "$dir/err"
        check "$fault: nothing half-written" [ -z "$(find "$dir/wrong" -type f 2>/dev/null)" ]
    done
else
    echo "SKIP parquet files: $python has no pyarrow"
fi
finish
