"""Describe a decoder that answers prompts and is to be made fast."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from whet.core.slo import Slo
from whet.errors import TargetError


@dataclass(frozen=True, kw_only=True)
class GenerationWorkload:
    """Describe a decoder and the prompts that it answers, at fixed lengths, so that two variants do the same work.

    One measured call is one request: a prompt goes in, `num_tokens` tokens come out. The call's evidence is the tokens,
    which are decoded greedily. Two variants agree as long as they generate the same tokens.

    Attributes:
        model: A directory as transformers writes it: config.json, safetensors, tokenizer files.
        prompts: Texts, or lists of token ids, which are sent in turn.
        num_tokens: Tokens to be generated for each prompt; an end token does not end the answer.
        num_concurrent: Requests that run at once.
        slo: The limits that an answer has to meet.
        name: The name shown to people; the directory's name, if not given.

    Raises:
        TargetError: There is no such directory, there are no prompts, or a length is below 1.
    """

    model: Path
    prompts: Sequence[str | Sequence[int]]
    num_tokens: int = 128
    num_concurrent: int = 1
    slo: Slo = field(default_factory=Slo)
    name: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "model", Path(self.model))
        if not (self.model / "config.json").is_file():
            raise TargetError(f"{self.model} is no model directory: it has no config.json")
        if isinstance(self.prompts, str) or not self.prompts or not all(map(len, self.prompts)):
            raise TargetError("prompts must be a list of texts or of lists of token ids, none of them empty")
        if min(self.num_tokens, self.num_concurrent) < 1:
            raise TargetError("num_tokens and num_concurrent must be 1 or more")
        if not self.name:
            object.__setattr__(self, "name", self.model.resolve().name)
