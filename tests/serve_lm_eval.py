"""serve_lm_eval.py MODEL DIR -- lm-evaluation-harness's local-completions, unmodified, against the server: the
log-likelihoods it works with are those of `hola score`. HOLA_TEST_PYTHON names a Python that has lm_eval and
transformers; the task and its data are made here, nothing is downloaded."""
import json
import os
import subprocess
import sys

os.environ.update(HF_HUB_OFFLINE="1", HF_DATASETS_OFFLINE="1", TOKENIZERS_PARALLELISM="false", TRANSFORMERS_VERBOSITY="error")
try:
    import importlib.util
    if not all(importlib.util.find_spec(m) for m in ("lm_eval", "transformers", "tokenizers", "aiohttp")):
        raise ImportError
except ImportError:
    other = os.environ.get("HOLA_TEST_PYTHON")
    if other and not os.environ.get("HOLA_TEST_INNER"):
        sys.exit(subprocess.call([other, *sys.argv], env=dict(os.environ, HOLA_TEST_INNER="1")))
    print("SKIP lm-evaluation-harness: lm_eval with transformers is not installed (HOLA_TEST_PYTHON names a Python that has them)")
    sys.exit(77)
from serve_client import HOLA, Server, check, finish

model, work = sys.argv[1:3]
work = os.path.join(work, "lm_eval")
os.makedirs(work, exist_ok=True)
os.environ["HF_HOME"] = os.path.join(work, "home")

# the byte tokenizer as transformers has it: every byte is its own id
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

chars = list(range(33, 127)) + list(range(161, 173)) + list(range(174, 256))
table = {b: chr(b) for b in chars}
table.update({b: chr(256 + i) for i, b in enumerate(b for b in range(256) if b not in chars)})
t = Tokenizer(models.BPE({c: b for b, c in table.items()}, []))
t.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
t.decoder = decoders.ByteLevel()
t.add_special_tokens(["<bos>", "<eos>"])
t.save(os.path.join(work, "tokenizer.json"))
with open(os.path.join(work, "tokenizer_config.json"), "w") as f:
    json.dump({"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<bos>", "eos_token": "<eos>"}, f)

# two tasks
questions = [{"q": "The sky is", "c": [" blue", " a fish", " seven"], "a": 0}, {"q": "Two and two are", "c": [" five", " four"], "a": 1},
             {"q": "Once upon", "c": [" a time", " \u00e4 mouse", " the hill"], "a": 0}]
with open(os.path.join(work, "data.jsonl"), "w") as f:
    f.writelines(json.dumps(x) + "\n" for x in questions)
data = "dataset_path: json\ndataset_kwargs:\n  data_files:\n    test: %s\ntest_split: test\nmetadata:\n  version: 1\n" % os.path.join(work, "data.jsonl")
with open(os.path.join(work, "choice.yaml"), "w") as f:
    f.write("task: tiny_choice\noutput_type: multiple_choice\ndoc_to_text: '{{q}}'\ndoc_to_choice: '{{c}}'\ndoc_to_target: '{{a}}'\n"
            "target_delimiter: ''\nmetric_list:\n  - metric: acc\n" + data)
with open(os.path.join(work, "write.yaml"), "w") as f:
    f.write("task: tiny_write\noutput_type: generate_until\ndoc_to_text: '{{q}}'\ndoc_to_target: '{{a}}'\ngeneration_kwargs:\n"
            "  until: ['\\n']\n  max_gen_toks: 12\n  do_sample: false\nmetric_list:\n  - metric: exact_match\n" + data)

import lm_eval
from lm_eval.tasks import TaskManager

s = Server(model, "--tokenizer", "byte", "--log", "none")
name = s.get("/v1/models")[1]["data"][0]["id"]
result = lm_eval.simple_evaluate(
    model="local-completions",
    model_args=dict(model=name, base_url="http://127.0.0.1:%d/v1/completions" % s.port, tokenizer=work, tokenizer_backend="huggingface",
                    num_concurrent=2, max_retries=1, max_length=2048),
    tasks=["tiny_choice", "tiny_write"], task_manager=TaskManager(include_path=work, include_defaults=False), batch_size=1,
    log_samples=True, bootstrap_iters=0)


def score(text, more):
    """The sum over `more`, behind `text`, as the program itself has it."""
    path = os.path.join(work, "ids.json")
    with open(path, "w") as f:
        json.dump(list((text + more).encode()), f)
    out = subprocess.run([HOLA, "score", "-m", model, "--ids", path, "--json"], capture_output=True, check=True).stdout
    return sum(json.loads(out)["logprobs"][len(text.encode()) - 1:])


right = 0
for x in result["samples"]["tiny_choice"]:
    got = [r[0] for r in x["filtered_resps"]]
    want = [score(x["doc"]["q"], c) for c in x["doc"]["c"]]
    check("log-likelihoods", len(got) == len(want) and max(abs(float(a) - b) for a, b in zip(got, want)) < 1e-3, (got, want))
    right += max(range(len(want)), key=want.__getitem__) == x["doc"]["a"]
acc = next(v for k, v in result["results"]["tiny_choice"].items() if k.startswith("acc,"))
check("accuracy", abs(acc - right / 3) < 1e-9, result["results"])
for x in result["samples"]["tiny_write"]:
    prompt = list(x["doc"]["q"].encode())
    a = s.post("/v1/completions", {"prompt": prompt, "max_tokens": 12, "temperature": 0, "stop": ["\n"]})[1]
    check("what it writes", x["filtered_resps"][0] == a["choices"][0]["text"], (x["filtered_resps"], a))
check("it ends", s.stop() == 0)
finish()
