"""American spelling of the words of the documentation, so that the search finds what readers type."""

import re

_STEMS = (
    "amortis authoris capitalis categoris characteris customis discretis equalis factoris finalis generalis initialis "
    "linearis localis materialis maximis memoris minimis normalis optimis organis parallelis penalis polaris prioritis "
    "quantis randomis realis recognis regularis serialis specialis stabilis standardis summaris symmetris synchronis "
    "tokenis utilis vectoris visualis"
).split()
_NEITHER = frozenset("adviser cruiser miser raiser riser wiser appraiser".split())
_RULES = (
    (re.compile(r"(?<=[a-z])is(ations?)$"), r"iz\1"),
    (re.compile(r"(?<=[a-z])is(ers?)$"), r"iz\1"),
    (re.compile(rf"({'|'.join(stem[:-1] for stem in _STEMS)})s(e|es|ed|ing|able)$"), r"\1z\2"),
    (re.compile(r"analys(e|es|ed|er|ers|ing)$"), r"analyz\1"),
    (re.compile(r"^artefact"), "artifact"),
    (re.compile(r"(behavi|col|fav|hon|lab|neighb)our"), r"\1or"),
    (re.compile(r"^(centre|centres|centred)$"), lambda found: found[0].replace("centre", "center")),
    (re.compile(r"^(cancel|label|model|travel|signal)l(ed|ing|er|ers)$"), r"\1\2"),
    (re.compile(r"^(catalog)ue(s?)$"), r"\1\2"),
    (re.compile(r"^(licen|defen)ce(s?)$"), r"\1se\2"),
    (re.compile(r"^grey"), "gray"),
)
_WORD = re.compile(r"[a-z]+")


def american(word: str) -> str:
    """Return a word in lower case as Americans spell it; the word itself where they spell it so too."""
    if word in _NEITHER or word.removesuffix("s") in _NEITHER:
        return word
    for pattern, replacement in _RULES:
        word = pattern.sub(replacement, word)
    return word


def added_words(text: str) -> list[str]:
    """Return the American spellings that a text lacks, of the words that it has."""
    words = {*_WORD.findall(text.lower())}
    return sorted({american(word) for word in words} - words)
