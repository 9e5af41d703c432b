"""serve_streams.py -- many clients of a server at once, and when each of their tokens came. The standard library alone."""
import json
import os
import select
import selectors
import socket
import time


class Streams:
    """Many requests at once, and when each of their tokens came."""
    TOKEN = b'"finish_reason":null'

    def __init__(self, port, **fields):
        """fields: of every request."""
        self.port, self.look, self.all, self.fields = port, selectors.DefaultSelector(), [], fields

    def add(self, body, name=None):
        k = socket.create_connection(("127.0.0.1", self.port), 30)
        x = dict(sock=k, rest=b"", at=[], done=False, name=name, began=time.monotonic())
        body = json.dumps(dict(dict(self.fields, stream=True, ignore_eos=True, temperature=0, cache_prompt=False), **body)).encode()
        head = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
        k.sendall(head % len(body) + body)
        k.setblocking(False)
        self.look.register(k, selectors.EVENT_READ, x)
        self.all.append(x)
        return x

    def run(self, until, seconds=3600):
        """Reads until until() is true."""
        end = time.monotonic() + seconds
        while not until() and time.monotonic() < end:
            for key, _ in self.look.select(0.05):
                x = key.data
                got = x["sock"].recv(1 << 16)
                now = time.monotonic()
                data = x["rest"] + got
                whole = data.rfind(b"\n\n") + 2 if b"\n\n" in data else 0
                x["rest"] = data[whole:]
                x["at"] += [now] * data.count(self.TOKEN, 0, whole)
                last = data[max(0, whole - 400):whole]  # the end, or an error, comes last
                refused = not x["at"] and data[:5] == b"HTTP/" and data[8:13] not in (b"", b" 200 ")
                if not got or refused or b"data: [DONE]" in last or b'"error":' in last:
                    x["done"] = True
                    x["ended"] = now
                    self.look.unregister(x["sock"])
                    x["sock"].close()
        return until()

    def close(self):
        for x in self.all:
            if not x["done"]:
                self.look.unregister(x["sock"])
                x["sock"].close()
                x["done"] = True


def gaps(streams, begin, end):
    out = []
    for x in streams:
        at = [t for t in x["at"] if begin <= t <= end]
        out += [b - a for a, b in zip(at, at[1:])]
    return out


def p99(x):
    x = sorted(x)
    return x[min(len(x) - 1, int(0.99 * len(x)))]


def ms(x):
    return "%.1f ms" % (1000 * x)


class Elsewhere:
    """f() in a process of its own."""

    def __init__(self, f):
        there, here = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            try:
                os.close(there)
                with os.fdopen(here, "w") as out:
                    json.dump(f(), out)
            finally:
                os._exit(0)
        os.close(here)
        self.pipe = there

    def ended(self):
        """Whether its result, or a part of it, is there."""
        return bool(select.select([self.pipe], [], [], 0)[0])

    def result(self):
        with os.fdopen(self.pipe) as x:
            out = json.load(x)
        os.waitpid(self.pid, 0)
        return out


def together(n, f):
    """The joined lists of f(0) to f(n - 1), each in a process of its own where there are several."""
    if n == 1:
        return f(0)
    parts = [Elsewhere(lambda i=i: f(i)) for i in range(n)]
    return [x for part in parts for x in part.result()]
