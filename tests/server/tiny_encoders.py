"""Tiny text encoders, their tokenizers, and artefacts of them as `whet tune hf:DIR` leaves them."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from small_programs import save
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
from torch import Tensor

from whet.core.workload import examine
from whet.workloads import resolve
from whet.workloads.text_encoder import save_text_use

transformers = pytest.importorskip("transformers")

WORDS = "[PAD] [UNK] [CLS] [SEP] what is a cat dog the sits runs on under mat tree fast red blue".split()
SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48}
LENGTH = 24  # tokens that the artefacts take


def write_tokenizer(directory: Path) -> None:
    tokenizer = Tokenizer(models.WordLevel({word: place for place, word in enumerate(WORDS)}, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    tokenizer.save(str(directory / "tokenizer.json"))


def write_object(path: Path, content: Any) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(content))


def write_embedder(directory: Path, *, pooling: str = "mean", normalize: bool = True, **settings: Any) -> Path:
    """A sentence-transformers directory with a BERT of 2 layers."""
    torch.manual_seed(0)
    config = transformers.BertConfig(vocab_size=len(WORDS), max_position_embeddings=64, **SIZES, **settings)
    model = transformers.BertModel(config).eval()
    for parameter in model.parameters():  # a new BERT says nearly the same of every text
        torch.nn.init.normal_(parameter, std=0.3)
    model.save_pretrained(directory)
    write_tokenizer(directory)
    kinds = ["Transformer", "Pooling", *(["Normalize"] if normalize else [])]
    paths = ["", "1_Pooling", "2_Normalize"]
    modules = [
        {"idx": i, "name": str(i), "path": paths[i], "type": f"sentence_transformers.models.{kind}"}
        for i, kind in enumerate(kinds)
    ]
    write_object(directory / "modules.json", modules)
    modes = {"cls_token": "cls", "mean_tokens": "mean", "max_tokens": "max", "lasttoken": "lasttoken"}
    pooled = {f"pooling_mode_{mode}": name == pooling for mode, name in modes.items()}
    write_object(directory / "1_Pooling" / "config.json", {"word_embedding_dimension": 32, **pooled})
    write_object(directory / "sentence_bert_config.json", {"max_seq_length": 48, "do_lower_case": False})
    return directory


def write_reranker(directory: Path, num_labels: int = 1) -> Path:
    """A cross-encoder with a BERT of 2 layers, which tells the two texts apart by their type ids."""
    torch.manual_seed(1)
    config = transformers.BertConfig(vocab_size=len(WORDS), max_position_embeddings=64, num_labels=num_labels, **SIZES)
    model = transformers.BertForSequenceClassification(config).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    model.save_pretrained(directory)
    write_tokenizer(directory)
    return directory


def tuned(directory: Path, out: Path, seq: int = LENGTH) -> Path:
    """The artefact of the original, and what a server needs beside it, as `whet tune` saves them."""
    target = f"hf:{directory}?seq={seq}&batch=2"
    artefact = save(examine(resolve(target), with_quality=False), out)
    save_text_use(target, artefact)
    return artefact


def encoded(directory: Path, *texts: str, pair: str | None = None) -> dict[str, Tensor]:
    """What transformers' own tokenizer makes of one text, or of a pair: [1, T] each."""
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_file=str(directory / "tokenizer.json"), pad_token="[PAD]", cls_token="[CLS]", sep_token="[SEP]"
    )
    return dict(tokenizer(*texts, *([pair] if pair else []), return_tensors="pt", return_token_type_ids=True))


def vector(directory: Path, text: str, pooling: str = "mean", *, normalize: bool = True) -> Tensor:
    """The embedding of one text by transformers in torch, and pooling as sentence-transformers describes it: [D]."""
    model = transformers.BertModel.from_pretrained(directory)
    with torch.no_grad():
        hidden_TD = model(**encoded(directory, text)).last_hidden_state[0]
    pooled = {"mean": hidden_TD.mean(0), "cls": hidden_TD[0], "max": hidden_TD.amax(0), "lasttoken": hidden_TD[-1]}
    found = pooled[pooling]
    return found / found.norm() if normalize else found


def logit(directory: Path, query: str, text: str) -> float:
    """The score of a pair by transformers in torch, before the sigmoid."""
    model = transformers.BertForSequenceClassification.from_pretrained(directory)
    with torch.no_grad():
        return float(model(**encoded(directory, query, pair=text)).logits)
