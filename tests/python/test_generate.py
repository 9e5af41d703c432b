"""Text: generate, stream, batch, stop strings, whole characters, the event loop."""

import asyncio
import json
import subprocess
import threading
import time

import numpy as np
import pytest

import hola

HOT = dict(temperature=1.2, top_k=0, top_p=1.0, min_p=0.0)


def test_text_is_that_of_the_ids(byte):
    for seed in range(20):
        done = byte.generate("ab", max_tokens=40, seed=seed, **HOT)
        assert done.ids.dtype == np.int32 and done.prompt_tokens == 3
        assert done.text == byte.tokenizer.decode(done.ids)
        assert done.finish_reason == ("length" if len(done.ids) == 40 else "stop")
        pieces = list(byte.stream("ab", max_tokens=40, seed=seed, **HOT))
        assert "".join(p.text for p in pieces) == done.text
        assert [p.id for p in pieces][: len(done.ids)] == done.ids.tolist()
        assert done == byte.generate(b"ab", max_tokens=40, seed=seed, **HOT)
        assert done != byte.generate(b"abc", max_tokens=40, seed=seed, **HOT)
    a, b = (byte.generate("ab", max_tokens=40, seed=s, **HOT).ids.tolist() for s in (1, 2))
    assert a != b and a == byte.generate([256, 97, 98], max_tokens=40, seed=1, **HOT).ids.tolist()


def test_greedy_is_what_sessions_give(byte):
    s = byte.session()
    logits, want = s.feed([256, 104, 105]), []
    for _ in range(12):
        want.append(int(logits.argmax()))
        logits = s.feed(want[-1:])
    assert byte.generate("hi", max_tokens=12, temperature=0).ids.tolist() == want


def test_as_the_program(byte, tmp_path):
    byte.save(tmp_path / "m")
    command = [hola.program_path(), "generate", "-m", str(tmp_path / "m"), "--tokenizer", "byte", "-p", "hello"]
    command += ["-n", "30", "--seed", "7", "--json", "--temp", "1.0", "-t", "1"]
    said = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)
    done = hola.Model.load(tmp_path / "m", threads=1, tokenizer="byte").generate(
        "hello", max_tokens=30, seed=7, temperature=1.0
    )
    assert done.ids.tolist() == said["ids"]


def test_batches_give_what_each_gives_alone(byte):
    prompts = ["a", "bcd", [1, 2, 3], "", "a"]
    options = dict(max_tokens=25, seed=4, stop=["e"], **HOT)
    together = byte.generate_batch(prompts, **options)
    for prompt, done in zip(prompts, together):
        alone = byte.generate(prompt, **options)
        assert done.ids.tolist() == alone.ids.tolist()
        assert (done.text, done.finish_reason, done.prompt_tokens) == alone[:1] + alone[2:]
    assert byte.generate_batch([]) == []
    many = byte.generate_batch([[i % 256] for i in range(70)], max_tokens=2, temperature=0)
    assert len(many) == 70 and all(len(c.ids) <= 2 for c in many)


def test_no_tokens(byte):
    done = byte.generate("x", max_tokens=0)
    assert (done.text, done.ids.tolist(), done.finish_reason) == ("", [], "length")
    assert byte.generate_batch(["x"], max_tokens=0)[0].finish_reason == "length"
    assert list(byte.stream("x", max_tokens=0)) == []


def without_stop(byte, seed):
    return byte.generate("ab", max_tokens=60, seed=seed, **HOT).text


def test_stop_strings(byte):
    cut = 0
    for seed in range(12):
        whole = without_stop(byte, seed)
        for k in range(0, len(whole) - 3, 7):
            stop = whole[k : k + 3]
            if "\ufffd" in stop:
                continue
            done = byte.generate("ab", max_tokens=60, seed=seed, stop=stop, **HOT)
            assert done.finish_reason == "stop" and done.text == whole[: whole.index(stop)] and stop not in done.text
            pieces = [p.text for p in byte.stream("ab", max_tokens=60, seed=seed, stop=[stop, "\0\0"], **HOT)]
            assert "".join(pieces) == done.text
            cut += 1
    assert cut > 5
    both = byte.generate("ab", max_tokens=60, seed=0, stop=["never there at all", b"\xff\xff\xff\xff\xff"], **HOT)
    assert both == byte.generate("ab", max_tokens=60, seed=0, **HOT)


class Fixed(hola.Tokenizer):
    """A tokenizer whose end is another id: what a model says next ends the text."""

    eos = -1

    @property
    def eos_id(self):
        return self.eos


def test_the_end_of_a_text(byte, config):
    tokenizer = Fixed("byte")
    m = hola.Model.new(config, seed=3, threads=1, tokenizer=tokenizer)
    whole = m.generate("ab", max_tokens=30, seed=1, **HOT)
    tokenizer.eos = int(whole.ids[10])
    first = whole.ids.tolist().index(tokenizer.eos)
    done = m.generate("ab", max_tokens=30, seed=1, **HOT)
    assert done.finish_reason == "stop" and done.ids.tolist() == whole.ids[:first].tolist()
    assert done.text == m.tokenizer.decode(done.ids)
    # what is held back when the end comes is not lost
    text = m.tokenizer.decode_bytes(done.ids)
    held = m.generate("ab", max_tokens=30, seed=1, stop=text[-1:] + b"\x01\x02\x03", **HOT)
    assert held.text == done.text
    assert "".join(p.text for p in m.stream("ab", max_tokens=30, seed=1, stop=text[-1:] + b"\1\2", **HOT)) == done.text


def train(text, steps=150):
    """A model that says this text by heart."""
    c = hola.Config(hidden_size=32, num_heads=2, head_dim=16, head_v_dim=16, num_hidden_layers=1, vocab_size=258,
                    intermediate_size=64, cache_window=4, cache_chunk=16)  # fmt: skip
    m = hola.Model.new(c, seed=1, threads=1, tokenizer="byte")
    ids = m.tokenizer.encode(text, bos=True)
    with hola.Trainer(m, max_tokens=64) as t:
        for _ in range(steps):
            loss, n = t.accumulate(ids, weight=1 / len(ids))
            t.update(2e-2)
    assert loss / n < 0.1
    return m


def test_pieces_are_whole_characters():
    text = "añ→𝄞 é!"
    m = train(text)
    done = m.generate(text[:1], max_tokens=len(text.encode()) - 1, temperature=0)
    assert text[:1] + done.text == text
    pieces = list(m.stream(text[:1], max_tokens=len(text.encode()) - 1, temperature=0))
    assert [p.text for p in pieces] == ["", "ñ", "", "", "→", "", "", "", "𝄞", " ", "", "é", "!"]
    half = m.generate(text[:1], max_tokens=3, temperature=0)  # ends inside of a character
    assert half.text == "ñ\ufffd" == m.tokenizer.decode(half.ids)
    held = list(m.stream(text[:1], max_tokens=9, temperature=0, stop="→𝄡"))
    assert [p.text for p in held] == ["", "ñ", "", "", "", "", "", "", "→𝄞"]
    assert m.generate(text[:1], max_tokens=20, temperature=0, stop=["𝄞 "]).text == "ñ→"


def test_a_stream_may_be_left(byte):
    stream = byte.stream("x", max_tokens=1000, **HOT)
    next(stream)
    stream.close()
    with pytest.raises(StopIteration):
        next(stream)


def test_the_event_loop_stays_free(byte):
    want = byte.generate("ab", max_tokens=60, seed=3, **HOT).text

    async def collect():
        return "".join([p.text async for p in byte.astream("ab", max_tokens=60, seed=3, **HOT)])

    async def main():
        ticks = 0

        async def tick():
            nonlocal ticks
            while True:
                await asyncio.sleep(0)
                ticks += 1

        ticker = asyncio.ensure_future(tick())
        texts = await asyncio.gather(collect(), collect())
        ticker.cancel()
        return texts, ticks

    texts, ticks = asyncio.run(main())
    assert texts == [want, want] and ticks > 20


def test_a_stream_that_is_cancelled_ends(byte):
    async def main():
        stream = byte.astream("ab", max_tokens=10**6, **HOT)
        async for _ in stream:
            break
        await stream.aclose()
        task = asyncio.ensure_future(byte.astream("ab", max_tokens=10**6, **HOT).__anext__())
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    end = time.monotonic() + 10
    while any(t.name.startswith("hola") for t in threading.enumerate()) and time.monotonic() < end:
        time.sleep(0.01)
    assert not any(t.name.startswith("hola") for t in threading.enumerate())


def test_tokenizers():
    t = hola.Tokenizer("byte")
    assert (t.vocab_size, t.bos_id, t.eos_id) == (258, 256, 257)
    assert t.encode("hé", bos=True, eos=True).tolist() == [256, 104, 195, 169, 257]
    assert t.encode("").dtype == np.int32 and t.encode("").shape == (0,)
    assert t.encode(b"\xff\x00a").tolist() == [255, 0, 97]
    assert (
        t.decode([256, 104, 195, 169, 257]) == "hé"
        and t.decode_bytes([195]) == b"\xc3"
        and t.decode([195]) == "\ufffd"
    )
    big = "añ" * (1 << 19)  # long enough for several threads
    assert t.decode(t.encode(big)) == big
