"""hola.lm_eval: requests answered as `hola eval` answers them, tasks by the harness's API and by its program."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import SMALL

import hola

pytest.importorskip("lm_eval")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A model, two tasks and their data."""
    d = tmp_path_factory.mktemp("eval")
    c = hola.Config(**{**SMALL, "max_position_embeddings": 128})
    hola.Model.new(c, seed=1, threads=1).save(d / "model")
    rows = [
        {"q": f"Question {i}: what is {i} + 1?", "a": [f" {i + 1}", f" {i + 2}", " none"], "gold": i % 3}
        for i in range(6)
    ]
    (d / "rows.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))
    common = (
        "dataset_path: json\n"
        f"dataset_kwargs:\n  data_files:\n    test: {d}/rows.jsonl\n"
        'test_split: test\ndoc_to_text: "{{q}}"\n'
    )
    (d / "choice.yaml").write_text(
        f'task: choice\n{common}output_type: multiple_choice\ndoc_to_choice: "{{{{a}}}}"\n'
        "doc_to_target: gold\nmetric_list:\n  - metric: acc\n  - metric: acc_norm\n"
    )
    (d / "rolling.yaml").write_text(
        f'task: rolling\n{common.replace("doc_to_text", "doc_to_target")}doc_to_text: ""\n'
        "output_type: loglikelihood_rolling\nmetric_list:\n  - metric: word_perplexity\n  - metric: byte_perplexity\n"
    )
    return d


@pytest.fixture(scope="module")
def lm(folder):
    from hola.lm_eval import HolaLM

    return HolaLM(pretrained=str(folder / "model"), backend="cpu", tokenizer="byte")


def instances(kind, arguments):
    from lm_eval.api.instance import Instance

    return [Instance(kind, {}, a, i) for i, a in enumerate(arguments)]


def asked(folder, requests):
    (folder / "requests").write_text("".join(json.dumps(r) + "\n" for r in requests))
    command = [hola.program_path(), "eval", "-m", str(folder / "model"), "--tokenizer", "byte", "--backend", "cpu"]
    out = subprocess.run([*command, "--requests", str(folder / "requests")], capture_output=True, check=True, text=True)
    return [json.loads(line) for line in out.stdout.splitlines()]


def test_loglikelihoods(folder, lm):
    pairs = [("a b c", " d"), ("", "start"), ("x" * 300, " y"), ("a b c", " e f "), ("ends in space ", "word")]
    mine = lm.loglikelihood(instances("loglikelihood", pairs), disable_tqdm=True)
    want = asked(folder, [{"type": "loglikelihood", "context": a, "continuation": b} for a, b in pairs])
    assert [greedy for _, greedy in mine] == [w["is_greedy"] for w in want]
    assert all(
        abs(score - w["loglikelihood"]) < 1e-11 for (score, _), w in zip(mine, want)
    )  # as many digits are printed
    assert len({score for score, _ in mine}) == 5


def test_rolling(folder, lm):
    texts = ["short", "long " * 100, "ü → 𝄞"]
    mine = lm.loglikelihood_rolling(instances("loglikelihood_rolling", [(t,) for t in texts]), disable_tqdm=True)
    want = asked(folder, [{"type": "loglikelihood_rolling", "text": t} for t in texts])
    assert all(abs(a - w["loglikelihood"]) < 1e-9 for a, w in zip(mine, want))


def test_generation(folder, lm):
    prompts = ["Name:", "x" * 300, "The"]
    how = {"until": ["\n", "e"], "max_gen_toks": 24}
    mine = lm.generate_until(instances("generate_until", [(p, how) for p in prompts]), disable_tqdm=True)
    want = asked(folder, [{"type": "generate_until", "context": p, **how} for p in prompts])
    assert mine == [w["output"] for w in want]
    assert mine[0] != mine[1]
    other = lm.generate_until(
        instances("generate_until", [("The", {"until": "q", "max_gen_toks": 5})]), disable_tqdm=True
    )
    assert len(other[0].encode()) <= 15


def test_options(folder):
    from hola.lm_eval import HolaLM

    where = str(folder / "model")
    assert HolaLM(where, tokenizer="byte").tok_encode("a") == [256, 97]
    assert HolaLM(where, tokenizer="byte", add_bos_token="False").tok_encode("a") == [97]
    short = HolaLM(where, tokenizer="byte", max_length="16", batch_size=4, device=None)
    assert short.max_length == 16 and HolaLM(where, tokenizer="byte").max_length == 128
    with pytest.raises(hola.InvalidArgument, match="tokenizer"):
        HolaLM(where)
    with pytest.raises(hola.FileError):
        HolaLM(where + "/none")
    with pytest.raises(hola.InvalidArgument):
        HolaLM(where, tokenizer="byte", add_bos_token="perhaps")
    with pytest.raises(TypeError):
        HolaLM(where, colour="red")


@pytest.mark.skipif(not os.environ.get("HOLA_TEST_LM_EVAL"), reason="slow: HOLA_TEST_LM_EVAL=1 runs it")
def test_tasks_both_ways(folder, tmp_path):
    import lm_eval
    from lm_eval.tasks import TaskManager

    import hola.lm_eval  # noqa: F401  registers the model

    args = f"pretrained={folder}/model,backend=cpu,tokenizer=byte"
    tasks = ["choice", "rolling"]
    manager = TaskManager(include_path=str(folder), include_defaults=False)
    one = lm_eval.simple_evaluate("hola", args, tasks=tasks, bootstrap_iters=0, task_manager=manager)["results"]
    command = [
        sys.executable,
        "-m",
        "hola.lm_eval",
        "--model",
        "hola",
        "--model_args",
        args,
        "--tasks",
        "choice,rolling",
    ]
    command += ["--include_path", str(folder), "--output_path", str(tmp_path / "out")]
    env = {
        **os.environ,
        "PYTHONPATH": str(Path(hola.__file__).parents[1]),
        "HF_DATASETS_OFFLINE": "1",
        "HF_HUB_OFFLINE": "1",
    }
    done = subprocess.run(command, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    other = json.loads(next((tmp_path / "out").rglob("results*.json")).read_text())["results"]
    for task, metrics in (("choice", ("acc,none", "acc_norm,none")), ("rolling", ("byte_perplexity,none",))):
        for metric in metrics:
            assert one[task][metric] == other[task][metric]
    rows = [json.loads(line) for line in (folder / "rows.jsonl").read_text().splitlines()]
    m = hola.Model.load(folder / "model", tokenizer="byte")
    right = 0
    for row in rows:
        scores = [m.score(f"{row['q']} {a}")[-len(a) - 1 :].sum() for a in row["a"]]
        right += scores.index(max(scores)) == row["gold"]
    assert one["choice"]["acc,none"] == right / len(rows)
