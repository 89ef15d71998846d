"""MOV104's fix, judged by PyTorch: both spellings make tensors of the same shape and dtype on the same device."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from whet_audit.collect import SourceFile
from whet_audit.engine import inspect_files
from whet_audit.fixing import apply_fixes

_SIZES = st.sampled_from(["2, 3", "(2, 3)", "size=(2, 3)", "*(2, 3)", "2, 3,"])
_FACTORIES = st.one_of(
    st.builds(lambda name, size: f"torch.{name}({size}", st.sampled_from(["zeros", "ones", "empty", "randn"]), _SIZES),
    st.sampled_from(["torch.arange(4", "torch.full((2,), 3.0", "torch.eye(3", "torch.tensor([[1, 2]]"]),
)
_DTYPES = st.sampled_from(["", "dtype=torch.float64", "dtype=torch.float16"])
_MOVES = st.sampled_from(
    [".to(device)", ".to(device=device)", ".to(device, non_blocking=True)", ".to('meta')", ".to(device, torch.float16)"]
)


@settings(max_examples=60, deadline=None)
@given(_FACTORIES, _DTYPES, _MOVES)
def test_the_fixed_call_makes_the_same_tensor(factory: str, dtype: str, move: str) -> None:
    comma = "" if not dtype else " " if factory.endswith(",") else ", "
    expression = f"{factory}{comma}{dtype}){move}"
    function = f"def forward(self, x, device):\n        return x + {expression}\n"
    source = f"import torch\nfrom torch import nn\n\nclass Net(nn.Module):\n    {function}"
    found = [f for f in inspect_files([SourceFile("net.py", source)]).findings if f.code == "MOV104"]
    assert len(found) == (0 if "'meta'" in move else 1)
    fixed = apply_fixes(source, [f.fix for f in found if f.fix is not None]).source
    changed = fixed.split("return x + ")[1].strip()
    names = {"torch": torch, "device": torch.device("meta")}
    before, after = eval(expression, names), eval(changed, names)  # expressions made above
    assert (before.shape, before.dtype, before.device) == (after.shape, after.dtype, after.device)
    if changed != expression:
        assert not [f for f in inspect_files([SourceFile("net.py", fixed)]).findings if f.code == "MOV104"]
