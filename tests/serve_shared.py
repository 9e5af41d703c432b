"""serve_shared.py MODEL DIR -- several servers and one session folder: turns of one conversation anywhere, owners that
are killed or stopped (serve_proxy.py has proxies before them)."""
import json
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from serve_client import HOLA, Server, check, finish, request, soon

model, work = sys.argv[1:3]
folder = os.path.join(work, "shared")
basic = ("--tokenizer", "byte", "--log", "none", "--parallel", "4")
LEASE = 1.5
lone = Server(model, *basic)


def worker(*more, **k):
    return Server(model, *basic, "--session-dir", folder, "--shared-sessions", "--session-lease", str(LEASE), *more, **k)


def turn(server, session, prompt, n=7, **more):
    body = dict({"session": session, "prompt": prompt, "max_tokens": n, "temperature": 0, "seed": 1, "ignore_eos": True, "return_token_ids": True},
                **more)
    return server.post("/v1/completions", body)


def ids(server, session):
    return server.get("/v1/sessions/%s/tokens" % session)[1]["ids"]


def same(what, session, server):
    """The session is, to the bit, the lone server's of that name."""
    a, b = server.get("/v1/sessions/%s/file" % session)[1], lone.get("/v1/sessions/%s/file" % session)[1]
    return check("%s: as its lone replay" % what, isinstance(a, bytes) and a == b and ids(server, session) == ids(lone, session))


def begin_stream(server, session, prompt):
    """A turn without end that has begun."""
    k = server.connect()
    body = {"session": session, "prompt": prompt, "max_tokens": 1000000, "temperature": 0, "ignore_eos": True, "stream": True}
    k.sendall(request(b"POST", b"/v1/completions", json.dumps(body).encode()))
    while b"data: " not in k.recv(65536):
        pass
    return k


def rest(k):
    out = b""
    try:
        while True:
            got = k.recv(65536)
            if not got:
                break
            out = (out + got)[-3000:]
    except OSError:
        pass
    k.close()
    return out


code = lambda a: a[1]["error"]["code"] if isinstance(a[1], dict) and "error" in a[1] else a[1]
w = [worker(), worker()]
# one that does not share stays out (it waits for 5 s first)
alone = subprocess.Popen([HOLA, "serve", "-m", model, *basic, "--port", "0", "--session-dir", folder, "--timeout-drain", "0.01"],
                         stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)

# turns of one conversation, in turn
for s in (lone, w[0]):
    s.post("/v1/sessions", {"id": "talk", "metadata": {"a": "b"}})
for i in range(6):
    want, got = turn(lone, "talk", " turn %d" % i), turn(w[i % 2], "talk", " turn %d" % i)
    check("turn %d as alone" % i, got[0] == 200 and got[1]["choices"] == want[1]["choices"] and got[1]["session"] == want[1]["session"],
          (got[1], want[1]))
same("turns in turn", "talk", w[0]), same("turns in turn", "talk", w[1])
for s in (lone, w[1]):
    s.post("/v1/sessions", {"id": "chat"})
for i in range(4):
    body = {"session": "chat", "messages": [{"role": "user", "content": "Question %d" % i}], "max_tokens": 6, "temperature": 0}
    check("chat", lone.post("/v1/chat/completions", body)[1]["choices"] == w[i % 2].post("/v1/chat/completions", body)[1]["choices"])
check("its messages", w[0].get("/v1/sessions/chat/messages")[1] == w[1].get("/v1/sessions/chat/messages")[1]
      == lone.get("/v1/sessions/chat/messages")[1])

# what one does, the other sees
check("listed", {x["id"] for x in w[1].get("/v1/sessions")[1]["data"]} == {"talk", "chat"})
check("made once", code(w[1].post("/v1/sessions", {"id": "talk"})) == "session_exists")
check("metadata", w[1].post("/v1/sessions/talk", {"metadata": {"x": "y"}})[0] == 200
      and w[0].get("/v1/sessions/talk")[1]["metadata"] == {"x": "y"})
a = [s.post("/v1/sessions/talk/rollback", {"turns": 2}) for s in (lone, w[1])]
check("rollback", a[0][1]["position"] == a[1][1]["position"] == a[1][1]["saved_position"], a)
same("rollback", "talk", w[0])
a = w[0].post("/v1/sessions/talk/fork", {"id": "copy", "position": 12})
check("fork", a[0] == 201 and w[1].get("/v1/sessions/copy")[1]["position"] == 12, a[1])
a = turn(w[1], "talk", "?", fork="kept")
check("a fork that is kept", a[0] == 200 and ids(w[0], "kept")[-7:] == a[1]["choices"][0]["token_ids"], a[1])
data = w[0].get("/v1/sessions/kept/file")[1]
check("a file", w[1].call("PUT", "/v1/sessions/file/file", data, {"Content-Type": "application/octet-stream"})[0] == 201
      and w[0].get("/v1/sessions/file")[1]["position"] == w[0].get("/v1/sessions/kept")[1]["position"])
check("deleted", w[1].call("DELETE", "/v1/sessions/file")[0] == 200 and w[0].get("/v1/sessions/file")[0] == 404
      and w[0].call("DELETE", "/v1/sessions/file")[0] == 404)

# busy there is busy here
k = begin_stream(w[0], "kept", "go")
a = turn(w[1], "kept", "no")
check("409 elsewhere", a[0] == 409 and code(a) == "session_busy" and a[2].getheader("Retry-After"), a[1])
check("... and seen", w[1].get("/v1/sessions/kept")[1]["busy"] is True)
check("no copy of it", code(w[1].post("/v1/sessions/kept/fork", {})) == "session_busy" and code(turn(w[1], "kept", "?", fork=True)) == "session_busy")
check("no rollback", code(w[1].post("/v1/sessions/kept/rollback", {"turns": 1})) == "session_busy")
time.sleep(LEASE * 1.2)  # it is renewed
check("still 409", turn(w[1], "kept", "no")[0] == 409)
check("deleted there", w[1].call("DELETE", "/v1/sessions/kept")[0] == 200)
out = rest(k)
check("... the stream ends with an error", b'"session_not_found"' in out and b"[DONE]" not in out, out[-300:])
check("... and it does not come back", w[0].get("/v1/sessions/kept")[0] == 404 and w[1].get("/v1/sessions/kept")[0] == 404)

# both at once: every turn that was answered is there, once, in its order
for s in (lone, w[0]):
    s.post("/v1/sessions", {"id": "race"})
done, refused, lock = [], [0], threading.Lock()


def racer(server, name):
    for i in range(8):
        a = turn(server, "race", "%s%d" % (name, i), 3)
        with lock:
            if a[0] == 200:
                done.append((a[1]["session"]["position"], "%s%d" % (name, i), a[1]["choices"][0]["text"]))
            else:
                refused[0] += 1
                if code(a) != "session_busy":
                    check("a racer", False, a[1])


ts = [threading.Thread(target=racer, args=(w[i % 2], "abcd"[i])) for i in range(4)]
[t.start() for t in ts]
[t.join() for t in ts]
done.sort()
check("some were answered, each at a place of its own", len(done) >= 1 and len({d[0] for d in done}) == len(done), (done, refused))
for position, prompt, text in done:
    b = turn(lone, "race", prompt, 3)[1]
    if not check("as in their order", (b["session"]["position"], b["choices"][0]["text"]) == (position, text), (b, position, text)):
        break
same("after a race", "race", w[1])

# kill -9 of the owner in mid-turn: what was answered is there, the session moves when the lease is over
for s in (lone, w[0]):
    s.post("/v1/sessions", {"id": "dies"})
turn(lone, "dies", "one"), turn(w[0], "dies", "one")
k = begin_stream(w[0], "dies", "lost")
w[0].stop(signal.SIGKILL)
k.close()
start = time.time()
check("held for a while", turn(w[1], "dies", "two")[0] == 409 or time.time() - start > LEASE / 2)
got = []
check("then it moves", soon(lambda: got.append(turn(w[1], "dies", "two")) or got[-1][0] == 200) and time.time() - start < LEASE + 15, got[-1:])
check("... as if nothing had been", got[-1][1]["choices"] == turn(lone, "dies", "two")[1]["choices"])
same("after kill -9", "dies", w[1])
w[0] = worker()

# stopped for longer than the lease, and back: it does not write
for s in (lone, w[0]):
    s.post("/v1/sessions", {"id": "stops"})
turn(lone, "stops", "one"), turn(w[0], "stops", "one")
k = begin_stream(w[0], "stops", "lost")
w[0].p.send_signal(signal.SIGSTOP)
got = []
check("taken from one that is stopped", soon(lambda: got.append(turn(w[1], "stops", "two")) or got[-1][0] == 200), got[-1:])
check("... as if nothing had been", got[-1][1]["choices"] == turn(lone, "stops", "two")[1]["choices"])
w[0].p.send_signal(signal.SIGCONT)
out = rest(k)
check("its own stream ends with an error", b'"session_busy"' in out and b"[DONE]" not in out, out[-300:])
same("after a stop", "stops", w[1]), same("after a stop", "stops", w[0])
check("and they go on", turn(w[0], "stops", "three")[1]["choices"] == turn(lone, "stops", "three")[1]["choices"])
same("after all", "stops", w[1])
left = [f for f in os.listdir(folder) if f.endswith(".tmp") or f.endswith(".lease")]
check("nothing is left lying about", left == [], left)

# a turn that cannot be written did not happen
full = worker(limit=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (3000, 3000)))
full.post("/v1/sessions", {"id": "full"})
a = turn(full, "full", "x")
check("507", a[0] == 507 and code(a) == "disk_full", a[1])
check("... it is as before", full.get("/v1/sessions/full")[1]["position"] == 0)
check("... and free for others", turn(w[1], "full", "x")[0] == 200)
full.stop()
check("one that does not share stays out", alone.wait(60) == 1 and b"another process" in alone.stderr.read())
alone.stderr.close()

[x.stop() for x in w if x.p.poll() is None]
check("it ends", lone.stop() == 0)
finish()
