"""What `whet techniques` and the documentation say of each technique."""

import json
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

import pytest

import whet
from whet.errors import OptionError
from whet.measure.machine import describe
from whet.techniques import TABLE
from whet.techniques import catalogue as told
from whet.techniques.mechanisms.uses import Use
from whet.techniques.training import TRAINING_TABLE

ROOT = Path(__file__).parents[2]
SECTIONS = {"What", "When it helps", "When it hurts", "Numerics", "Composes", "Source"}


def test_every_technique_has_a_card_that_can_be_read() -> None:
    cards = told.technique_cards()
    assert [card.name for card in cards] == list(TABLE)
    for card in cards:
        assert card.title.endswith("."), card.name
        assert set(card.sections) == SECTIONS, card.name
        assert all(card.sections.values()), card.name
        assert bool(card.options) == bool(card.remarks or any(option.text for option in card.options)), card.name


def test_the_options_of_a_card_are_those_that_recipes_take() -> None:
    cards = {card.name: card for card in told.technique_cards()}
    for name, technique in TABLE.items():
        default = technique.options()
        found = {option.name: option.default for option in cards[name].options}
        assert found == asdict(default)
        assert set(technique.space) <= found.keys()


def test_texts_of_options_are_read_from_an_attributes_section() -> None:
    @dataclass(frozen=True)
    class Options:
        """Choose how it runs. Both hold in every process.

        Attributes:
            first: One line.
            second: Two lines, of which
                this is the second.
        """

        first: int = 1
        second: int = 2

    texts, rest = told._option_texts(Options)
    assert texts == {"first": "One line.", "second": "Two lines, of which this is the second."}
    assert rest == "Both hold in every process."


def test_a_technique_that_the_machine_refuses_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    found = {technique.name: technique for technique in whet.list_techniques()}
    assert list(found) == list(TABLE)
    assert found["fuse_conv_bn"].can_run
    assert found["fuse_conv_bn"].reason == ""
    assert found["bf16"].can_run == describe().computes_bfloat16()
    assert found["inductor"].refused["engine"] == ("cudagraphs",)  # the sample is on the CPU
    real = sys.modules["whet.techniques.backend.openvino"].find_spec
    place = "whet.techniques.backend.openvino.find_spec"
    monkeypatch.setattr(place, lambda name: None if name == "openvino" else real(name))
    without = whet.describe_technique("openvino")
    assert not without.can_run
    assert "torch-whet[openvino]" in without.reason


def test_a_wrong_name_is_answered_by_the_nearest() -> None:
    with pytest.raises(OptionError, match="did you mean openvino"):
        whet.describe_technique("openvin")
    with pytest.raises(OptionError, match="there are: autocast"):
        whet.describe_technique("?")
    with pytest.raises(OptionError, match="did you mean int8_dynamic"):  # the cards speak of it, no name does
        whet.describe_technique("quantization")
    with pytest.raises(OptionError, match="tensorrt cannot be used yet"):
        whet.describe_technique("tensorrt")


def test_techniques_for_training_can_be_looked_up() -> None:
    cards = told.technique_cards(training=True)
    assert [card.name for card in cards] == list(TRAINING_TABLE)
    for card in cards:
        assert set(card.sections) == SECTIONS, card.name
        assert set(card.loops) == set(Use), card.name
    found = whet.describe_technique("optimizer_in_backward")
    assert found.can_run and found.loops["clipping"] and not found.loops["closure"]
    assert not whet.describe_technique("threads").loops
    assert whet.describe_technique("threads", training=True).loops
    with pytest.raises(OptionError, match="tensorrt cannot be used yet: needs a CUDA device"):
        whet.describe_technique("tensorrt")


@pytest.mark.parametrize(
    ("asked", "near"),
    [
        ("optimizer_in_backwards", "optimizer_in_backward"),
        ("gradient-checkpointing", "checkpointing"),
        ("flash_attention", "sdpa_attention"),
        ("int8", "int8_static"),
        ("offload", "activation_offload or optimizer_offload"),
        ("zero grad", "set_to_none"),
        ("quantize", "int"),
    ],
)
def test_a_suggestion_helps(asked: str, near: str) -> None:
    with pytest.raises(OptionError, match=f"did you mean .*{near}"):
        whet.describe_technique(asked)


def test_the_measured_rows_are_those_of_the_published_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    from technique_rows import technique_rows

    written = json.loads(told.MEASURED.read_text(encoding="utf-8"))
    assert written == technique_rows(ROOT / "docs" / "results"), "run python benchmarks/results.py"
    demo = json.loads((ROOT / "docs" / "results" / "demo.json").read_text(encoding="utf-8"))
    best = demo["workloads"][0]
    row = next(row for card in told.technique_cards() if card.name == "openvino" for row in card.measured)
    assert (row.model, row.speedup, row.ci95) == (best["target"], best["speedup"], tuple(best["speedup_ci95"]))
    assert row.is_alone
    beside_others = [row for card in told.technique_cards() if card.name == "int8_static" for row in card.measured]
    assert beside_others
    assert not any(row.is_alone for row in beside_others)
