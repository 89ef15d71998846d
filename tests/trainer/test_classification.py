"""whet train for classifiers of texts: their data, their scores against scikit-learn, and what transformers loads."""

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from tiny_run import trained
from torch import Tensor

from whet.errors import OptionError, TargetError
from whet.trainer.classification import macro_f1
from whet.trainer.config import TrainConfig, checked_config
from whet.trainer.labelled import LabelledOrder
from whet.trainer.result import TrainResult
from whet.trainer.setup import SetUp, set_up
from whet.trainer.tokens.tokenizer import load_tokenizer, save_tokenizer

TEXTS = Path(__file__).parents[3] / "shared" / "data" / "text"
WORDS = {"tool": "saw axe file plane chisel".split(), "fruit": "apple pear plum fig lime".split()}


def written(file: Path, number: int = 400, *, pairs: bool = False, seed: int = 0) -> Path:
    """Write texts of both labels, one after the other; a text of either label has words of both."""
    generator = random.Random(seed)
    lines = []
    for label in WORDS:
        for _ in range(number // 2):
            other = next(one for one in WORDS if one != label)
            words = generator.choices(WORDS[label], k=generator.randint(2, 6)) + generator.choices(WORDS[other], k=1)
            generator.shuffle(words)
            line = {"text": " ".join(words), "label": label}
            lines.append({**line, "more": " ".join(words[:2])} if pairs else line)
    file.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return file


def encoder(place: Path, kind: str = "bert") -> Path:
    """Return the directory of a small model of transformers with drawn weights, and of a tokenizer of bytes."""
    import transformers

    torch.manual_seed(0)
    found = place / kind
    sizes: dict[str, Any] = {"vocab_size": 260, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    sizes |= {"intermediate_size": 64, "max_position_embeddings": 128, "pad_token_id": 257}
    if kind == "bert":
        transformers.BertModel(transformers.BertConfig(**sizes)).save_pretrained(found)
    elif kind == "masked":
        transformers.BertForMaskedLM(transformers.BertConfig(**sizes)).save_pretrained(found)
    elif kind == "llama":
        transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes)).save_pretrained(found)
    else:
        labels = {"id2label": {0: "tool", 1: "fruit"}, "label2id": {"tool": 0, "fruit": 1}}
        made = transformers.BertConfig(**sizes, **labels)
        transformers.BertForSequenceClassification(made).save_pretrained(found)
    save_tokenizer(load_tokenizer("bytes"), found)
    return found


def config(place: Path, model: Path, /, **changes: Any) -> TrainConfig:
    found: dict[str, Any] = {
        "task": "classification",
        "out": str(place / "run"),
        "steps": 12,
        "model": {"directory": str(model)},
        "data": {"train": [str(place / "train.jsonl")], "sequence_length": 64},
        "batch": {"global_batch_size": 16},
        "optimizer": {"lr": 3e-3},
        "schedule": {"warmup_steps": 2},
        "evaluation": {"eval_interval": 6},
        "checkpoints": {"save_interval": 3},
        "log": {"log_interval": 1},
    }
    for name, value in changes.items():
        found[name] = {**found.get(name, {}), **value} if isinstance(value, dict) else value
    return checked_config(found, "test")


def opened(place: Path, model: Path, /, **changes: Any) -> SetUp:
    return set_up(config(place, model, **changes), lambda line: None)


@pytest.mark.parametrize("kind", ["bert", "masked", "llama", "classifier"])
def test_it_learns_and_transformers_loads_it_with_equal_logits(tmp_path: Path, kind: str) -> None:
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    written(tmp_path / "train.jsonl")
    setup = opened(tmp_path, encoder(tmp_path, kind), steps=60)
    found = trained(setup.config)
    assert found.scores["accuracy"] > 0.8 and found.scores["macro_f1"] > 0.8, found.scores
    assert found.model is not None
    model = AutoModelForSequenceClassification.from_pretrained(found.model).eval()
    labels = {0: "tool", 1: "fruit"} if kind == "classifier" else {0: "fruit", 1: "tool"}
    assert model.config.id2label == labels and model.config.label2id == {name: i for i, name in labels.items()}
    tokenizer = AutoTokenizer.from_pretrained(found.model)
    total, right, count = 0.0, 0, 0
    for batch in setup.held_out:
        with torch.no_grad():
            output = model(batch["ids"], attention_mask=batch["mask"], labels=batch["targets"])
        total += float(output.loss) * len(batch["ids"])
        right += int((output.logits.argmax(-1) == batch["targets"]).sum())
        count += len(batch["ids"])
    assert count == len(setup.data.scored) == 40
    assert found.held_out_loss == pytest.approx(total / count, rel=1e-4)
    assert found.scores["accuracy"] == pytest.approx(right / count)
    for text, label in (("saw axe saw file", "tool"), ("plum fig plum", "fruit")):
        given = tokenizer(text, return_tensors="pt")
        with torch.no_grad():
            logits = model(given.input_ids, attention_mask=given.attention_mask).logits
        assert labels[int(logits.argmax())] == label
    lines = [json.loads(line) for line in (found.directory / "log.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines if "macro_f1" in line] == list(range(6, 61, 6))


@pytest.mark.parametrize("kind", ["bert", "llama"])
def test_a_step_is_the_one_of_transformers(tmp_path: Path, kind: str) -> None:
    """Each text is computed by itself, without padding, as the model of transformers computes its loss."""
    written(tmp_path / "train.jsonl", pairs=True)
    setup = opened(tmp_path, encoder(tmp_path, kind), data={"second_text_key": "more"})
    model = setup.model.module.eval()
    batch = next(iter(setup.workload().batches))
    assert not bool(batch["mask"].all())
    loss = setup.model.loss(model, batch)
    loss.backward()
    ours = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    model.zero_grad()
    for ids, types, mask, target in zip(*(batch[name] for name in ("ids", "types", "mask", "targets")), strict=True):
        length = int(mask.sum())
        given = {"token_type_ids": types[None, :length]} if kind == "bert" else {}
        one = model(ids[None, :length], labels=target[None], **given).loss
        (one / len(batch["ids"])).backward()
    for name, p in model.named_parameters():
        if p.grad is not None:
            torch.testing.assert_close(ours[name], p.grad, rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("size", [2, 4, 8])
def test_parts_of_a_batch_have_the_gradients_of_the_whole(tmp_path: Path, size: int) -> None:
    """Two texts at once are as many as there are labels, which must not be taken for a contrastive loss."""
    from whet.techniques.prepared_trainer import PreparedTrainer

    written(tmp_path / "train.jsonl")
    model, found = encoder(tmp_path), []
    for batch in ({}, {"micro_batch_size": size}):
        setup = opened(tmp_path, model, batch=batch)
        workload = setup.workload()
        for part in workload.model.modules():
            if isinstance(part, torch.nn.Dropout):
                part.p = 0.0
        trainer = PreparedTrainer(workload, setup.steps).trainer
        loss = trainer.compute(trainer.next_batches(), updates=False)
        found.append([loss, *(p.grad for p in trainer.model.parameters() if p.grad is not None)])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("changes", [{}, {"data": {"group_by_length": True}, "batch": {"micro_batch_size": 4}}])
def test_it_goes_on_bit_for_bit(tmp_path: Path, changes: dict[str, Any]) -> None:
    from safetensors.torch import load_file

    written(tmp_path / "train.jsonl")
    model = encoder(tmp_path)

    def weights(result: TrainResult) -> dict[str, Tensor]:
        assert result.model is not None
        return dict(load_file(result.model / "model.safetensors"))

    whole = trained(config(tmp_path, model, out=str(tmp_path / "whole"), **changes))
    made = config(tmp_path, model, **changes)
    trained(made, stop_at=5)
    resumed = trained(made, resume=True)
    assert resumed.scores == whole.scores and resumed.tokens == whole.tokens
    for name, value in weights(whole).items():
        assert torch.equal(value, weights(resumed)[name]), name


def test_tokens_are_those_of_transformers(tmp_path: Path) -> None:
    """Pairs, special tokens and truncation, against the tokenizer of transformers."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *WORDS["tool"], *WORDS["fruit"]]
    made = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    ends = [("[CLS]", 2), ("[SEP]", 3)]
    made.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=ends
    )
    model = encoder(tmp_path)
    theirs = PreTrainedTokenizerFast(tokenizer_object=made, pad_token="[PAD]", cls_token="[CLS]", sep_token="[SEP]")
    theirs.save_pretrained(model)
    file = written(tmp_path / "train.jsonl", pairs=True)
    setup = opened(tmp_path, model, data={"second_text_key": "more", "held_out": [str(file)], "sequence_length": 9})
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    assert len(setup.data.learnt) == len(setup.data.scored) == len(lines)
    wanted = theirs(
        [line["text"] for line in lines],
        [line["more"] for line in lines],
        truncation=True,
        max_length=9,
        padding=True,
        return_token_type_ids=True,
        return_tensors="pt",
    )
    found = setup.data.learnt.batch(np.arange(len(lines)))
    assert torch.equal(found["mask"], wanted["attention_mask"])
    keep = wanted["attention_mask"].bool()
    assert torch.equal(found["ids"][keep], wanted["input_ids"][keep])
    assert torch.equal(found["types"][keep], wanted["token_type_ids"][keep])
    assert [line["label"] == "tool" for line in lines] == found["targets"].bool().tolist()
    long = sum(len(line["text"].split()) + 5 > 9 for line in lines)
    assert setup.notes == (f"{2 * long} of {2 * len(lines)} texts have more than 9 tokens, and were cut",)


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=1, max_size=60))
def test_macro_f1_is_scikit_learns(pairs: list[tuple[int, int]]) -> None:
    from sklearn.metrics import f1_score

    right, found = np.array(pairs).T
    counts = [np.bincount(of, minlength=5) for of in (right[right == found], right, found)]
    assert macro_f1(*counts) == pytest.approx(f1_score(right, found, average="macro"))


@given(
    number=st.integers(1, 300),
    size=st.integers(1, 9),
    seed=st.integers(0, 9),
    shuffle=st.booleans(),
    by_length=st.booleans(),
)
def test_each_row_comes_once_an_epoch(number: int, size: int, seed: int, shuffle: bool, by_length: bool) -> None:
    number = max(number, size) // size * size
    lengths = np.random.default_rng(seed).integers(1, 50, number)
    order = LabelledOrder(lengths, size, seed, shuffle, by_length)
    steps = number // size
    together = max(1, min(50, steps))
    epochs = together if by_length and steps % together else 1  # groups of batches end where an epoch does
    rows = np.concatenate([order.rows_of(step) for step in range(steps * epochs)])
    assert np.bincount(rows, minlength=number).tolist() == [epochs] * number
    again = LabelledOrder(lengths, size, seed, shuffle, by_length)
    assert order.rows_of(3).tolist() == again.rows_of(3).tolist()


def test_rows_of_similar_length_share_a_batch() -> None:
    lengths = np.random.default_rng(0).integers(1, 100, 800)

    def padding(by_length: bool) -> float:
        order = LabelledOrder(lengths, 8, 0, True, by_length)
        rows = [lengths[order.rows_of(step)] for step in range(100)]
        return sum(8 * one.max() for one in rows) / sum(one.sum() for one in rows)

    assert padding(True) < 1.1 < 1.5 < padding(False)


def test_labels_may_be_numbers_and_sorted_files_are_divided_fairly(tmp_path: Path) -> None:
    lines = [{"text": f"a{i}", "label": (10, 9, -1)[i // 20]} for i in range(60)]
    (tmp_path / "train.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    setup = opened(tmp_path, encoder(tmp_path))
    assert setup.model.labels == ("-1", "9", "10")  # type: ignore[attr-defined]
    assert np.bincount(setup.data.scored.classes).tolist() == [2, 2, 2]
    assert np.bincount(setup.data.learnt.classes).tolist() == [18, 18, 18]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ({"text": "a"}, r"train\.jsonl:401: there is no label under 'label'"),
        ({"text": "a", "label": 1.5}, r"train\.jsonl:401: the label is a float"),
        ({"text": "a", "label": True}, r"train\.jsonl:401: the label is a bool"),
        ({"text": "a", "label": 3}, r"401: the label is an int, and that of .*:1 is a str"),
        ({"label": "tool"}, r"train\.jsonl:401: there is no 'text'"),
        ({"text": 3, "label": "tool"}, r"train\.jsonl:401: text is an int"),
        ({"text": "", "label": "tool"}, r"train\.jsonl:401: the text has no tokens"),
    ],
)
def test_a_bad_line_is_named_before_a_step(tmp_path: Path, line: dict[str, Any], said: str) -> None:
    with written(tmp_path / "train.jsonl").open("a") as file:
        file.write(json.dumps(line) + "\n")
    with pytest.raises(TargetError, match=said):
        opened(tmp_path, encoder(tmp_path))
    assert not (tmp_path / "run").exists()


def test_what_does_not_fit_is_refused_before_a_step(tmp_path: Path) -> None:
    model = encoder(tmp_path)
    file = written(tmp_path / "train.jsonl")
    lines = file.read_text().splitlines(keepends=True)
    (tmp_path / "one.jsonl").write_text("".join(lines[:100]))
    (tmp_path / "text.txt").write_text("words")
    (tmp_path / "other.jsonl").write_text(json.dumps({"text": "a", "label": "metal"}) + "\n")

    def refused(said: str, kind: type[Exception] = TargetError, directory: Path = model, **changes: Any) -> None:
        with pytest.raises(kind, match=said):
            opened(tmp_path, directory, **changes)

    refused("all 100 texts have the label 'tool'", data={"train": [str(tmp_path / "one.jsonl")]})
    refused(r"other\.jsonl:1: the label 'metal' is not in", data={"held_out": [str(tmp_path / "other.jsonl")]})
    refused("no file of JSON lines", data={"train": [str(tmp_path / "text.txt")]})
    refused("there is no 'more'", data={"second_text_key": "more"})
    refused("the model takes 128 tokens", OptionError, data={"sequence_length": 129})
    refused("fewer than batch.global_batch_size", batch={"global_batch_size": 1000})
    refused("evaluation.prompt is for task = language", OptionError, evaluation={"prompt": "a"})
    refused("data.pack is for task = language", OptionError, data={"pack": True})
    refused("data.label_key is for task = classification", OptionError, task="language", data={"label_key": "x"})
    refused("lora is for task = language", OptionError, lora={})
    refused("model.directory is missing", OptionError, model={"directory": None})
    (tmp_path / "third.jsonl").write_text("".join(lines) + json.dumps({"text": "a", "label": "metal"}) + "\n")
    refused(
        "classifies tool, fruit, and the data fruit, metal, tool",
        directory=encoder(tmp_path, "classifier"),
        data={"train": [str(tmp_path / "third.jsonl")]},
    )


@pytest.mark.realdata
@pytest.mark.skipif(not TEXTS.is_dir(), reason="there is no ../shared/data")
def test_which_of_two_texts_a_paragraph_is_from(tmp_path: Path) -> None:
    """Plays and articles: characters alone must tell them apart far better than the larger class does."""
    sources = {"plays": TEXTS / "tinyshakespeare.txt", "articles": TEXTS / "wikitext2-valid.txt"}
    lines = []
    for label, path in sources.items():
        paragraphs = [
            one.strip() for one in path.read_text(encoding="utf-8").split("\n\n" if label == "plays" else "\n")
        ]
        # Case and the marks that only one of the files has are taken away: the words are to decide.
        plain = ["".join(c for c in one.lower() if c.isalpha() or c == " ").replace(" unk ", " ") for one in paragraphs]
        lines += [{"text": one[:100], "label": label} for one in plain if len(one) > 60][:1200]
    (tmp_path / "train.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    found = trained(
        config(tmp_path, encoder(tmp_path), steps=250, data={"sequence_length": 100, "group_by_length": True})
    )
    counts = [sum(line["label"] == label for line in lines) for label in sources]
    majority = max(counts) / sum(counts)
    assert 0.4 < majority < 0.7
    assert found.scores["accuracy"] > majority + 0.2, found.scores
    assert found.scores["macro_f1"] > 0.7, found.scores


def test_the_loss_is_torchs(tmp_path: Path) -> None:
    written(tmp_path / "train.jsonl")
    setup = opened(tmp_path, encoder(tmp_path))
    batch = next(iter(setup.workload().batches))
    model = setup.model.module.eval()
    with torch.no_grad():
        logits = model(batch["ids"], attention_mask=batch["mask"]).logits
        wanted = F.cross_entropy(logits.double(), batch["targets"])
        torch.testing.assert_close(setup.model.loss(model, batch).double(), wanted, rtol=1e-5, atol=1e-6)
