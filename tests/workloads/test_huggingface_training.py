"""Training runs of Hugging Face directories on a text file: hf:DIR --train FILE, from what save_pretrained writes."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_training import trainer_with

from whet.cli import main
from whet.core.recipe import Step
from whet.core.workload import TrainingWorkload
from whet.core.workload.quality import measure_quality
from whet.errors import TargetError
from whet.techniques.proof import gradients
from whet.techniques.training_technique import Exactness
from whet.tuner.training.opening import first_batches
from whet.workloads.target import resolve_any

transformers = pytest.importorskip("transformers")
tokenizers = pytest.importorskip("tokenizers")

VOCAB = 300
TEXT = "".join(f"{i}: the {i % 7} of {i % 11} sails to sea, and {i % 5} of them return.\n" for i in range(300))
SIZES = {"vocab_size": VOCAB, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
SIZES |= {"intermediate_size": 32, "max_position_embeddings": 32}


def _save(directory: Path, kind: str, config: Any) -> Path:
    torch.manual_seed(0)
    getattr(transformers, kind)(config).save_pretrained(directory)
    tokenizer = tokenizers.ByteLevelBPETokenizer()
    tokenizer.train_from_iterator([TEXT], vocab_size=VOCAB, show_progress=False)
    tokenizer.save(str(directory / "tokenizer.json"))
    return directory


@pytest.fixture
def llama(tmp_path: Path) -> Path:
    return _save(tmp_path / "tiny-llama", "LlamaForCausalLM", transformers.LlamaConfig(**SIZES))


@pytest.fixture
def text(tmp_path: Path) -> Path:
    file = tmp_path / "text.txt"
    file.write_text(TEXT, encoding="utf-8")
    return file


def _workload(directory: Path, text: Path, options: str = "batch=4") -> TrainingWorkload:
    workload = resolve_any(f"hf:{directory}?{options}&train={text}")
    assert isinstance(workload, TrainingWorkload)
    return workload


def test_a_directory_trains(llama: Path, text: Path) -> None:
    """The loss begins at that of a guess and falls, with techniques and without, and gradients are the same."""
    workload = _workload(llama, text)
    assert workload.name == "tiny-llama-training"
    (batch,) = first_batches(workload, 1)
    assert (batch.shape, batch.dtype) == ((4, 32), torch.int64)  # as many tokens as the model takes
    plain = _losses(workload)
    changed = _losses(_workload(llama, text), "checkpointing", "fused_optimizer")
    assert plain[0] == pytest.approx(torch.tensor(VOCAB).log().item(), rel=0.05)
    assert plain[-1] < plain[0]
    assert changed == pytest.approx(plain, rel=1e-5)
    assert workload.evaluation is not None
    assert measure_quality(workload.evaluation, workload.model.eval()) < plain[0]


def _losses(workload: TrainingWorkload, *techniques: str) -> list[float]:
    trainer = trainer_with(workload, *(Step(technique=name) for name in techniques))
    return [float(trainer.step()) for _ in range(3)]


def test_its_gradients_can_be_held_against_float64(llama: Path, text: Path) -> None:
    workload = _workload(llama, text)
    batches = first_batches(workload, 2)
    model = workload.model.train()
    original = gradients.gradients_of(model, workload.loss, batches, seed=0)
    reference = gradients.reference_gradients(model, workload.loss, batches, seed=0)
    assert len(original) == 2 * 2 * len(list(model.named_parameters()))
    found = gradients.judged(original, original, reference, Exactness.EXACT)
    assert found.is_same
    assert found.error < 1e-4


def test_held_out_windows_are_not_trained_on(llama: Path, text: Path) -> None:
    workload = _workload(llama, text, "batch=2&seq=16")
    seen = {tuple(row.tolist()) for batch in workload.batches for row in batch}
    scored: list[tuple[int, ...]] = []

    def predict(*, input_ids: torch.Tensor, labels: torch.Tensor) -> Any:
        scored.extend(tuple(row.tolist()) for row in input_ids)
        return workload.model(input_ids=input_ids, labels=labels)

    assert workload.evaluation is not None
    measure_quality(workload.evaluation, predict)
    assert scored
    assert not seen & set(scored)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda d, t: (d / "tokenizer.json").unlink(), r"has no tokenizer\.json, .* save the model's tokenizer there"),
        (lambda d, t: (d / "model.safetensors").unlink(), r"has no \*\.safetensors weights: save the model"),
        (lambda d, t: t.write_text(""), r"text\.txt is empty; give a file with text"),
        (lambda d, t: t.unlink(), r"--train takes a text file; .*text\.txt is not there"),
    ],
)
def test_what_is_missing_is_said_before_the_work(
    llama: Path, text: Path, tmp_path: Path, spoil: Any, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    spoil(llama, text)
    with pytest.raises(SystemExit) as ended:
        main(["tune", f"hf:{llama}", "--train", str(text), "--out", str(tmp_path / "out")])
    assert ended.value.code == 2
    said = " ".join(capsys.readouterr().err.split())
    assert said.startswith("error: ")
    assert re.search(message, said)
    assert not (tmp_path / "out").exists()


def test_what_cannot_be_trained_is_refused(llama: Path, text: Path, tmp_path: Path) -> None:
    with pytest.raises(TargetError, match="seq=64 is more than the 32 tokens that this model takes"):
        _workload(llama, text, "seq=64")
    with pytest.raises(TargetError, match=r"batch=none: .* Options are train, batch, seq and lr"):
        _workload(llama, text, "batch=none")
    text.write_text("too short for one row", encoding="utf-8")
    with pytest.raises(TargetError, match=r"which is 0 windows of 32; 20 are needed: give a longer file"):
        _workload(llama, text)
    text.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(TargetError, match="cannot be read as text in UTF-8"):
        _workload(llama, text)


def test_a_tokenizer_of_another_model_is_refused(tmp_path: Path, text: Path) -> None:
    directory = _save(tmp_path / "llama", "LlamaForCausalLM", transformers.LlamaConfig(**{**SIZES, "vocab_size": 100}))
    with pytest.raises(TargetError, match=r"makes token \d+, and the model knows 100 tokens"):
        _workload(directory, text)
    (directory / "tokenizer.json").write_text("{")
    with pytest.raises(TargetError, match=r"tokenizer\.json cannot be read"):
        _workload(directory, text)


@pytest.mark.parametrize(
    ("kind", "config", "message"),
    [
        ("LlamaForSequenceClassification", "LlamaConfig", "is no causal language model, and whet trains no other"),
        ("BertForMaskedLM", "BertConfig", "is no causal language model, and whet trains no other"),
        ("BertLMHeadModel", "BertConfig", "sees the tokens that it is to predict"),
    ],
)
def test_a_model_that_is_not_causal_is_refused(
    tmp_path: Path, text: Path, kind: str, config: str, message: str
) -> None:
    directory = _save(tmp_path / "model", kind, getattr(transformers, config)(**SIZES, pad_token_id=0))
    with pytest.raises(TargetError, match=f"{kind} {message}"):
        _workload(directory, text)
