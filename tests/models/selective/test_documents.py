"""Documents that share rows: each of them begins without a past, wherever it lies."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from whet.errors import InputsError
from whet.models.selective import Selective, SelectiveConfig
from whet.models.selective.documents import DocumentRows


@settings(max_examples=60, deadline=None)
@given(st.lists(st.lists(st.integers(-1, 3), min_size=12, max_size=12), min_size=1, max_size=4))
def test_a_causal_layer_sees_each_document_alone(rows):
    numbers = torch.tensor(rows)
    x = torch.randn(*numbers.shape, 2, dtype=torch.float64)
    found = DocumentRows.of(numbers).each(lambda part: part.cumsum(1), x)
    for row, values, given_row in zip(numbers, found, x, strict=True):
        begin = 0
        for length in torch.unique_consecutive(row, return_counts=True)[1].tolist():
            torch.testing.assert_close(values[begin : begin + length], given_row[begin : begin + length].cumsum(0))
            begin += length


@pytest.mark.parametrize("kind", ["mamba", "mamba2"])
def test_logits_are_those_of_the_documents_alone(kind):
    sizes = {"vocab_size": 50, "hidden_size": 32, "num_hidden_layers": 2, "state_size": 8}
    heads = {"num_heads": 4, "head_dim": 16, "n_groups": 1} if kind == "mamba2" else {}
    torch.manual_seed(0)
    model = Selective(SelectiveConfig(model_type=kind, **sizes, **heads)).eval()
    ids = torch.randint(50, (2, 30))
    numbers = torch.tensor([[0] * 11 + [1] * 1 + [2] * 12 + [-1] * 6, [0] * 30])
    with torch.no_grad():
        found = model(ids, documents_BT=numbers)
        alone = torch.cat([model(ids[:1, a:b]) for a, b in ((0, 11), (11, 12), (12, 24), (24, 30))], 1)
        torch.testing.assert_close(found[:1], alone)
        torch.testing.assert_close(found[1:], model(ids[1:]))
        assert not torch.allclose(found[:1, 12:24], model(ids[:1])[:, 12:24], atol=1e-4)
    with pytest.raises(InputsError, match="leave one of state and documents_BT out"):
        model(ids, model.new_state(2), numbers)
