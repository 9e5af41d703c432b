"""chat_terminal.py HOLA ARGS...: hola generate -i ARGS on a terminal, with Ctrl-C and Ctrl-D. Prints what went wrong."""
import os, pty, re, select, signal, sys, termios, time


class Chat:
    def __init__(self, args):
        self.seen = b""
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.environ["TERM"] = "dumb"
            os.execv(args[0], [args[0], "generate", "-i", *args[1:]])

    def read(self, until, seconds=20.0):
        """Waits until the pattern has come; what came before it is forgotten."""
        end = time.monotonic() + seconds
        while not re.search(until, self.seen):
            if time.monotonic() > end:
                raise SystemExit(f"no {until!r} in {self.seen!r}")
            if select.select([self.fd], [], [], 0.2)[0]:
                try:
                    self.seen += os.read(self.fd, 4096)
                except OSError:
                    raise SystemExit(f"ended without {until!r}: {self.seen!r}")
        self.seen = self.seen[re.search(until, self.seen).end() :]

    def send(self, text):
        os.write(self.fd, text)

    def status(self, seconds=20.0):
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if select.select([self.fd], [], [], 0.1)[0]:
                try:
                    self.seen += os.read(self.fd, 4096)
                except OSError:
                    pass
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                return status
        os.kill(self.pid, signal.SIGKILL)
        raise SystemExit(f"it does not end: {self.seen!r}")


def begin(args):
    chat = Chat(args)
    chat.read(rb"/help lists commands")
    chat.read(rb"> ")
    end = time.monotonic() + 2  # with libedit, keys come as they are typed
    while termios.tcgetattr(chat.fd)[3] & termios.ICANON and time.monotonic() < end:
        time.sleep(0.02)
    return chat


def main():
    args = sys.argv[1:]
    chat = begin(args)
    chat.send(b"half a line\x03")  # Ctrl-C takes it back
    chat.read(rb"Ctrl-C again, or Ctrl-D, ends the conversation")
    chat.send(b"/help\n")
    chat.read(rb"/undo +take back the last turn")
    chat.send(b"\x03")  # once again: the first in a row, since there was a line between
    chat.read(rb"Ctrl-C again")
    chat.send(b"/quit\n")
    if chat.status() != 0:
        raise SystemExit("/quit: not status 0")
    chat = begin(args)
    chat.send(b"\x03")
    chat.read(rb"Ctrl-C again")
    chat.send(b"\x03")  # twice in a row
    if chat.status() != 0:
        raise SystemExit("Ctrl-C twice: not status 0")
    chat = begin(args)
    chat.send(b"\x04")  # Ctrl-D
    if chat.status() != 0:
        raise SystemExit("Ctrl-D: not status 0")


main()
