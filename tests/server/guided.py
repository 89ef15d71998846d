"""Engines and steppers for tests of structured output: random logits over the vocabulary of docs-gpt."""

from typing import Any

import numpy as np
from driving import make_stepper
from hash_model import HashModel

from whet.server.admission import Admission
from whet.server.engine import Engine
from whet.server.options import EngineOptions
from whet.server.output_constraint import OutputConstraint
from whet.server.request import Request
from whet.server.sampling_params import SamplingParams
from whet.server.speculative import Speculation
from whet.server.stepper import Stepper
from whet.server.text import Tokenizer
from whet.workloads import WEIGHTS

TOKENIZER = Tokenizer(WEIGHTS / "docs-gpt")
VOCAB = TOKENIZER.vocab_size
EOS = next(iter(TOKENIZER.eos_ids))
PERSON: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "tags": {"type": "array", "items": {"enum": ["a", "bb", "é🙂"]}, "maxItems": 3},
    },
    "required": ["name", "age", "tags"],
    "additionalProperties": False,
}
DENSE = ""  # the whitespace pattern that allows none


def random_model(max_model_len: int = 256, **options: Any) -> HashModel:
    return HashModel(**{"vocab_size": VOCAB, "max_model_len": max_model_len, **options})


def random_engine(**options: Any) -> Engine:
    options = {"max_num_seqs": 8, "max_batch_tokens": 64, "memory": 64 * 2**10, **options}
    return Engine(random_model(), EngineOptions(**options), tokenizer=TOKENIZER)


def random_stepper(speculation: Speculation | None = None, **options: Any) -> Stepper:
    return make_stepper(random_model(), speculation=speculation, **{"num_blocks": 512, **options})


_ADMISSION = Admission(TOKENIZER, VOCAB, 256)


def request(structure: OutputConstraint | None, prompt: str = "The for statement", **params: Any) -> Request:
    return _ADMISSION.request(
        prompt, SamplingParams(**{"max_tokens": 100, "seed": 1, "structure": structure, **params})
    )


def allowed(structure: OutputConstraint, token_ids: list[int]) -> np.ndarray:
    """The tokens that the library's own matcher allows after these, a bool for each; the last is for the end."""
    matcher = _ADMISSION.guide(structure).matcher
    assert matcher.consume_tokens(token_ids)
    bits = np.unpackbits(np.frombuffer(matcher.compute_bitmask(), np.uint8), bitorder="little")
    return bits[: VOCAB + 1].astype(bool)
