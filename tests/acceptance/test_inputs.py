"""Constants, masks of -inf and batch sizes from `whet tune` to whet.load."""

import json
from pathlib import Path

import pytest
import targets
import torch

import whet
from whet.cli import main
from whet.errors import InputsError
from whet.techniques import TABLE

ONE = "bf16" if whet.describe().computes_bfloat16("cpu") else "threads"  # a technique that applies on this processor
ALL_BUT_ONE = ",".join(name for name in TABLE if name != ONE)


pytestmark = pytest.mark.usefixtures("short_children")


def tune(target: str, out: Path) -> None:
    command = ["tune", f"{targets.HERE}:{target}", "--budget", "5m", "--exclude", ALL_BUT_ONE, "--out", str(out)]
    with pytest.raises(SystemExit) as left:
        main(command)
    assert left.value.code in (0, 3)  # 3: a busy machine gives no verdict, and the original is saved


@pytest.mark.slow
def test_a_decoder_with_constants_and_a_mask_is_loaded_for_any_batch(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    tune("decoder", tmp_path / "out")
    artefact = whet.load(tmp_path / "out" / "model")
    assert "use_cache=False, output_hidden_states=True" in str(artefact.signature)
    model, inputs = targets.decoder()
    for size in (1, 2, 5):
        ids, mask = torch.randint(0, 50, (size, 8)), inputs["attention_mask"][:1].repeat(size, 1, 1, 1)
        found = artefact(input_ids=ids, attention_mask=mask)
        with torch.no_grad():
            wanted = model(input_ids=ids, attention_mask=mask, use_cache=False, output_hidden_states=True)
        torch.testing.assert_close(found.logits, wanted.logits, rtol=2e-2, atol=2e-2)
        assert len(found.hidden_states) == len(wanted.hidden_states) == 2
    for change in ({"use_cache": True}, {"output_hidden_states": None}, {"attention_mask": None}):
        with pytest.raises(InputsError, match=f"was called with .*{next(iter(change))}={next(iter(change.values()))}"):
            artefact(**{**inputs, **change})


def test_a_batch_that_stays_fixed_is_said_while_tuning(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tune("fixed_batch", tmp_path / "out")
    trials = capsys.readouterr().out.partition("speedup")[0]
    assert "fixed to batch 4: the model does not take a batch of 1: shape " in " ".join(trials.split())
    result = json.loads((tmp_path / "out" / "result.json").read_text())
    assert result["trials"][0]["fixed_batch"] == 4
    artefact = whet.load(tmp_path / "out" / "model")
    assert artefact.manifest.notes[0].startswith("fixed to batch 4: the model does not take")
    with pytest.raises(InputsError, match=r"takes \(float32\[4, 8\]\)"):
        artefact(torch.randn(5, 8))
