"""A stage has its share of the layers, and what cannot be cut is refused by name."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from many import on_ranks
from pipeline_jobs import cut

from whet.errors import OptionError
from whet.parallel.pipeline.stages import places_of


@given(st.integers(1, 40), st.integers(1, 12))
@settings(max_examples=60, deadline=None)
def test_each_layer_is_in_one_stage(num_layers: int, num_stages: int) -> None:
    if num_layers < num_stages:
        with pytest.raises(OptionError, match=rf"{num_stages} stages, more than the model has layers \({num_layers}\)"):
            places_of(0, num_stages, num_layers)
        return
    places = [places_of(number, num_stages, num_layers) for number in range(num_stages)]
    assert [place for one in places for place in one] == list(range(num_layers))
    sizes = [len(one) for one in places]
    assert max(sizes) - min(sizes) <= 1
    assert sizes[-1] == min(sizes)


def test_a_process_holds_its_part_under_the_names_of_the_whole() -> None:
    first, second = on_ranks(cut, 2)
    assert first["names"] == ["embed_tokens.weight", "layers.0", "layers.1", "layers.2", "lm_head.weight"]
    assert second["names"] == ["embed_tokens.weight", "layers.3", "layers.4", "lm_head.weight", "norm.weight"]
    assert (first["copies"], second["copies"]) == ([], ["embed_tokens.weight", "lm_head.weight"])
    assert "the model is Linear" in first["refusal"]
