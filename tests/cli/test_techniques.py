"""whet techniques: the list, a card, and a name that is not there."""

import json

import pytest

import whet
from whet.cli import main
from whet.techniques import TABLE
from whet.techniques.training import TRAINING_TABLE


def shown(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> str:
    with pytest.raises(SystemExit) as left:
        main(["techniques", *arguments])
    assert left.value.code == code
    captured = capsys.readouterr()
    return captured.out if code == 0 else captured.err


def test_the_list_names_every_technique_by_stage(capsys: pytest.CaptureFixture[str]) -> None:
    lines = shown(capsys).splitlines()
    names = [line.split()[0] for line in lines if line.split()[1:2] in (["yes"], ["no"])]
    assert names[: len(TABLE)] == list(TABLE)
    stages = [line.split()[0] for line in lines if line and not line.startswith(" ")]
    assert stages[:5] == ["structure", "precision", "layout", "backend", "runtime"]


def test_the_list_as_json_is_what_the_function_returns(capsys: pytest.CaptureFixture[str]) -> None:
    found = json.loads(shown(capsys, "--json"))["techniques"]
    mine = whet.list_techniques()
    assert [(each["name"], each["can_run"]) for each in found] == [(each.name, each.can_run) for each in mine]


def test_a_card_shows_its_sections_options_and_measurements(capsys: pytest.CaptureFixture[str]) -> None:
    card = shown(capsys, "int8_static")
    for word in ("When it hurts", "calibration", "minmax, percentile, entropy", "has not been measured on its own yet"):
        assert word in card
    assert "5.60x" in shown(capsys, "openvino")
    assert "It has no options." in shown(capsys, "bf16")


def test_a_wrong_name_ends_with_2_and_the_nearest_names(capsys: pytest.CaptureFixture[str]) -> None:
    assert "did you mean openvino?" in shown(capsys, "openvin", code=2)
    assert "did you mean fuse_qkv" in shown(capsys, "fuse_qk", "--json", code=2)


def test_training_is_listed_and_a_name_of_both_shows_both_cards(capsys: pytest.CaptureFixture[str]) -> None:
    lines = shown(capsys).splitlines()
    assert {line.split()[0] for line in lines if line.split()[1:2] in (["yes"], ["no"])} >= set(TRAINING_TABLE)
    assert "training: optimizer" in "\n".join(lines)
    card = shown(capsys, "threads")
    assert "The same name in a training recipe" in card and "It bears: clipping" in card
    assert "It refuses clipping" in shown(capsys, "optimizer_in_backward")
    found = json.loads(shown(capsys, "threads", "--json"))
    assert found["loops"] == {} and found["training"]["loops"]["DDP"] == ""
