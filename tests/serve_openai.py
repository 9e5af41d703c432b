"""serve_openai.py MODEL DIR -- the official openai client, unmodified. HOLA_TEST_PYTHON names a Python that has it."""
import os
import subprocess
import sys

try:
    import openai
except ImportError:
    other = os.environ.get("HOLA_TEST_PYTHON")
    if other and not os.environ.get("HOLA_TEST_INNER"):
        sys.exit(subprocess.call([other, *sys.argv], env=dict(os.environ, HOLA_TEST_INNER="1")))
    print("SKIP the openai client: it is not installed (HOLA_TEST_PYTHON names a Python that has it)")
    sys.exit(77)
from serve_client import Server, check, finish

s = Server(sys.argv[1], "--tokenizer", "byte", "--log", "none", env={"HOLA_API_KEY": "k"})
client = openai.OpenAI(base_url="http://127.0.0.1:%d/v1" % s.port, api_key="k")
model = client.models.list().data[0].id
check("models", client.models.retrieve(model).id == model)
a = client.completions.create(model=model, prompt="Hello", max_tokens=10, temperature=0, seed=1)
check("completions", a.choices[0].finish_reason == "length" and a.usage.completion_tokens == 10, a)
parts = list(client.completions.create(model=model, prompt="Hello", max_tokens=10, temperature=0, stream=True))
check("a stream", "".join(p.choices[0].text for p in parts) == a.choices[0].text)
chat = dict(model=model, messages=[{"role": "user", "content": "Hi"}], max_tokens=10, temperature=0)
c = client.chat.completions.create(logprobs=True, top_logprobs=3, **chat)
check("chat", c.choices[0].message.role == "assistant" and len(c.choices[0].logprobs.content) == c.usage.completion_tokens, c)
parts = list(client.chat.completions.create(stream=True, stream_options={"include_usage": True}, **chat))
check("its stream", "".join(p.choices[0].delta.content or "" for p in parts if p.choices) == c.choices[0].message.content
      and parts[-1].usage.total_tokens == c.usage.total_tokens)
for bad, kind in (({"model": "x"}, openai.NotFoundError), ({"temperature": 1000}, openai.BadRequestError)):
    try:
        client.chat.completions.create(**dict(chat, **bad))
        check("an error: %r" % bad, False)
    except kind as e:
        check("an error: %r" % bad, e.body["param"] in bad, e.body)
try:
    openai.OpenAI(base_url=client.base_url, api_key="wrong", max_retries=0).models.list()
    check("a wrong key", False)
except openai.AuthenticationError:
    check("a wrong key", True)
check("it ends", s.stop() == 0)
finish()
