"""serve_api.py MODEL DIR -- the API as its users meet it: answers, streams, sessions, and that they agree with
hola generate."""
import http.client
import json
import os
import signal
import subprocess
import sys
import threading
from serve_client import HOLA, Server, check, finish

model, work = sys.argv[1:3]
sessions = os.path.join(work, "sessions")
s = Server(model, "--tokenizer", "byte", "--session-dir", sessions, "--parallel", "4")
check("it listens", s.port > 0)


def generate(prompt, n, *more):
    out = subprocess.run([HOLA, "generate", "-m", model, "--tokenizer", "byte", "-q", "--json", "-p", prompt, "-n", str(n),
                          *more], capture_output=True, check=True).stdout
    return json.loads(out)


# ---- answers ----

status, a, r = s.get("/health")
check("health", status == 200 and a == {"status": "ok"}, a)
check("headers", r.getheader("X-Content-Type-Options") == "nosniff" and r.getheader("Cache-Control") == "no-store"
      and r.getheader("X-Request-Id"), r.getheaders())
check("request id", s.get("/health", headers={"X-Request-Id": "my-id.1"})[2].getheader("X-Request-Id") == "my-id.1")
status, a, _ = s.get("/v1/models")
name = a["data"][0]["id"]
check("models", status == 200 and name == os.path.basename(model) and a["data"][0]["meta"]["vocab_size"] == 260, a)
check("one model", s.get("/v1/models/" + name)[0] == 200 and s.get("/v1/models/x")[1]["error"]["code"] == "model_not_found")
check("head", s.call("HEAD", "/v1/models")[0] == 200)

prompt = "The state of a session"
for temp, seed in ((0, 0), (0.9, 7)):
    want = generate(prompt, 60, "--temp", str(temp), "-s", str(seed), "--ignore-eos")
    body = {"prompt": prompt, "max_tokens": 60, "temperature": temp, "seed": seed, "ignore_eos": True,
            "return_token_ids": True}
    status, a, _ = s.post("/v1/completions", body)
    c = a["choices"][0]
    check("the ids of hola generate", status == 200 and c["token_ids"] == want["ids"], a)
    check("its text", c["text"] == want["text"], (c["text"], want["text"]))
    check("usage", a["usage"]["prompt_tokens"] == want["prompt_tokens"] and a["usage"]["completion_tokens"] == 60
          and a["usage"]["total_tokens"] == want["prompt_tokens"] + 60 and a["seed"] == seed, a)
    check("names", a["object"] == "text_completion" and a["id"].startswith("cmpl-") and c["finish_reason"] == "length"
          and a["system_fingerprint"].startswith("hola-"), a)
    _, events, raw = s.stream("/v1/completions", dict(body, stream_options={"include_usage": True}))
    check("a stream ends", events[-1] == "[DONE]" and events[-2]["choices"] == [] and events[-2]["usage"]["completion_tokens"] == 60)
    text = "".join(e["choices"][0]["text"] for e in events[:-2])
    check("a stream joined is the answer", text == want["text"], (text, want["text"]))
    check("a stream's ids", sum((e["choices"][0].get("token_ids", []) for e in events[:-2]), []) == want["ids"])
    check("a stream's last event", events[-3]["choices"][0]["finish_reason"] == "length" and events[-3]["choices"][0]["text"] == "")
    check("the same prompt is not read again", events[-2]["usage"]["prompt_tokens_details"]["cached_tokens"] >= want["prompt_tokens"] - 1,
          events[-2])

# events of text alone are written another way than those with more in them: the same JSON all the same
for path, more in (("/v1/completions", {"prompt": "Odd: \u00e9\"\\\n"}), ("/v1/chat/completions", {"messages": [{"role": "user", "content": "Odd"}]})):
    for options in ({}, {"stream_options": {"include_usage": True}}):
        bias = {str(i): 12 for i in (0, 1, 8, 9, 10, 12, 13, 31, 34, 92, 127, 195, 169, 237, 160, 128)}  # controls, quotes, parts of characters
        odd = dict(more, max_tokens=200, temperature=1, seed=9, ignore_eos=True, logit_bias=bias, **options)
        plain, whole = s.stream(path, odd)[1], s.stream(path, dict(odd, return_token_ids=True))[1]
        with_text = []
        for events in (plain, whole):
            for e in events[:-1]:
                e.pop("id"), e.pop("created"), e.pop("timings", None)
                for x in e["choices"]:
                    x.pop("token_ids", None)
            with_text.append([(list(e), [list(x) for x in e["choices"]], e) for e in events[:-1] if e["choices"] and not e["choices"][0]["finish_reason"]])
        check("the same events of %s" % path, len(with_text[0]) > 20 and with_text[0] == with_text[1], with_text)
        joined = json.dumps(with_text[0])
        check("... odd ones", all(x in joined for x in ("\\u0001", "\\\"", "\\\\", "\\n", "\\ufffd")), joined)

# many at once: each as alone
wants = [generate("Prompt %d" % i, 30, "--temp", "1", "-s", str(i), "--ignore-eos") for i in range(6)]
got = [None] * 6


def ask(i):
    got[i] = s.post("/v1/completions", {"prompt": "Prompt %d" % i, "max_tokens": 30, "temperature": 1, "seed": i,
                                        "ignore_eos": True, "return_token_ids": True})[1]


threads = [threading.Thread(target=ask, args=(i,)) for i in range(6)]
[t.start() for t in threads]
[t.join() for t in threads]
for i in range(6):
    check("at once as alone", got[i]["choices"][0]["token_ids"] == wants[i]["ids"], got[i])
status, a, _ = s.post("/v1/completions", {"prompt": ["Prompt 0", "Prompt 1"], "n": 2, "max_tokens": 30, "temperature": 1,
                                          "seed": 0, "ignore_eos": True, "return_token_ids": True})
check("prompts x n", status == 200 and [c["index"] for c in a["choices"]] == [0, 1, 2, 3]
      and a["choices"][0]["token_ids"] == wants[0]["ids"], a)
check("completion_tokens of all", a["usage"]["completion_tokens"] == 120 and a["usage"]["prompt_tokens"] == 18, a["usage"])

# stop strings, EOS, echo, logprobs
full = generate(prompt, 60, "--temp", "0", "--ignore-eos")
mid = full["text"].encode("utf-8", "replace").decode()
stop = next(mid[i:i + 2] for i in range(10, 50) if mid[i:i + 2].isascii() and mid[i:i + 2].isprintable())
want = generate(prompt, 60, "--temp", "0", "--ignore-eos", "--stop", stop)
status, a, _ = s.post("/v1/completions", {"prompt": prompt, "max_tokens": 60, "temperature": 0, "ignore_eos": True, "stop": stop,
                                          "return_token_ids": True})
c = a["choices"][0]
check("a stop string", c["finish_reason"] == "stop" and c["text"] == want["text"] and stop not in c["text"]
      and a["usage"]["completion_tokens"] == len(want["ids"]), (a, want))
_, events, _ = s.stream("/v1/completions", {"prompt": prompt, "max_tokens": 60, "temperature": 0, "ignore_eos": True, "stop": stop})
check("... in a stream", "".join(e["choices"][0]["text"] for e in events[:-1]) == want["text"])
status, a, _ = s.post("/v1/completions", {"prompt": "Hello", "max_tokens": 0, "echo": True, "logprobs": 1})
l = a["choices"][0]["logprobs"]
ids = os.path.join(work, "ids.json")
with open(ids, "w") as f:
    json.dump([256] + list(b"Hello"), f)
score = json.loads(subprocess.run([HOLA, "score", "-m", model, "--ids", ids, "--json"], capture_output=True, check=True).stdout)
check("echo with logprobs", a["choices"][0]["text"] == "Hello" and l["token_logprobs"][0] is None and len(l["tokens"]) == 6
      and max(abs(x - y) for x, y in zip(l["token_logprobs"][1:], score["logprobs"])) < 1e-4, (l, score))
check("the token is among the top ones", all(t in top for t, top in zip(l["tokens"][1:], l["top_logprobs"][1:])), l)
status, a, _ = s.post("/v1/completions", {"prompt": list(b"Hello"), "max_tokens": 3, "logprobs": 5, "echo": True})
check("ids as a prompt", status == 200 and a["usage"]["prompt_tokens"] == 5 and a["choices"][0]["text"].startswith("Hello"), a)
check("an empty prompt is BOS", s.post("/v1/completions", {"prompt": ""})[1]["usage"]["prompt_tokens"] == 1)
check("NUL in a prompt is a token", s.post("/v1/completions", {"prompt": "a\0b"})[1]["usage"]["prompt_tokens"] == 4)
a = s.post("/v1/completions", {"prompt": "x", "max_tokens": 5, "logit_bias": {"65": 100}})[1]
check("logit_bias", a["choices"][0]["text"] == "AAAAA", a)

# chat
messages = [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "Hi"}]
status, a, _ = s.post("/apply-template", {"messages": messages})
check("apply-template", a == {"prompt": "Be kind.\n\nUser:\nHi\n\nAssistant:\n"}, a)
status, chat, _ = s.post("/v1/chat/completions", {"messages": messages, "max_tokens": 20, "temperature": 0, "logprobs": True,
                                                  "top_logprobs": 2})
check("chat", status == 200 and chat["object"] == "chat.completion" and chat["choices"][0]["message"]["role"] == "assistant", chat)
l = chat["choices"][0]["logprobs"]["content"]
check("chat's logprobs", len(l) == chat["usage"]["completion_tokens"] and set(l[0]) == {"id", "token", "logprob", "bytes", "top_logprobs"}
      and len(l[0]["top_logprobs"]) in (2, 3), l[:1])
same = s.post("/v1/completions", {"prompt": a["prompt"], "max_tokens": 20, "temperature": 0, "stop": "\n\nUser:"})[1]
check("chat is its template", same["choices"][0]["text"] == chat["choices"][0]["message"]["content"], (same, chat))
_, events, _ = s.stream("/v1/chat/completions", {"messages": messages, "max_tokens": 20, "temperature": 0})
check("chat's stream", events[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
      and "".join(e["choices"][0]["delta"].get("content", "") for e in events[:-1]) == chat["choices"][0]["message"]["content"], events)
parts = [{"role": "developer", "content": [{"type": "text", "text": "Be"}, {"type": "text", "text": "kind."}]},
         {"role": "user", "content": "Hi"}, {"role": "assistant", "content": "So"}]
check("parts, and an answer that goes on", s.post("/apply-template", {"messages": parts})[1]["prompt"]
      == "Be\nkind.\n\nUser:\nHi\n\nAssistant:\nSo")

# tokens
check("tokenize", s.post("/tokenize", {"content": "ab"})[1] == {"tokens": [97, 98]})
check("with pieces", s.post("/tokenize", {"content": "\u00e4", "with_pieces": True, "add_special": True})[1]["tokens"]
      == [{"id": 256, "piece": ""}, {"id": 195, "piece": [195]}, {"id": 164, "piece": [164]}])
check("detokenize", s.post("/detokenize", {"tokens": [256, 97, 98, 255]})[1] == {"content": "ab\ufffd"})

# ---- sessions ----

status, a, _ = s.post("/v1/sessions", {"id": "first", "metadata": {"title": "A"}})
check("a session", status == 201 and a["id"] == "first" and a["position"] == 0 and a["metadata"] == {"title": "A"}, a)
check("twice", s.post("/v1/sessions", {"id": "first"})[1]["error"]["code"] == "session_exists")
body = {"session": "first", "prompt": "Once", "max_tokens": 10, "temperature": 0, "ignore_eos": True}
one = s.post("/v1/completions", body)[1]
check("a turn", one["session"] == {"id": "first", "position": 15} and one["usage"]["prompt_tokens"] == 5, one)
two = s.post("/v1/completions", dict(body, prompt=" upon"))[1]
check("another", two["session"]["position"] == 30 and two["usage"]["prompt_tokens"] == 5, two)
save = os.path.join(work, "save")
generate("Once", 10, "--temp", "0", "--ignore-eos", "--save-session", save)
want = generate(" upon", 10, "--temp", "0", "--ignore-eos", "--load-session", save)
check("as --load-session", two["choices"][0]["text"] == want["text"], (two, want))
undone = s.post("/v1/sessions/first/rollback", {"turns": 1})[1]
check("undo", undone["position"] == 15 and "reread" in undone, undone)
again = s.post("/v1/completions", dict(body, prompt=" upon"))[1]
check("... and the same again", again["choices"][0]["text"] == two["choices"][0]["text"])
status, fork, _ = s.post("/v1/sessions/first/fork", {"id": "second", "position": 15})
check("fork", status == 201 and fork["parent"] == "first" and fork["position"] == 15, fork)
check("its text", s.post("/v1/completions", dict(body, session="second", prompt=" upon"))[1]["choices"][0]["text"]
      == two["choices"][0]["text"])
dropped = s.post("/v1/completions", dict(body, prompt="?", fork=True, n=3))[1]
check("questions on a fork", len(dropped["choices"]) == 3 and "session" not in dropped
      and s.get("/v1/sessions/first")[1]["position"] == 30, dropped)
kept = s.post("/v1/completions", dict(body, prompt="?", fork="third"))[1]
check("a fork that is kept", kept["session"]["id"] == "third" and kept["session"]["position"] == 41, kept)
tokens = s.get("/v1/sessions/first/tokens?from=0&to=5")[1]
check("its tokens", tokens["ids"] == [256] + list(b"Once") and tokens["pieces"] == ["", "O", "n", "c", "e"], tokens)
check("its messages", [m["role"] for m in s.get("/v1/sessions/first/messages")[1]] == ["text", "text"])
memory = s.get("/v1/sessions/third/memory")[1]
check("its memory", memory["object"] == "session.memory" and memory["closed"] == 32 and len(memory["kept"]) == 4
      and len(memory["kept"][0]["positions"]) == 8 and memory["kept"][0]["positions"] == sorted(memory["kept"][0]["positions"])
      and str(memory["kept"][0]["positions"][0]) in memory["pieces"], memory)
check("narrowed", len(s.get("/v1/sessions/third/memory?layer=1&head=0")[1]["kept"]) == 1)
check("nothing new", s.get("/v1/sessions/third/memory?since=32")[0] == 204)
check("out of range", s.get("/v1/sessions/third/memory?layer=2")[1]["error"]["param"] == "layer")
listed = s.get("/v1/sessions?limit=2")[1]
check("the list", len(listed["data"]) == 2 and listed["has_more"], listed)
rest = s.get("/v1/sessions?after=" + listed["data"][1]["id"])[1]
check("... goes on", [x["id"] for x in listed["data"] + rest["data"]].count("first") == 1 and not rest["has_more"], rest)
check("metadata", s.post("/v1/sessions/first", {"metadata": {"x": "y"}})[1]["metadata"] == {"x": "y"})
status, data, _ = s.get("/v1/sessions/first/file")
with open(save + "2", "wb") as f:
    f.write(data)
check("its file is hola generate's", generate("", 5, "--temp", "0", "--load-session", save + "2")["ids"] is not None)
status, a, _ = s.call("PUT", "/v1/sessions/fourth/file", data, {"Content-Type": "application/octet-stream"})
check("a file makes a session", status == 201 and a["position"] == 30, a)
talk = {"session": "chat", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 6, "temperature": 0}
status, a, _ = s.post("/v1/chat/completions", talk)
check("no such session", status == 404 and a["error"]["code"] == "session_not_found", a)
s.post("/v1/sessions", {"id": "chat"})
for content in ("Hi", "And?"):
    s.post("/v1/chat/completions", dict(talk, messages=[{"role": "user", "content": content}]))
got = s.get("/v1/sessions/chat/messages")[1]
check("a chat's messages", [m["role"] for m in got] == ["user", "assistant", "user", "assistant"] and got[0]["content"] == "Hi"
      and got[2]["content"] == "And?", got)
check("... cover its text", [m["from"] for m in got[1:]] == [m["to"] for m in got[:-1]], got)
text = s.get("/v1/sessions/chat/tokens")[1]["ids"]
want = s.post("/apply-template", {"messages": [{"role": m["role"], "content": m["content"]} for m in got[:3]]})[1]["prompt"]
if all(m["content"].isascii() for m in got[:3]):
    check("... as the template has it", bytes(x for x in text if x < 256).decode("utf-8", "replace").startswith(want), want)
check("saved", s.post("/v1/sessions/chat/save", {})[1]["saved_position"] == len(text))
check("deleted", s.call("DELETE", "/v1/sessions/fourth")[1] == {"id": "fourth", "object": "session.deleted", "deleted": True}
      and s.get("/v1/sessions/fourth")[0] == 404)

# ---- the server goes, and comes back ----

check("it ends well", s.stop() == 0)
s = Server(model, "--tokenizer", "byte", "--session-dir", sessions, "--parallel", "4")
a = s.get("/v1/sessions/first")[1]
check("sessions survive", a["position"] == 30 and a["where"] == "disk" and a["metadata"] == {"x": "y"}, a)
check("... with their messages", s.get("/v1/sessions/chat/messages")[1] == got)
third = s.post("/v1/completions", dict(body, session="third", prompt="!"))[1]
s.post("/v1/sessions/third/save", {})
s.post("/v1/completions", dict(body, session="third", prompt="!!"))
s.stop(signal.SIGKILL)
left = sorted(f for f in os.listdir(sessions) if not f.startswith("."))
s = Server(model, "--tokenizer", "byte", "--session-dir", sessions)
a = s.get("/v1/sessions/third")[1]
check("after kill -9 it is as it was saved", a["position"] == third["session"]["position"], (a, left))
check("the metrics", s.metric("hola_sessions{where=\"disk\"}") == 4 and "hola_build_info{" in s.get("/metrics", raw=True)[1].decode())
check("it ends", s.stop() == 0)

# with no argument but a free port: the bundled model, and what to open
bundled = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "models", "hola-tiny")
p = subprocess.Popen([HOLA, "serve", "--port", "0"], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                     env=dict(os.environ, HOLA_MODEL=bundled))
port = int(p.stdout.readline().split(b":")[-1])
c = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
c.request("GET", "/")
check("the page of the bundled model", b"hola" in c.getresponse().read())
c.close()
p.terminate()
check("it says what to open", p.wait(60) == 0 and b"in a browser" in p.stderr.read())
p.stdout.close(), p.stderr.close()
finish()
