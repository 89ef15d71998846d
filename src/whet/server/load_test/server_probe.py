"""Ask a server what it serves before it is put under load."""

from dataclasses import dataclass

from pydantic import BaseModel, ValidationError

from whet.errors import MissingExtra, OptionError, TargetError
from whet.server.load_test.client import CompletionClient, message_of

# If a server does not state the size of its vocabulary, the largest of these ids that it takes in a prompt is used.
_LIKELY_IDS = (131_071, 100_000, 49_151, 31_999, 15_999, 7_999, 3_999, 999, 255)

_PREFIXES = ("whet:", "vllm:")
_QUERIES, _HITS = "prefix_cache_queries", "prefix_cache_hits"


@dataclass(frozen=True)
class ServerFacts:
    """Hold the facts about a server's model. max_model_len is None if the server does not state it."""

    model: str
    vocab_size: int
    max_model_len: int | None


@dataclass(frozen=True)
class PrefixCounters:
    """Count the prompt tokens that were looked up in the prefix cache, and those found, since the server started."""

    queries: float
    hits: float


async def examine(client: CompletionClient) -> ServerFacts:
    """Find the server's model, set it as the client's model, and ask it for a token.

    Raises:
        TargetError: The server cannot be reached, or is not an OpenAI-compatible server.
        OptionError: The API key is wrong.
    """
    status, content = await client.ask("/v1/models")
    _check(client, status, message_of(content))
    try:
        card = _Models.model_validate_json(content).data[0]
    except (ValidationError, IndexError) as error:
        raise TargetError(f"{client.url} lists no model at /v1/models: is it an OpenAI-compatible server?") from error
    client.model = card.id
    return ServerFacts(card.id, await _vocab_size(client, card.vocab_size), card.max_model_len)


async def prefix_counters(client: CompletionClient) -> PrefixCounters | None:
    """Read the counters at /metrics, or return None if the server has none.

    Raises:
        MissingExtra: The package prometheus-client is not installed.
    """
    status, content = await client.ask("/metrics")
    return read_counters(content.decode(errors="replace")) if status == 200 else None


def read_counters(text: str) -> PrefixCounters | None:
    """Return the counters in a page of Prometheus metrics, summed over all labels, or None if there are none."""
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
    except (ValueError, KeyError, IndexError):  # the parser raises these for a page in another format
        return None
    return PrefixCounters(totals[_QUERIES], totals[_HITS]) if {_QUERIES, _HITS} <= totals.keys() else None


def hit_rate(before: PrefixCounters | None, after: PrefixCounters | None) -> float | None:
    """Return the share of looked-up tokens that were found between two readings, 0 to 1, or None if it is not known."""
    if before is None or after is None or after.queries <= before.queries or after.hits < before.hits:
        return None
    return (after.hits - before.hits) / (after.queries - before.queries)


async def _vocab_size(client: CompletionClient, stated: int | None) -> int:
    """Return the size of the vocabulary; if it is not stated, find out by trying.

    A token is asked for in any case, since some servers need a key only for this.
    """
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
