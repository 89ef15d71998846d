"""Run a text encoder's artefact with its tokenizer: texts in, vectors or scores out.

Sources: sentence-transformers (Pooling, Normalize, CrossEncoder).
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from whet.core.artefact.text_use import TextUse, Unfit, read_text_use
from whet.core.workload import is_near
from whet.errors import RequestError
from whet.server.artefacts.probing import is_close
from whet.server.artefacts.served_artefact import ServedArtefact
from whet.server.request_limits import TOO_LONG, RequestLimits
from whet.server.text import Tokenizer

_IDS, _MASK, _TYPES = "input_ids", "attention_mask", "token_type_ids"
_STRIDE = 7919  # a prime: its multiples hit ids all over a vocabulary
_BUCKET = 16  # tokens: texts are filled up to a multiple, so that those of like lengths share a call


@dataclass(frozen=True)
class Tokens:
    """Hold a text, or a pair of texts, as tokens."""

    ids: Sequence[int]
    types: Sequence[int] = ()


class TextEncoder:
    """Make vectors of texts, or scores of pairs. Either has at most `max_tokens` tokens, special ones included."""

    def __init__(self, artefact: ServedArtefact, use: TextUse, directory: Path) -> None:
        """Check that the artefact takes what a tokenizer gives.

        Raises:
            Unfit: It does not.
            TargetError: The tokenizer is damaged.
        """
        if use.task is None:
            raise Unfit(use.why_not)
        self.use = use
        self.artefact = artefact
        self._tokenizer = Tokenizer(directory)
        self._places = {spec.name: place for place, spec in enumerate(artefact.inputs)}
        if not {_IDS} <= self._places.keys() <= {_IDS, _MASK, _TYPES}:
            raise Unfit(f"it takes {', '.join(self._places)}, and a tokenizer gives {_IDS}, {_MASK} and {_TYPES}")
        if use.output not in artefact.output_names:
            raise Unfit(f"it has no output {use.output!r}, but: {', '.join(artefact.output_names)}")
        self._output = artefact.output_names.index(use.output)
        lengths = {spec.shape[-1] for spec in artefact.inputs}
        if len(lengths) != 1 or any(len(spec.shape) != 2 for spec in artefact.inputs):
            raise Unfit("its inputs are not [texts, tokens] of one length")
        self._length = lengths.pop()  # None: any
        self.max_tokens = use.max_tokens if self._length is None else min(use.max_tokens, self._length)
        self._limits = RequestLimits(max_model_len=self.max_tokens, vocab_size=self._tokenizer.max_id + 1)
        if artefact.why_alone:
            raise Unfit(f"its texts would change each other: {artefact.why_alone}")
        self._pads = _MASK in self._places and self._ignores_padding()
        if self._length is not None and not self._pads:
            raise Unfit(
                f"it takes exactly {self._length} tokens, and what fills up a shorter text changes its answer: tune a "
                f"model that takes {_MASK} and follows it"
            )

    def tokens(self, text: str | Sequence[int], *, cut_to: int | None = None) -> Tokens:
        """Return a text as tokens, cut to `cut_to`; None refuses one that is too long. Token ids are taken as they are.

        Raises:
            RequestError: It is too long, or empty, or has a token that the tokenizer lacks.
        """
        if isinstance(text, str):
            text = self._prepared(self.use.prompt + text)
            if cut_to is None:
                self._check_bytes(text, "input")
            [part] = self._tokenizer.parts([text])
            ids, _ = self._tokenizer.joined(part, most=cut_to)
        else:
            ids = list(text)[:cut_to]
            self._limits.check_tokens(ids, "input")
        self._check(ids)
        return Tokens(ids)

    def query(self, text: str, *, cut_to: int | None = None) -> Any:
        """Return the first text of pairs, tokenised once for all of them, as the tokenizers library's encoding.

        The query is never cut. A longer pair is cut to `cut_to` tokens; None: it is refused.

        Raises:
            RequestError: It is so long that it leaves no room for a text.
        """
        text = self._prepared(text)
        self._check_bytes(text, "query")
        [part] = self._tokenizer.parts([text])
        num_special = self._tokenizer.num_special(is_pair=True)
        most = self.max_tokens if cut_to is None else min(cut_to, self.max_tokens)
        if len(part) + num_special >= most:
            what = self.artefact.name if most == self.max_tokens else "truncate_prompt_tokens"
            raise RequestError(
                f"the query has {len(part)} tokens, and {what} takes {most} for a query, a text and {num_special} "
                "special tokens together, so that no text has room: shorten the query",
                param="query",
                code=TOO_LONG,
            )
        return part

    def pairs(self, query: Any, texts: Sequence[str], *, cut_to: int | None = None) -> list[Tokens]:
        """Return what `query` made, which is never cut, with each text as tokens. `cut_to` is as for `tokens`.

        Raises:
            RequestError: A pair is too long.
        """
        prepared = [self._prepared(text) for text in texts]
        if cut_to is None:
            for text in prepared:
                self._check_bytes(text, "input")
        found = []
        for part in self._tokenizer.parts(prepared):
            ids, types = self._tokenizer.joined(query, part, most=cut_to)
            self._check(ids)
            found.append(Tokens(ids, types))
        return found

    async def embed(self, texts: Sequence[Tokens]) -> Tensor:
        """Return the vectors of texts, float32 [texts, D]. Raises as ServedArtefact.infer."""
        outputs = await self._outputs(texts)
        vectors = torch.stack([self._pooled(output, len(one.ids)) for output, one in zip(outputs, texts, strict=True)])
        return F.normalize(vectors, dim=-1) if self.use.normalize else vectors

    async def score(self, pairs: Sequence[Tokens]) -> Tensor:
        """Return the model's outputs for pairs, before any activation, float32 [pairs]. Raises as `embed`."""
        return torch.stack([output.float().reshape(()) for output in await self._outputs(pairs)])

    async def _outputs(self, texts: Sequence[Tokens]) -> list[Tensor]:
        """Return the output that is used, for each text. Others have their turns while the inputs are made."""
        samples = []
        for one in texts:
            samples.append(self._sample(one))
            await asyncio.sleep(0)
        return [outputs[self._output] for outputs in await self.artefact.infer_samples(samples)]

    def _check_bytes(self, text: str, param: str) -> None:
        self._limits.check_bytes(text, self._tokenizer.most_bytes(self.max_tokens), param)

    def _prepared(self, text: str) -> str:
        return text.lower() if self.use.lower_case else text

    def _check(self, ids: Sequence[int]) -> None:
        if not ids:
            raise RequestError("the text is empty: give at least one token", param="input")
        if len(ids) > self.max_tokens:
            why = "" if self._length is None else f"; for more, tune it with hf:DIR?seq=N, N more than {self._length}"
            raise RequestError(
                f"the text has {len(ids)} tokens, and {self.artefact.name} takes {self.max_tokens}: shorten it, or "
                f"cut it by truncate_prompt_tokens{why}",
                param="input",
                code=TOO_LONG,
            )

    def _sample(self, tokens: Tokens) -> tuple[Tensor, ...]:
        """Return the inputs of one text, filled up where that cannot change the answer: int64 [T] each."""
        num_tokens = len(tokens.ids)
        length = num_tokens
        if self._length is not None:
            length = self._length
        elif self._pads:
            length = min(-(-num_tokens // _BUCKET) * _BUCKET, self.max_tokens)
        return self._filled(tokens, length, fill=self.use.pad_id)

    def _filled(self, tokens: Tokens, length: int, *, fill: int) -> tuple[Tensor, ...]:
        """Return the inputs of one text, filled up to a length with one token: int64 [T] each."""
        num_tokens = len(tokens.ids)
        more = length - num_tokens
        values = {
            _IDS: [*tokens.ids, *[fill] * more],
            _MASK: [1] * num_tokens + [0] * more,
            _TYPES: [*(tokens.types or [0] * num_tokens), *[0] * more],
        }
        return tuple(torch.tensor(values[spec.name]).to(spec.dtype) for spec in self.artefact.inputs)

    def _pooled(self, output_TD: Tensor, num_tokens: int) -> Tensor:
        """Return one vector of those of a text's tokens, which come first: float32 [T, D] -> [D]."""
        tokens_TD = output_TD[:num_tokens].float()
        if self.use.pooling == "mean":
            return tokens_TD.mean(0)
        if self.use.pooling == "max":
            return tokens_TD.amax(0)
        return tokens_TD[0 if self.use.pooling == "cls" else -1]

    def _ignores_padding(self) -> bool:
        """Return whether a text's outputs stay the same, whatever tokens fill it up and however many."""
        length = self._length or min(2 * _BUCKET, self.max_tokens)
        num_tokens = max(1, length // 2)
        vocab_size = self._tokenizer.vocab_size
        largest = max(1, min(self.artefact.largest.get(self._places[_IDS], vocab_size), vocab_size - 1))
        text = Tokens([1 + _STRIDE * place % largest for place in range(num_tokens)])
        fills = (self.use.pad_id, 0 if self.use.pad_id else 1, largest)
        variants = [self._filled(text, length, fill=fill) for fill in fills]
        if self._length is None:
            variants.append(self._filled(text, num_tokens, fill=0))
        rows = self.artefact.batch_size or 2
        with torch.no_grad():
            outputs = [
                self.artefact.run(*(x.expand(rows, -1).contiguous() for x in variant))[self._output]
                for variant in variants
            ]
        used = [y[0, :num_tokens] if self.use.task == "embed" else y[0] for y in outputs]
        is_same = all(is_near(used[0], y) for y in used[1 : len(fills)])
        return is_same and all(is_close(used[0], y) for y in used[len(fills) :])


def text_encoder(artefact: ServedArtefact, directory: Path) -> TextEncoder | str:
    """Return the text encoder of an artefact, or why it is none.

    Raises:
        ArtefactError: text.json is damaged.
        TargetError: The tokenizer is damaged.
    """
    use = read_text_use(directory)
    if use is None:
        return "nothing was saved with it that takes texts: tune the directory of a text encoder, as hf:DIR"
    try:
        return TextEncoder(artefact, use, directory)
    except Unfit as error:
        return str(error)
