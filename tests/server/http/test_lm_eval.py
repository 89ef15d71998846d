"""lm-eval's local-completions against `whet serve`: what it reads out of echoed logprobs is what the model says.

lm-eval is no dependency of the project: with it on the path (PYTHONPATH), run
`python -m pytest -m slow tests/server/http/test_lm_eval.py`.
"""

import importlib.util
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

transformers = pytest.importorskip("transformers")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(importlib.util.find_spec("lm_eval") is None, reason="lm_eval is not installed"),
]

MODEL = Path(__file__).parents[3] / "src/whet/workloads/weights/docs-gpt"
PAIRS = [
    (context, continuation)
    for context in ("The torch.nn module", "Return a new", "class Foo", "If the file does not exist,", "naïve 🙂")
    for continuation in (
        " list",
        " é漢",
        ":\n    pass",
        " character, the\n   string specifying",
        "\n",
        " a b c d e f g",
    )
]
LONG = "The for statement is used to iterate over the elements of a sequence. " * 40  # more than the model takes

# What lm-eval is told, and what it says, as JSON; in a process of its own, which may warn as it likes.
ASK = """
import json, sys
from lm_eval.api.instance import Instance
from lm_eval.models.openai_completions import LocalCompletionsAPI

url, model, num_concurrent, batch_size = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
asked = json.load(sys.stdin)
lm = LocalCompletionsAPI(
    model="docs-gpt", base_url=f"{url}/v1/completions", tokenizer=model, tokenizer_backend="huggingface",
    max_length=512, num_concurrent=num_concurrent, batch_size=batch_size,
)

def requests(kind, all_arguments):
    return [Instance(request_type=kind, doc={}, arguments=tuple(one), idx=i) for i, one in enumerate(all_arguments)]

until = {"until": ["\\n\\n"], "max_gen_toks": 24, "do_sample": False}
print(json.dumps({
    "pairs": lm.loglikelihood(requests("loglikelihood", asked["pairs"])),
    "rolling": lm.loglikelihood_rolling(requests("loglikelihood_rolling", [[text] for text in asked["texts"]])),
    "greedy": lm.generate_until(requests("generate_until", [[text, until] for text in asked["prompts"]])),
}))
"""


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    words = ["serve", "docs-gpt", "--port", "0", "--json", "--dtype", "fp32"]
    process = subprocess.Popen([sys.executable, "-m", "whet", *words], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield json.loads(process.stdout.readline())["url"]
    finally:
        process.terminate()
        process.communicate(timeout=30)


@pytest.fixture(scope="module")
def judge() -> tuple[Any, Any]:
    model = transformers.AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32).eval()
    return transformers.AutoTokenizer.from_pretrained(MODEL), model


def logprobs(model: Any, ids: list[int]) -> torch.Tensor:
    """Of every next token [T, V]."""
    with torch.no_grad():
        found: torch.Tensor = model(torch.tensor([ids])).logits[0].log_softmax(-1)
    return found


@pytest.mark.parametrize(("num_concurrent", "batch_size"), [(1, 1), (4, 3)])
def test_it_reads_what_the_model_says(url: str, judge: tuple[Any, Any], num_concurrent: int, batch_size: int) -> None:
    prompts = [context for context, _ in PAIRS[::6]]
    asked = {"pairs": PAIRS, "texts": [LONG, "Return a new list"], "prompts": prompts}
    told = subprocess.run(
        [sys.executable, "-c", ASK, url, str(MODEL), str(num_concurrent), str(batch_size)],
        input=json.dumps(asked), capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip
    assert told.returncode == 0, told.stderr[-2000:]
    said = json.loads(told.stdout.splitlines()[-1])
    tokenizer, model = judge
    for (context, continuation), (total, is_greedy) in zip(PAIRS, said["pairs"], strict=True):
        ids, start = tokenizer.encode(context + continuation), len(tokenizer.encode(context))
        rows = logprobs(model, ids)[start - 1 : -1]
        wanted = rows.gather(1, torch.tensor(ids[start:])[:, None]).sum().item()
        assert total == pytest.approx(wanted, rel=1e-5), (context, continuation)
        assert is_greedy == (rows.argmax(1).tolist() == ids[start:]), (context, continuation)
    for prompt, text in zip(prompts, said["greedy"], strict=True):
        ids = tokenizer(prompt, return_tensors="pt").input_ids
        made = model.generate(ids, max_new_tokens=24, do_sample=False, pad_token_id=0)
        assert text == tokenizer.decode(made[0, ids.shape[1] :], skip_special_tokens=True).split("\n\n")[0]
    short = tokenizer.encode("Return a new list", add_special_tokens=False)
    rows = logprobs(model, [tokenizer.eos_token_id, *short])[:-1]
    assert said["rolling"][1] == pytest.approx(rows.gather(1, torch.tensor(short)[:, None]).sum().item(), rel=1e-5)
    assert said["rolling"][0] < 0
