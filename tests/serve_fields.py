"""serve_fields.py MODEL DIR -- fields of requests together: several answers with stop strings, log-probabilities and echo,
streams of them, sessions with forks; names, metadata and files of sessions; a folder with thousands of them."""
import json
import os
import subprocess
import sys
import time
from serve_client import HOLA, Server, check, finish, soon

model, work = sys.argv[1:3]
folder = os.path.join(work, "fields")
s = Server(model, "--tokenizer", "byte", "--log", "none", "--session-dir", folder)
greedy = {"temperature": 0, "ignore_eos": True}


def complete(**body):
    status, a, _ = s.post("/v1/completions", body)
    return a if check("200", status == 200, a) else None


def streamed(path="/v1/completions", **body):
    """The choices of a stream, joined as an answer has them, and its last event."""
    status, events, raw = s.stream(path, dict(body, stream_options={"include_usage": True}))
    check("a stream", status == 200 and events[-1] == "[DONE]" and events[-2]["choices"] == [], raw[-300:])
    out = {}
    for e in events[:-2]:
        check("usage is null", e["usage"] is None, e)
        for c in e["choices"]:
            x = out.setdefault(c["index"], {"index": c["index"], "text": "", "token_ids": [], "logprobs": {}, "finish_reason": None})
            check("nothing behind the end", x["finish_reason"] is None, e)
            x["text"] += c["text"] if "text" in c else c["delta"].get("content", "")
            x["token_ids"] += c.get("token_ids", [])
            for k, v in (c["logprobs"] or {}).items():
                x["logprobs"][k] = x["logprobs"].get(k, []) + v
            x["finish_reason"] = c["finish_reason"]
            if c["finish_reason"]:
                check("the end has no text", not c.get("text") and not c.get("delta"), e)
    return [out[i] for i in sorted(out)], events[-2]


def same(what, whole, parts):
    check(what, len(whole) == len(parts), (whole, parts))
    for a, b in zip(whole, parts):
        for k in ("index", "text", "token_ids", "logprobs", "finish_reason"):
            check("%s: %s" % (what, k), a[k] == b[k], (a[k], b[k]))


# several prompts, several answers each, stop strings, log-probabilities, echo: whole, streamed, each on its own
first = complete(prompt="Once", max_tokens=60, seed=3, ignore_eos=True, temperature=1)["choices"][0]["text"]
stop = next(first[i:i + 2] for i in range(8, 50) if first[i:i + 2].isprintable() and "\ufffd" not in first[i:i + 2])
many = dict(prompt=["Once", "upon a time"], n=3, max_tokens=60, seed=3, temperature=1, ignore_eos=True, stop=[stop, "\0"], logprobs=2, echo=True,
            return_token_ids=True)
a = complete(**many)
check("six answers", [c["index"] for c in a["choices"]] == list(range(6)), a)
for c in a["choices"]:
    l, prompt = c["logprobs"], many["prompt"][c["index"] // 3]
    # choice i is what seed + i gives alone (an echo ends with its prompt, not with the stop string)
    alone = complete(**dict(many, prompt=prompt, n=1, seed=3 + c["index"]))["choices"][0]
    check("as alone", all(c[k] == alone[k] for k in ("text", "token_ids", "finish_reason")) and c["logprobs"]["tokens"] == l["tokens"], (c, alone))
    check("the prompt comes first, with its tokens", c["text"].startswith(prompt) and l["token_logprobs"][0] is None and l["top_logprobs"][0] is None
          and l["tokens"][:len(prompt) + 1] == ["<bos>"] + list(prompt), c)
    check("as many of each", len(set(map(len, l.values()))) == 1 and len(l["tokens"]) == len(prompt) + 1 + len(c["token_ids"]), {k: len(v) for k, v in l.items()})
    check("offsets ascend", l["text_offset"] == sorted(l["text_offset"]) and l["text_offset"][len(prompt) + 1:len(prompt) + 2] in ([], [len(prompt)]), l)
    check("a stop string is not part of the text", stop not in c["text"][len(prompt):], c)
    check("log-probabilities", all(x <= 0 for x in l["token_logprobs"][1:]), l)
check("one of them met it", a["choices"][0]["finish_reason"] == "stop", a["choices"][0])
check("its usage", a["usage"]["completion_tokens"] == sum(len(c["token_ids"]) for c in a["choices"])
      and a["usage"]["prompt_tokens"] == len("Once" + "upon a time") + 2, a["usage"])
parts, last = streamed(**many)
same("the stream of six", a["choices"], parts)
check("its usage", {k: v for k, v in last["usage"].items() if k != "prompt_tokens_details"} == {k: v for k, v in a["usage"].items() if k != "prompt_tokens_details"}, last)
a = complete(prompt=[[97, 98], [99]], max_tokens=0, echo=True, logprobs=1, n=2)
check("nothing but the prompts", [c["text"] for c in a["choices"]] == ["ab", "ab", "c", "c"] and [len(c["logprobs"]["tokens"]) for c in a["choices"]] == [2, 2, 1, 1]
      and a["usage"]["completion_tokens"] == 0 and a["usage"]["prompt_tokens"] == 3, a)
check("read only", complete(prompt="abc", max_tokens=0)["choices"][0] == {"index": 0, "text": "", "logprobs": None, "finish_reason": "length"})
check("mixed prompts", len(complete(prompt=["a", [97]], max_tokens=1)["choices"]) == 2)
check("128 prompts", len(complete(prompt=["a"] * 128, max_tokens=1)["choices"]) == 128 and s.post("/v1/completions", {"prompt": ["a"] * 129})[0] == 400)
check("prompts x n", s.post("/v1/completions", {"prompt": ["a"] * 65, "n": 2})[1]["error"]["param"] == "n")

# what changes the choice of tokens
a = complete(prompt="x", max_tokens=8, logit_bias={"65": 100, "66": 99.5}, presence_penalty=2, frequency_penalty=0, temperature=0, logprobs=3)
check("bias and penalties are not in the log-probabilities", a["choices"][0]["text"].count("A") >= 1 and "B" in a["choices"][0]["text"]
      and max(a["choices"][0]["logprobs"]["token_logprobs"]) < -0.5, a)
eos = {"logit_bias": {"257": 100}}
check("EOS ends it", complete(prompt="x", max_tokens=5, **eos)["choices"][0]["finish_reason"] == "stop")
a = complete(prompt="x", max_tokens=5, ignore_eos=True, return_token_ids=True, **eos)["choices"][0]
check("... unless it is ignored", a["finish_reason"] == "length" and a["token_ids"] == [257] * 5 and a["text"] == "", a)
one, two = (complete(prompt="x", max_tokens=30, temperature=1, ignore_eos=True, return_token_ids=True) for _ in range(2))
again = complete(prompt="x", max_tokens=30, temperature=1, ignore_eos=True, return_token_ids=True, seed=one["seed"])
check("a seed that was reported gives the same again", one["seed"] != two["seed"] and again["choices"][0]["token_ids"] == one["choices"][0]["token_ids"], (one, two, again))
check("the largest seed", complete(prompt="x", max_tokens=1, seed=(1 << 63) - 1)["seed"] == (1 << 63) - 1)
check("top_k 1 is greedy", complete(prompt="x", max_tokens=9, top_k=1, temperature=5, ignore_eos=True)["choices"][0]["text"]
      == complete(prompt="x", max_tokens=9, **greedy)["choices"][0]["text"])
a = complete(prompt="cached " * 9, max_tokens=1)["usage"], complete(prompt="cached " * 9, max_tokens=1)["usage"], complete(prompt="cached " * 9, max_tokens=1, cache_prompt=False)["usage"]
check("cached tokens", [x["prompt_tokens_details"]["cached_tokens"] for x in a] == [0, 64, 0] and len({x["prompt_tokens"] for x in a}) == 1, a)

# chat: n, logprobs, parts, an answer that goes on
talk = dict(messages=[{"role": "user", "content": "Hi", "name": "me"}], max_completion_tokens=12, n=2, seed=1, temperature=1, logprobs=True, top_logprobs=2)
status, a, _ = s.post("/v1/chat/completions", talk)
check("two answers", status == 200 and len(a["choices"]) == 2 and a["usage"]["completion_tokens"] == sum(len(c["logprobs"]["content"]) for c in a["choices"]), a)
parts, _ = streamed("/v1/chat/completions", **talk)
check("... streamed", [p["text"] for p in parts] == [c["message"]["content"] for c in a["choices"]]
      and [p["logprobs"]["content"] for p in parts] == [c["logprobs"]["content"] for c in a["choices"]], (a, parts))
check("the token is among the top ones", all(x["token"] in [t["token"] for t in x["top_logprobs"]] for c in a["choices"] for x in c["logprobs"]["content"]), a)
check("no tokens, no logprobs", s.post("/v1/chat/completions", dict(talk, max_completion_tokens=0))[1]["choices"][0]["logprobs"] == {"content": []})

# ---- sessions ----

for name in ("a", "A.b-c_d", "0", "x..y", "v1", "a" * 64, "1.session", "tmp.0123456789abcdef.session"):
    check("a session %s" % name, s.post("/v1/sessions", {"id": name})[0] == 201 and s.get("/v1/sessions/" + name)[1]["id"] == name
          and s.get("/v1/sessions/%s/messages" % name)[1] == [] and s.call("DELETE", "/v1/sessions/" + name)[0] == 200)
check("no id: one is made", s.post("/v1/sessions", {})[1]["id"].startswith("sess-"))
full = {"k%d" % i: "v" * 512 for i in range(16)}
a = s.post("/v1/sessions", {"id": "m", "metadata": full})
check("metadata", a[0] == 201 and a[1]["metadata"] == full, a[1])
for bad in (dict(full, more="x"), {"k": "v" * 513}, {"k": 1}, {"k": None}, {"k": {}}, [], "x", {"k" * 65: "v"}):
    a = s.post("/v1/sessions/m", {"metadata": bad})
    check("metadata: %r" % str(bad)[:20], a[0] == 400 and a[1]["error"]["param"] == "metadata", a[1])
check("... it stays", s.get("/v1/sessions/m")[1]["metadata"] == full)
s.post("/v1/sessions/m/save", {})
check("files of its own", {oct(os.stat(os.path.join(folder, f)).st_mode & 0o777) for f in os.listdir(folder)} == {"0o600"}
      and oct(os.stat(folder).st_mode & 0o777) == "0o700", os.listdir(folder))

# questions on forks: streamed, several at once; the session stays as it is
s.post("/v1/sessions", {"id": "book"})
complete(session="book", prompt="It was a dark and stormy night", max_tokens=0)
ask = dict(session="book", fork=True, prompt=" and", max_tokens=10, n=3, seed=5, temperature=1, ignore_eos=True, logprobs=1, return_token_ids=True)
a = complete(**ask)
parts, last = streamed(**ask)
same("a stream of three on a fork", a["choices"], parts)
check("no session is named", "session" not in a and "session" not in last and a["usage"]["prompt_tokens"] == 4, (a["usage"], last))
check("the book is as it was", s.get("/v1/sessions/book")[1]["position"] == 31)
parts, last = streamed(**dict(ask, fork="kept", n=1))
check("a fork that is kept, streamed", last["session"] == {"id": "kept", "position": 45} and parts[0]["token_ids"] == a["choices"][0]["token_ids"], last)
kept = s.get("/v1/sessions/kept")[1]
check("its parent", kept["parent"] == "book" and kept["turns"] == [31, 45] and kept["position"] == 45, kept)
check("it exists", s.post("/v1/completions", dict(ask, fork="kept", n=1))[1]["error"]["code"] == "session_exists")
for bad in ({"fork": "book/x"}, {"n": 2, "fork": "new"}, {"n": 2, "fork": None}, {"echo": True}, {"prompt": ["a", "b"]}):
    check("a session with %r" % bad, s.post("/v1/completions", dict(ask, **bad))[0] == 400)

# back by turns: also behind an answer that a stop string ended
letters = {"logit_bias": {str(i): 20 for i in range(97, 123)}, "seed": 1, **greedy}  # it writes letters alone
text = complete(session="book", fork=True, prompt="X0", max_tokens=80, **letters)["choices"][0]["text"]
stop = text[30:33] if text.find(text[30:33]) == 30 else text[5:8]
states = [s.get("/v1/sessions/book")[1]["position"]]
for i in range(3):
    a = complete(session="book", prompt="X%d" % i, max_tokens=80, stop=stop, **letters)
    states.append(a["session"]["position"])
files = s.get("/v1/sessions/book/file")[1]
for turns in (1, 2, 3):
    s.post("/v1/sessions/book/fork", {"id": "back%d" % turns})
    a = s.post("/v1/sessions/back%d/rollback" % turns, {"turns": turns})[1]
    check("back %d turns" % turns, a["position"] == states[3 - turns] and a["turns"] == states[:4 - turns], (a, states))
    for i in range(3 - turns, 3):
        again = complete(session="back%d" % turns, prompt="X%d" % i, max_tokens=80, stop=stop, **letters)
        check("... and on again", again["session"]["position"] == states[i + 1], (again["session"], states))
    check("... to the same state", s.get("/v1/sessions/back%d/file" % turns)[1] == files)
s.post("/v1/sessions", {"id": "chat"})
ends = [0]
for i in range(3):
    a = s.post("/v1/chat/completions", dict(session="chat", messages=[{"role": "user", "content": "Q%d" % i}], max_tokens=60, stop=stop[:2], **letters))[1]
    ends.append(a["session"]["position"])
was = s.get("/v1/sessions/chat/messages")[1]
a = s.post("/v1/sessions/chat/rollback", {"turns": 2})[1]
check("a chat goes back", a["position"] == ends[1] and s.get("/v1/sessions/chat/messages")[1] == [dict(m, to=min(m["to"], ends[1])) for m in was[:2]], (a, was))
for bad in ({}, {"turns": 9}, {"tokens": 1 << 40}, {"position": 1 << 40}, {"turns": -1}, {"turns": 1, "tokens": 1}, {"turns": "1"}, {"x": 1}):
    check("rollback %r" % bad, s.post("/v1/sessions/chat/rollback", bad)[0] == 400)
check("... of nothing", s.post("/v1/sessions/chat/rollback", {"tokens": 0})[1]["reread"] == 0)
check("a fork of an earlier position", s.post("/v1/sessions/chat/fork", {"position": 1 << 40})[1]["error"]["param"] == "position")

# a file that comes: of this model, of another, at a name that exists
a = s.call("PUT", "/v1/sessions/came.1/file", files, {"Content-Type": "application/octet-stream"})
check("a file makes a session", a[0] == 201 and a[1]["position"] == states[3] and a[1]["parent"] is None, a[1])
check("... which goes on as the other", complete(session="came.1", prompt="!", max_tokens=9, **greedy)["choices"][0]["text"]
      == complete(session="book", fork=True, prompt="!", max_tokens=9, **greedy)["choices"][0]["text"])
check("twice", s.call("PUT", "/v1/sessions/came.1/file", files, {"Content-Type": "application/octet-stream"})[1]["error"]["code"] == "session_exists")
check("as JSON", s.call("PUT", "/v1/sessions/came.2/file", files, {"Content-Type": "application/json"})[0] == 415)
check("nothing", s.call("PUT", "/v1/sessions/came.2/file", b"", {"Content-Type": "application/octet-stream"})[0] == 400)
check("cut", s.call("PUT", "/v1/sessions/came.2/file", files[:-1], {"Content-Type": "application/octet-stream"})[0] == 400)
other, path = os.path.join(work, "other"), os.path.join(work, "other.session")
config = json.load(open(os.path.join(model, "config.json")))
with open(os.path.join(work, "other.json"), "w") as f:
    json.dump(config, f)
subprocess.run([HOLA, "init", "-o", other, "--config", os.path.join(work, "other.json"), "-s", "77"], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
subprocess.run([HOLA, "generate", "-m", other, "--tokenizer", "byte", "-q", "-p", "a", "-n", "3", "--save-session", path], check=True, stdout=subprocess.DEVNULL)
with open(path, "rb") as f:
    a = s.call("PUT", "/v1/sessions/came.2/file", f.read(), {"Content-Type": "application/octet-stream"})
check("of another model", a[0] == 400 and a[1]["error"]["code"] == "invalid_value" and s.get("/v1/sessions/came.2")[0] == 404, a[1])
check("it ends", s.stop() == 0)

# a folder with thousands of sessions: the server is there soon, lists them by last use, and any of them goes on
seed = next(f for f in os.listdir(folder) if f.startswith("book."))
with open(os.path.join(folder, seed), "rb") as f:
    data = f.read()
for i in range(3000):
    with open(os.path.join(folder, "many%04d%s" % (i, seed[4:])), "wb") as f:
        f.write(data)
began = time.time()
s = Server(model, "--tokenizer", "byte", "--log", "none", "--session-dir", folder)
took = time.time() - began
check("3,000 sessions at the start", took < 20, took)
names, after = [], None
while True:
    page = s.get("/v1/sessions?limit=1000" + ("&after=" + after if after else ""))[1]
    names += [x["id"] for x in page["data"]]
    after = names[-1]
    if not page["has_more"]:
        break
check("... all listed once", len(names) == len(set(names)) and sum(x.startswith("many") for x in names) == 3000, len(names))
check("... on disk", s.metric('hola_sessions{where="disk"}') == len(names), s.metric('hola_sessions{where="disk"}'))
one, two = (complete(session=x, prompt="!", max_tokens=9, **greedy)["choices"][0]["text"] for x in ("many2999", "many0000"))
check("... any goes on", one == two and s.get("/v1/sessions?limit=1")[1]["data"][0]["id"] == "many0000")
check("it ends", s.stop() == 0)
finish()
