"""The native hybrid models against the readable ones, and against themselves: what shares a step must not show."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file
from torch import Tensor

from hybrid_models import FIRST, VARIANTS, config_of, read_tokens, readable
from native_steps import Read, assert_cuts_do_not_show, assert_drafts_do_not_show
from whet.errors import OptionError
from whet.kernels import build
from whet.kernels.build import Isa, library, supported
from whet.kernels.decoder.structs import Kv
from whet.kernels.linear.packed import Kind
from whet.models.families import FAMILIES, open_model
from whet.models.hybrid import Hybrid
from whet.models.hybrid.files import to_files
from whet.models.hybrid.native import NativeHybrid
from whet.models.state_rows import ServedInRows
from whet.models.step import Allocation

NUM_BLOCKS = 38  # of each row


def native(model: Hybrid, kind: Kind = Kind.F32, kv: Kv = Kv.F32, isa: Isa | None = None, **room: int) -> NativeHybrid:
    weights = {key: value.detach() for key, value in model.state_dict().items()}
    made = NativeHybrid(model.config, weights, library(isa), kind=kind, kv=kv)
    made.allocate(Allocation(**{"num_states": 4, "num_blocks": 4 * NUM_BLOCKS, **room}))
    return made


def run(model: Any, texts: list[tuple[Tensor, int, int, int]]) -> list[Tensor]:
    """One step of some sequences without drafts: token ids, start, end, row."""
    return read_tokens(model, [Read(ids[start:end], start, row, end) for ids, start, end, row in texts])


def random_ids(num: int, seed: int = 1) -> Tensor:
    return torch.randint(0, 97, (num,), generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("name", VARIANTS)
def test_float32_is_the_readable_model(tmp_path: Path, name: str) -> None:
    model, ids = readable(tmp_path, name), random_ids(450)  # three parts of a long step
    with torch.no_grad():
        wanted = model(ids[None])[0]
    assert wanted.std() > 0.2
    found = run(native(model), [(ids, 0, 450, 2)])[0]
    torch.testing.assert_close(found, wanted, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("isa", supported())
@pytest.mark.parametrize("name", ["lfm2 biases, untied", "falcon_h1 norm, biases"])
def test_every_build_computes_the_same(tmp_path: Path, isa: Isa, name: str) -> None:
    model, ids = readable(tmp_path, name), random_ids(60)
    with torch.no_grad():
        wanted = model(ids[None])[0]
    for kind, tolerance in (
        (Kind.F32, 1e-4),
        (Kind.BF16, 0.05),
        (Kind.S8, 0.1),
        (Kind.S4, 0.5),
    ):  # gates multiply the errors
        kv = {Kind.F32: Kv.F32, Kind.BF16: Kv.BF16}.get(kind, Kv.S8)
        found = run(native(model, kind, kv, isa), [(ids, 0, 60, 0)])[0]
        assert (found - wanted).norm() / wanted.norm() < tolerance, kind


@pytest.mark.parametrize(
    ("name", "kind", "kv"),
    [
        ("lfm2", Kind.F32, Kv.F32),
        ("lfm2", Kind.S4, Kv.BF16),
        ("granitemoehybrid", Kind.BF16, Kv.BF16),
        ("bamba", Kind.S8, Kv.S8),
        ("falcon_h1", Kind.F32, Kv.S8),
        ("falcon_h1", Kind.S8, Kv.F32),
    ],
)
def test_what_shares_a_step_and_how_it_is_cut_does_not_show(tmp_path: Path, name: str, kind: Kind, kv: Kv) -> None:
    model = native(readable(tmp_path, name), kind, kv)
    texts = [random_ids(num, seed) for seed, num in enumerate((260, 33, 70))]
    alone = [run(model, [(ids, 0, len(ids), 3)])[0] for ids in texts]

    @settings(max_examples=8)
    @given(data=st.data())
    def cut_at_random(data: st.DataObject) -> None:
        rows = data.draw(st.permutations(range(4)))
        assert_cuts_do_not_show(
            data,
            texts,
            alone,
            lambda parts: run(model, [(texts[i], start, end, rows[i]) for i, start, end in parts]),
            (1, 2, 15, 33, 40, 99, 230),
        )

    cut_at_random()


@pytest.mark.parametrize("name", FIRST)
def test_drafts_that_are_refused_leave_nothing(tmp_path: Path, name: str) -> None:
    model = native(readable(tmp_path, name), num_drafts=5)
    texts = [random_ids(num, seed) for seed, num in enumerate((300, 90, 40))]
    alone = [run(model, [(ids, 0, len(ids), 3)])[0] for ids in texts]

    @settings(max_examples=10)
    @given(data=st.data())
    def drafts_at_random(data: st.DataObject) -> None:
        assert_drafts_do_not_show(data, texts, alone, lambda reads: read_tokens(model, reads), 5)

    drafts_at_random()


@pytest.mark.parametrize("name", ["lfm2", "falcon_h1"])
def test_a_copied_state_goes_on_with_the_same_blocks(tmp_path: Path, name: str) -> None:
    model, ids = native(readable(tmp_path, name), num_snapshots=1, num_blocks=5 * NUM_BLOCKS), random_ids(60)
    wanted = run(model, [(ids, 0, 60, 0)])[0]
    run(model, [(ids, 0, 32, 1)])
    model.copy_state(1, 4)
    run(model, [(random_ids(52, 5), 32, 52, 1)])
    model.copy_state(4, 1)  # the blocks of the first 32 tokens are full, and stay as they are
    assert torch.equal(run(model, [(ids, 32, 60, 1)])[0], wanted[32:])


@pytest.mark.parametrize("num_threads", [1, 3])
def test_threads_do_not_show(tmp_path: Path, num_threads: int) -> None:
    for name in ("lfm2", "falcon_h1"):
        model, ids = readable(tmp_path, name), random_ids(100)
        wanted = run(native(model), [(ids, 0, 100, 0)])[0]
        try:
            library().set_threads(num_threads)
            assert torch.equal(run(native(model), [(ids, 0, 100, 0)])[0], wanted)
        finally:
            library().set_threads(torch.get_num_threads())


def write(directory: Path, name: str) -> Hybrid:
    model = readable(directory, name)
    weights = {key: value.detach().clone() for key, value in model.state_dict().items()}
    save_file(to_files(model.config, weights), directory / "model.safetensors")
    return model


@pytest.mark.parametrize("off", [False, True])
@pytest.mark.parametrize("name", ["lfm2", "bamba"])
def test_opened_from_a_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, off: bool) -> None:
    if off:
        monkeypatch.setenv("WHET_KERNELS", "off")
        build.library.cache_clear()
    try:
        model, ids = write(tmp_path, name), random_ids(30)
        opened: Any = open_model(tmp_path, dtype="fp32", max_model_len=50)
        assert isinstance(opened, ServedInRows if off else NativeHybrid)
        assert (opened.max_model_len, opened.can_rewind) == (50, True)
        assert (opened.bytes_per_block > 0) is not off
        opened.allocate(Allocation(num_states=2, num_blocks=2 * NUM_BLOCKS, num_drafts=2))
        with torch.no_grad():
            wanted = model(ids[None])[0]
        first = read_tokens(opened, [Read(ids[:20], 0, 1, 18)])[0]
        found = torch.cat([first[:19], run(opened, [(ids, 19, 30, 1)])[0]])
        torch.testing.assert_close(found, wanted, atol=1e-4, rtol=1e-4)
        for length in (0, 601):
            with pytest.raises(OptionError, match="max_model_len"):
                open_model(tmp_path, max_model_len=length)
        if off:
            for option in ({"weights": "int8"}, {"kv": "int8"}):
                with pytest.raises(OptionError, match="=int8 needs whet's own kernels"):
                    open_model(tmp_path, **option)
        else:
            assert open_model(tmp_path, weights="int4").weight_bytes < open_model(tmp_path).weight_bytes
            assert open_model(tmp_path, kv="int8").bytes_per_block < open_model(tmp_path).bytes_per_block
    finally:
        build.library.cache_clear()


def test_heads_that_the_kernels_do_not_take_are_served_in_torch(tmp_path: Path, caplog: Any) -> None:
    config = {**config_of("bamba"), "num_attention_heads": 2, "mamba_d_head": 16}  # heads of 24 numbers
    (tmp_path / "config.json").write_text(json.dumps(config))
    family = FAMILIES["bamba"]
    model = Hybrid(family.files.read_config(tmp_path))
    save_file(to_files(model.config, {k: v.detach().clone() for k, v in model.state_dict().items()}),
              tmp_path / "model.safetensors")  # fmt: skip
    assert isinstance(open_model(tmp_path), ServedInRows)
    assert "head_dim is 24" in caplog.text
