#!/usr/bin/env python3
"""fetch_eval.py OUT -- fetches public evaluation sets and writes them as `hola eval --data OUT` reads them.

    tools/fetch_eval.py data/eval                          # all of them
    tools/fetch_eval.py data/eval --tasks arc_easy,piqa    # some
    tools/fetch_eval.py --list                             # what there is, and from where

Rows come from the hub's parquet files where pyarrow is installed, else row by row from its server of rows (slower). A set
is written only when all of it is there and has been checked: its number of rows, its fields, its checksum where the
original's is known or the hub gives it. What is cut off is asked for again from where it ended. Files that are there already stay, unless --force. What was fetched, from which revision and with
which SHA-256, is kept in OUT/SOURCES.json. Python's standard library is enough.

What does not come from here: the files of RULER's essay tasks (`hola eval` names them), and HotpotQA.
"""
import argparse
import hashlib
import http.client
import io
import json
import os
import sys
import tempfile
import time
import urllib.error
import urllib.parse
import urllib.request

HUB = "https://huggingface.co"
ROWS = "https://datasets-server.huggingface.co"
# task: file, dataset, config, split, rows (None: not known), fields, and a further check
SETS = {
    "wikitext": ("wikitext/wikitext_document_level.test.jsonl", "EleutherAI/wikitext_document_level", "wikitext-2-raw-v1", "test", 62, ("page",)),
    "lambada_openai": ("lambada/lambada_test.jsonl", "EleutherAI/lambada_openai", "default", "test", 5153, ("text",)),
    "lambada_standard": ("lambada/lambada_standard_test.jsonl", "cimec/lambada", "plain_text", "test", 5153, ("text",)),
    "arc_easy": ("arc_easy/test.jsonl", "allenai/ai2_arc", "ARC-Easy", "test", 2376, ("question", "choices", "answerKey")),
    "arc_challenge": ("arc_challenge/test.jsonl", "allenai/ai2_arc", "ARC-Challenge", "test", 1172, ("question", "choices", "answerKey")),
    "hellaswag": ("hellaswag/validation.jsonl", "Rowan/hellaswag", "default", "validation", 10042, ("activity_label", "ctx_a", "ctx_b", "endings", "label")),
    "piqa": ("piqa/validation.jsonl", "baber/piqa", "default", "validation", 1838, ("goal", "sol1", "sol2", "label")),
    "winogrande": ("winogrande/validation.jsonl", "allenai/winogrande", "winogrande_xl", "validation", 1267, ("sentence", "option1", "option2", "answer")),
    "boolq": ("boolq/validation.jsonl", "aps/super_glue", "boolq", "validation", 3270, ("passage", "question", "label")),
    "sciq": ("sciq/test.jsonl", "allenai/sciq", "default", "test", 1000, ("question", "distractor1", "distractor2", "distractor3", "correct_answer", "support")),
    "openbookqa": ("openbookqa/test.jsonl", "allenai/openbookqa", "main", "test", 500, ("question_stem", "choices", "answerKey")),
    "fda": ("fda/validation.jsonl", "hazyresearch/based-fda", "default", "validation", None, ("text", "key", "value")),
    "swde": ("swde/validation.jsonl", "hazyresearch/based-swde-v2", "default", "validation", None, ("text", "key", "value")),
    "squad_completion": ("squad_completion/validation.jsonl", "hazyresearch/based-squad", "default", "validation", None, ("text", "value")),
}
# files that are used as they are: name, address, SHA-256 (None: not known)
FILES = {
    "squad_rebuilt": ("squad/dev-v1.1.json", "https://rajpurkar.github.io/SQuAD-explorer/dataset/dev-v1.1.json",
                      "95aa6a52d5d6a735563366753ca50492a658031da74f301ac5238b03966972c9"),
    "ruler_qa_squad": ("squad/dev-v2.0.json", "https://rajpurkar.github.io/SQuAD-explorer/dataset/dev-v2.0.json", None),
}
WIKITEXT_BYTES = 1290527  # of the 62 pages, which perplexity per byte is counted on


class Missing(Exception):
    """Why a set is not there; code: the status of the server's answer."""

    def __init__(self, why, code=None):
        super().__init__(why)
        self.code = code


class Redirects(urllib.request.HTTPRedirectHandler):
    """Follows redirects and keeps their headers: the hub names a file's commit, size and SHA-256 before it sends us on."""

    def redirect_request(self, req, fp, code, msg, headers, newurl):
        new = super().redirect_request(req, fp, code, msg, headers, newurl)
        if new:
            new.told = req.told
            new.told.update({k.lower(): v for k, v in headers.items()})
        return new


OPENER = urllib.request.build_opener(Redirects)


def get(url, tries=4):
    """The bytes at an address, and the headers of all answers. A busy server is asked again; what was cut off goes on
    where it ended."""
    got, tag = b"", None
    for k in range(tries):
        request = urllib.request.Request(url, headers={"User-Agent": "hola-fetch-eval"})
        request.told = {}
        if got and tag:
            request.add_header("Range", "bytes=%d-" % len(got))
            request.add_header("If-Range", tag)
        try:
            with OPENER.open(request, timeout=60) as r:
                whole = request.get_header("Range") is None or r.status != 206
                got, tag = b"" if whole else got, r.headers.get("ETag")
                request.told.update({k.lower(): v for k, v in r.headers.items()})
                try:
                    return got + r.read(), request.told
                except http.client.IncompleteRead as e:
                    got += e.partial
                    raise
        except urllib.error.HTTPError as e:
            e.close()
            if e.code not in (429, 500, 502, 503, 504) or k == tries - 1:
                raise Missing("%s: %s %s" % (url, e.code, e.reason), e.code) from None
        except http.client.HTTPException as e:
            if k == tries - 1:
                raise Missing("%s: cut off: %s" % (url, e)) from None
        except (urllib.error.URLError, OSError) as e:
            reason = getattr(e, "reason", e)
            if k == tries - 1 or isinstance(reason, FileNotFoundError) or "Name or service" in str(reason) or "refused" in str(reason):
                raise Missing("%s: %s" % (url, reason)) from None
        time.sleep(2 ** k)


def check_file(url, body, told):
    """Size and SHA-256, where the hub gives them."""
    size, sha = told.get("x-linked-size", ""), told.get("x-linked-etag", "").strip('"').lower()
    if size.isdigit() and int(size) != len(body):
        raise Missing("%s: %d bytes, not the %s that the hub has" % (url, len(body), size))
    if len(sha) == 64 and hashlib.sha256(body).hexdigest() != sha:
        raise Missing("%s: its SHA-256 is not the hub's, %s" % (url, sha))


def by_parquet(args, dataset, config, split):
    """All rows of the hub's parquet files, and the revision they are of."""
    import pyarrow.parquet
    rows, revision, part = [], None, 0
    while True:
        url = "%s/datasets/%s/resolve/refs%%2Fconvert%%2Fparquet/%s/%s/%04d.parquet" % (args.hub, dataset, config, split, part)
        try:
            body, told = get(url)
        except Missing as e:
            if part == 0 or e.code != 404:
                raise
            return rows, revision  # the files are numbered; this one is none
        check_file(url, body, told)
        try:
            rows += pyarrow.parquet.read_table(io.BytesIO(body)).to_pylist()
        except (pyarrow.ArrowException, OSError) as e:
            raise Missing("%s: not a parquet file: %s" % (url, str(e).split("\n")[0])) from None
        revision = told.get("x-repo-commit") or revision
        part += 1


def by_rows(args, dataset, config, split):
    rows, total, revision = [], None, None
    while total is None or len(rows) < total:
        url = "%s/rows?%s" % (args.rows, urllib.parse.urlencode(dict(dataset=dataset, config=config, split=split, offset=len(rows), length=100)))
        body, headers = get(url)
        try:
            page = json.loads(body)
            more, total = [x["row"] for x in page["rows"]], page["num_rows_total"]
        except (ValueError, KeyError, TypeError):
            raise Missing("%s: not an answer with rows" % url) from None
        revision = headers.get("x-revision") or revision
        if any(x.get("truncated_cells") for x in page["rows"]):
            raise Missing("%s: the server cuts long texts; install pyarrow (pip install pyarrow)" % url)
        if not more and len(rows) < total:
            raise Missing("%s: no rows after %d of %d" % (url, len(rows), total))
        rows += more
    return rows, revision


def check_rows(task, rows):
    _, dataset, _, _, count, fields = SETS[task]
    if count is not None and len(rows) != count:
        raise Missing("%s has %d rows, not %d: another version of the set" % (dataset, len(rows), count))
    for i, row in enumerate(rows):
        for f in fields:
            if row.get(f) is None:
                raise Missing("%s: row %d has no field \"%s\"" % (dataset, i + 1, f))
    if not rows:
        raise Missing("%s: no rows" % dataset)
    if task == "wikitext" and sum(len(r["page"].encode()) for r in rows) != WIKITEXT_BYTES:
        raise Missing("%s: its pages do not have %d bytes: another version of the set" % (dataset, WIKITEXT_BYTES))


def write_whole(path, body):
    """The file, all of it or none."""
    os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
    fd, temp = tempfile.mkstemp(prefix="." + os.path.basename(path) + ".", dir=os.path.dirname(path) or ".")
    try:
        with os.fdopen(fd, "wb") as f:
            f.write(body)
            f.flush()
            os.fsync(f.fileno())
        os.chmod(temp, 0o644)
        os.replace(temp, path)
    except BaseException:
        os.unlink(temp)
        raise


def fetch(args, task):
    """The file's bytes and what SOURCES.json says of it."""
    if task in FILES:
        _, url, sha = FILES[task]
        url = args.files + "/" + url.rsplit("/", 1)[1] if args.files else url
        body, _ = get(url)
        if sha and hashlib.sha256(body).hexdigest() != sha:
            raise Missing("%s: its SHA-256 is not %s" % (url, sha))
        try:
            json.loads(body)
        except ValueError as e:
            raise Missing("%s: not JSON: %s" % (url, e)) from None
        return body, {"from": url}
    _, dataset, config, split, _, fields = SETS[task]
    rows, revision = (by_parquet if args.parquet else by_rows)(args, dataset, config, split)
    check_rows(task, rows)
    body = b"".join(json.dumps(r, ensure_ascii=False).encode() + b"\n" for r in rows)
    return body, {"from": "%s, %s, %s" % (dataset, config, split), "revision": revision, "rows": len(rows)}


def have_pyarrow():
    try:
        import pyarrow.parquet  # noqa: F401
        return True
    except ImportError:
        return False


def source_of(task):
    return FILES[task][1] if task in FILES else "%s, %s, %s" % SETS[task][1:4]


def read_sources(path):
    try:
        with open(path, encoding="utf-8") as f:
            sources = json.load(f)
        return sources if isinstance(sources, dict) else {}
    except (OSError, ValueError):
        return {}


def parse():
    p = argparse.ArgumentParser(description="Fetches public evaluation sets as hola eval --data reads them.")
    p.add_argument("out", nargs="?", metavar="OUT", help="directory to write")
    p.add_argument("--tasks", metavar="NAME[,NAME...]", help="only these (default: all)")
    p.add_argument("--list", action="store_true", help="list the sets, their files and sources")
    p.add_argument("--force", action="store_true", help="fetch files that are there, too")
    p.add_argument("--no-parquet", dest="parquet", action="store_false", default=have_pyarrow(), help="row by row, even if there is pyarrow")
    p.add_argument("--hub", default=os.environ.get("HF_ENDPOINT", HUB), metavar="URL", help="address of the hub or of a copy (default %(default)s)")
    p.add_argument("--rows", default=ROWS, metavar="URL", help="address of the server of rows (default %(default)s)")
    p.add_argument("--files", metavar="URL", help="where single files are, instead of their own addresses")
    args = p.parse_args()
    if not args.list and not args.out:
        p.error("OUT is required")
    args.names = args.tasks.split(",") if args.tasks else [*SETS, *FILES]
    for t in args.names:
        if t not in SETS and t not in FILES:
            p.error("unknown set '%s'; --list prints them all" % t)
    for name in ("hub", "rows", "files"):
        setattr(args, name, (getattr(args, name) or "").rstrip("/"))
    return args


def main():
    args = parse()
    if args.list:
        for t in args.names:
            print("%-18s %-46s %s" % (t, (SETS.get(t) or FILES.get(t))[0], source_of(t)))
        return 0
    log = os.path.join(args.out, "SOURCES.json")
    sources, missing = read_sources(log), 0
    for t in args.names:
        name = (SETS.get(t) or FILES.get(t))[0]
        path = os.path.join(args.out, name)
        if os.path.exists(path) and not args.force:
            print("%s: %s is there" % (t, path))
            continue
        try:
            body, told = fetch(args, t)
            told["sha256"] = hashlib.sha256(body).hexdigest()
            write_whole(path, body)
            sources[name] = told
            write_whole(log, json.dumps(sources, indent=1, sort_keys=True).encode() + b"\n")
            print("%s: %s, %s bytes" % (t, path, format(len(body), ",")) + (", %s rows" % format(told["rows"], ",") if "rows" in told else ""), flush=True)
        except (Missing, OSError) as e:
            missing += 1
            print("fetch_eval: %s: missing %s (%s): %s" % (t, path, source_of(t), e), file=sys.stderr, flush=True)
    if missing:
        print("fetch_eval: %d of %d sets are missing; the same command tries them again" % (missing, len(args.names)), file=sys.stderr)
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main())
