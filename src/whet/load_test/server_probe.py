"""What a server says of itself before it is put under load."""

from dataclasses import dataclass

from pydantic import BaseModel, ValidationError

from whet.errors import MissingExtra, OptionError, TargetError
from whet.load_test.client import CompletionClient, message_of

# Where a server does not say how large its vocabulary is: the largest of these ids that it takes in a prompt.
_LIKELY_IDS = (131_071, 100_000, 49_151, 31_999, 15_999, 7_999, 3_999, 999, 255)

_PREFIXES = ("whet:", "vllm:")
_QUERIES, _HITS = "prefix_cache_queries", "prefix_cache_hits"


@dataclass(frozen=True)
class ServerFacts:
    """The model served; None: the server does not say."""

    model: str
    vocab_size: int
    max_model_len: int | None


@dataclass(frozen=True)
class PrefixCounters:
    """Tokens of prompts that were looked up in the prefix cache, and those found there, since the server began."""

    queries: float
    hits: float


async def examine(client: CompletionClient) -> ServerFacts:
    """Name the model, and ask it for a token. Sets the client's model.

    Raises TargetError where nothing answers, or not as an OpenAI-compatible server does; OptionError for a wrong key.
    """
    status, content = await client.get("/v1/models")
    _check(client, status, message_of(content))
    try:
        card = _Models.model_validate_json(content).data[0]
    except (ValidationError, IndexError) as error:
        raise TargetError(f"{client.url} lists no model at /v1/models: is it an OpenAI-compatible server?") from error
    client.model = card.id
    return ServerFacts(card.id, await _vocab_size(client, card.vocab_size), card.max_model_len)


async def prefix_counters(client: CompletionClient) -> PrefixCounters | None:
    """From /metrics; None where the server has no such counters. Raises MissingExtra without prometheus-client."""
    status, content = await client.get("/metrics")
    return read_counters(content.decode(errors="replace")) if status == 200 else None


def read_counters(text: str) -> PrefixCounters | None:
    """The counters in a page of Prometheus metrics, summed over all labels."""
    try:
        from prometheus_client.parser import text_string_to_metric_families
    except ImportError as error:
        raise MissingExtra("prometheus-client", "serve", "the prefix hit rate of whet bench-serve") from error
    totals: dict[str, float] = {}
    try:
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                name = sample.name.removesuffix("_total")
                if name.startswith(_PREFIXES) and name.endswith((_QUERIES, _HITS)):
                    kind = name.partition(":")[2]
                    totals[kind] = totals.get(kind, 0.0) + sample.value
    except (ValueError, KeyError, IndexError):  # what the parser raises for a page that is not Prometheus's
        return None
    return PrefixCounters(totals[_QUERIES], totals[_HITS]) if {_QUERIES, _HITS} <= totals.keys() else None


def hit_rate(before: PrefixCounters | None, after: PrefixCounters | None) -> float | None:
    """Share of the looked-up tokens that were found in between; None where none were, or it cannot be known."""
    if before is None or after is None or after.queries <= before.queries or after.hits < before.hits:
        return None
    return (after.hits - before.hits) / (after.queries - before.queries)


async def _vocab_size(client: CompletionClient, stated: int | None) -> int:
    """Where it is not stated, by asking. A token is asked for in any case: a key may be wanted for that alone."""
    said = ""
    for token_id in (stated - 1,) if stated else _LIKELY_IDS:
        status, said = await client.ask_once([token_id])
        if status == 200:
            return token_id + 1
        if status not in (400, 422):
            _check(client, status, said)
    raise TargetError(f"{client.url} refuses a prompt of one token: {said}; look at its log")


def _check(client: CompletionClient, status: int, said: str) -> None:
    if status in (401, 403):
        raise OptionError(f"{client.url} refuses the key ({status}); give the right one with --api-key")
    if status == 503:
        raise TargetError(f"{client.url} is not ready (503: {said}); try again when it is")
    if status != 200:
        raise TargetError(f"{client.url} answers with {status} ({said}): is it an OpenAI-compatible server?")


class _Card(BaseModel):
    id: str
    max_model_len: int | None = None
    vocab_size: int | None = None


class _Models(BaseModel):
    data: list[_Card]
