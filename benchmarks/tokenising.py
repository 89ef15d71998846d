"""Measure how fast whet turns text into tokens on disk, and how fast it finds them again.

    python benchmarks/tokenising.py [--pairs 8] [--repeats 8] [--gigabytes 1] [--json FILE]

The text is that of ../shared/data/text, which is not part of the repository, several times over, and the tokenizer is
that of GPT-2. whet reads a file, hashes it, encodes it and writes a store, with an empty cache. `encode_batch` of the
tokenizers library is given the same text in memory, in blocks of a million characters, and its results are thrown away.
Both use all cores. A pair is one of each, in random order; ratios are geometric means with their 95% interval.

- one text: one document. `encode_batch` gets it in pieces of 32,768 characters, whose edges have other tokens.
- documents: the paragraphs of WikiText, one a line.
- characters, bytes: one document, with whet's own tokenizers.

Then a text becomes a store of so many gigabytes, a byte a token, and a fresh process asks for it again. The time of
that call is measured, without the start of Python. whet's goals: 0.9 times the speed of `encode_batch`, and well below
a second.
"""

import argparse
import json
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import tokenizers
from circumstances import circumstances
from quietly import quiet_machine

from whet.comparison.claim import claim_of
from whet.files import write_whole
from whet.trainer.tokens.tokenise import tokenised
from whet.trainer.tokens.tokenizer import LoadedTokenizer, completed, load_tokenizer

DATA = Path(__file__).parents[2] / "shared" / "data"
BLOCK, PIECE = 1 << 20, 1 << 15
GOAL = 0.9
AGAIN = """
import sys, time
from pathlib import Path
from whet.trainer.tokens.tokenise import tokenised
from whet.trainer.tokens.tokenizer import load_tokenizer
loaded = load_tokenizer("bytes")
began = time.perf_counter()
store = tokenised(Path(sys.argv[1]), loaded, cache=Path(sys.argv[2]))
print(time.perf_counter() - began, store.tokens.nbytes, int(store.tokens[-2]))
"""


def main() -> None:
    arguments = _arguments()
    if not DATA.is_dir():
        sys.exit(f"{DATA} is not here")
    wiki, plays = ((DATA / f"text/{name}.txt").read_text() for name in ("wikitext2-valid", "tinyshakespeare"))
    whole = (wiki + plays) * arguments.repeats
    lines = [line for line in wiki.split("\n") if line.strip()] * 2 * arguments.repeats
    gpt2 = _gpt2()
    rows = []
    with tempfile.TemporaryDirectory() as scratch, quiet_machine():
        place = Path(scratch)
        cases: list[tuple[str, LoadedTokenizer, str, list[str], str | None]] = [
            ("one text", gpt2, whole, _pieces(whole), None),
            ("documents", gpt2, "\n".join(lines), lines, "\n"),
            ("characters", load_tokenizer("characters", [whole]), whole, _pieces(whole), None),
            ("bytes", load_tokenizer("bytes"), whole, _pieces(whole), None),
        ]
        for what, loaded, text, texts, separator in cases:
            rows.append(_measured(what, loaded, text, texts, separator, place, arguments.pairs))
            print(_told(rows[-1]))
        again = _found_again(whole, arguments.gigabytes, place)
    print(f"{again['num_bytes'] / 1e9:.1f} GB of tokens are found again in {1e3 * again['seconds']:.0f} ms")
    if arguments.json is not None:
        command = f"python benchmarks/tokenising.py --pairs {arguments.pairs} --repeats {arguments.repeats}"
        command += f" --gigabytes {arguments.gigabytes:g}"
        versions = {"tokenizers": tokenizers.__version__}
        report = {**circumstances(command, versions), "goal": GOAL, "rows": rows, "again": again}
        write_whole(arguments.json, json.dumps(report, indent=1) + "\n")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=8, help="pairs of each row")
    parser.add_argument("--repeats", type=int, default=8, help="how often the text of 2.2 MB is repeated")
    parser.add_argument("--gigabytes", type=float, default=1.0, help="the size of the store that is found again")
    parser.add_argument("--json", type=Path, help="write the figures here too")
    return parser.parse_args()


def _gpt2() -> LoadedTokenizer:
    files = (str(DATA / f"tokenizer/gpt2_{name}") for name in ("vocab.json", "merges.txt"))
    library = tokenizers.Tokenizer(tokenizers.models.BPE.from_file(*files))
    library.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    library.add_special_tokens(["<|endoftext|>"])
    return completed(library)


def _pieces(text: str) -> list[str]:
    return [text[begin : begin + PIECE] for begin in range(0, len(text), PIECE)]


def _in_blocks(texts: Sequence[str]) -> list[list[str]]:
    """The texts, about a million characters together."""
    blocks: list[list[str]] = [[]]
    size = 0
    for text in texts:
        blocks[-1].append(text)
        size += len(text)
        if size >= BLOCK:
            blocks.append([])
            size = 0
    return [block for block in blocks if block]


def _measured(
    what: str,
    loaded: LoadedTokenizer,
    text: str,
    texts: Sequence[str],
    separator: str | None,
    place: Path,
    num_pairs: int,
) -> dict[str, Any]:
    """One row: the seconds of both, in pairs."""
    file, blocks = place / f"{what}.txt", _in_blocks(texts)
    file.write_text(text, newline="")
    counts: list[int] = []

    def library() -> None:
        for block in blocks:
            loaded.tokenizer.encode_batch(block, add_special_tokens=False)

    def whets() -> None:
        with tempfile.TemporaryDirectory(dir=place) as cache:
            counts.append(tokenised(file, loaded, cache=cache, separator=separator, append_end=False).num_tokens)

    ways: dict[str, Callable[[], None]] = {"encode_batch": library, "whet": whets}
    times: dict[str, list[float]] = {name: [] for name in ways}
    draw = random.Random(0)
    for number in range(num_pairs + 1):
        for name in draw.sample(sorted(ways), 2):
            began = time.perf_counter()
            ways[name]()
            if number:  # the first pair warms caches and threads up
                times[name].append(time.perf_counter() - began)
    claim = claim_of(times["encode_batch"], times["whet"])
    speeds = {name: counts[0] / statistics.median(seconds) for name, seconds in times.items()}
    ratio = {"ratio": claim.ratio, "ci95": list(claim.ci95 or ()), "num_pairs": claim.num_pairs}
    return {"what": what, "num_tokens": counts[0], "tokens_per_s": speeds, **ratio}


def _told(row: dict[str, Any]) -> str:
    speeds = ", ".join(f"{name} {speed / 1e6:.2f} M tokens/s" for name, speed in row["tokens_per_s"].items())
    return f"{row['what']:<12} {speeds}; {row['ratio']:.2f}x ({row['ci95'][0]:.2f}-{row['ci95'][1]:.2f})"


def _found_again(text: str, gigabytes: float, place: Path) -> dict[str, Any]:
    """How long a fresh process takes to get a large store from the cache."""
    file, cache = place / "large.txt", place / "cache"
    content = text.encode()
    with file.open("wb") as out:
        for _ in range(-(-int(gigabytes * 1e9) // (2 * len(content)))):  # a byte becomes a token of two bytes
            out.write(content)
    time.sleep(3)  # until the file's time is old enough to be trusted
    began = time.perf_counter()
    tokenised(file, load_tokenizer("bytes"), cache=cache)
    made_s = time.perf_counter() - began
    command = [sys.executable, "-c", AGAIN, str(file), str(cache)]
    seconds, num_bytes = [], 0
    for _ in range(5):
        found = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
        seconds.append(float(found[0]))
        num_bytes = int(found[1])
    return {"num_bytes": num_bytes, "seconds": statistics.median(seconds), "made_s": made_s}


if __name__ == "__main__":
    main()
