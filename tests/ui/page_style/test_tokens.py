"""Can everybody read the colours? Contrast as WCAG 2 defines it, and colour blindness as Machado et al. model it."""

import itertools
import re

import numpy as np
import pytest

from whet.ui import page_style

TEXT = (
    "ink", "muted", "accent", "good", "bad", "busy", "neutral", "compute", "bandwidth", "overhead", "code-keyword",
    "code-string", "code-number", "code-comment", "code-name", "code-added", "code-removed",
)  # fmt: skip
CHART = tuple(f"c{i}" for i in range(7))

# Machado, Oliveira and Fernandes, "A Physiologically-based Model for Simulation of Color Vision Deficiency" (2009),
# severity 1, for linear RGB.
BLINDNESS = {
    "none": [[1, 0, 0], [0, 1, 0], [0, 0, 1]],
    "protanopia": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "deuteranopia": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
    "tritanopia": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]],
}


def tokens(scheme: str) -> dict[str, str]:
    """Return the colours of a scheme by name."""
    light, _, dark = page_style.read(page_style.TOKENS).partition("@media")
    found = dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6})", light))
    return found if scheme == "light" else {**found, **dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6})", dark))}


def linear(colour: str) -> np.ndarray:
    levels = np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    return np.where(levels <= 0.04045, levels / 12.92, ((levels + 0.055) / 1.055) ** 2.4)


def contrast(a: str, b: str) -> float:
    low, high = sorted(float(linear(colour) @ [0.2126, 0.7152, 0.0722]) for colour in (a, b))
    return (high + 0.05) / (low + 0.05)


def oklab(rgb: np.ndarray) -> np.ndarray:
    """Convert linear RGB to Ottosson's perceptual colour space. A distance of about 0.02 can just be seen."""
    cones = [[0.4122214708, 0.5363325363, 0.0514459929], [0.2119034982, 0.6806995451, 0.1073969566]]
    cones.append([0.0883024619, 0.2817188376, 0.6299787005])
    axes = [[0.2104542553, 0.7936177850, -0.0040720468], [1.9779984951, -2.4285922050, 0.4505937099]]
    axes.append([0.0259040371, 0.7827717662, -0.8086757660])
    return np.array(axes) @ np.cbrt(np.array(cones) @ np.clip(rgb, 0, 1))


def test_contrast_is_what_wcag_says() -> None:
    assert contrast("#000000", "#ffffff") == pytest.approx(21)
    assert contrast("#777777", "#ffffff") == pytest.approx(4.48, abs=0.01)  # the usual example of a near miss


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_can_be_read(scheme: str) -> None:
    found = tokens(scheme)
    for name, behind in itertools.product(TEXT, ("paper", "raised")):
        assert contrast(found[name], found[behind]) >= 4.5, (name, behind)
    assert contrast(found["ink"], found["highlight"]) >= 4.5
    for name in CHART:
        assert contrast(found[name], found["paper"]) >= 3, name


@pytest.mark.parametrize("kind", BLINDNESS)
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_lines_of_a_chart_differ_for_everybody(scheme: str, kind: str) -> None:
    found = tokens(scheme)
    seen = {name: oklab(np.array(BLINDNESS[kind]) @ linear(found[name])) for name in CHART}
    for a, b in itertools.combinations(CHART, 2):
        assert np.linalg.norm(seen[a] - seen[b]) >= 0.07, (a, b)


def test_each_scheme_has_every_colour() -> None:
    light, _, dark = page_style.read(page_style.TOKENS).partition("@media")
    names = [set(re.findall(r"--([\w-]+): #", part)) for part in (light, dark)]
    assert names[0] == names[1]
    assert page_style.chart_colours() == [tokens("light")[name] for name in CHART]


def test_the_shared_style_uses_tokens_that_there_are_and_no_colour_of_its_own() -> None:
    base = page_style.read(page_style.BASE)
    known = set(re.findall(r"(--[\w-]+):", page_style.read(page_style.TOKENS)))
    assert set(re.findall(r"var\((--[\w-]+)\)", base)) <= known
    assert not re.search(r"#[0-9a-f]{3,6}\b|rgb\(|url\(|@import", base)
