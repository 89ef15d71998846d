"""The native models against the readable ones, and against themselves: what shares a step must not show."""

import json
from typing import Any

import pytest
import torch
from driving import make_request, make_stepper, outputs
from hypothesis import given, settings
from hypothesis import strategies as st
from naive import naive_output
from safetensors.torch import save_file
from torch import Tensor

from native_steps import Read, assert_cuts_do_not_show, assert_drafts_do_not_show, read
from whet.errors import InputsError, OptionError, TargetError
from whet.kernels import build
from whet.kernels.build import Isa, library, supported
from whet.kernels.linear.packed import Kind
from whet.models.families import open_model
from whet.models.selective import Selective, SelectiveConfig, SelectiveState
from whet.models.selective.native import NativeSelective
from whet.models.state_rows import ServedInRows
from whet.models.step import Allocation
from whet.server.sampling_params import SamplingParams

SMALL = {"vocab_size": 97, "hidden_size": 40, "state_size": 12, "num_hidden_layers": 3}
CONFIGS: dict[str, dict[str, Any]] = {
    "mamba": {**SMALL, "model_type": "mamba"},
    "mamba biases, untied": {
        **SMALL,
        "model_type": "mamba",
        "use_bias": True,
        "tie_word_embeddings": False,
        "expand": 3,
        "conv_kernel": 3,
    },
    "falcon_mamba": {**SMALL, "model_type": "falcon_mamba", "use_conv_bias": False},
    "mamba2": {**SMALL, "model_type": "mamba2", "num_heads": 5, "head_dim": 16, "n_groups": 1},
    "mamba2 groups, limits": {
        **SMALL,
        "model_type": "mamba2",
        "num_heads": 4,
        "head_dim": 20,
        "n_groups": 2,
        "time_step_limit": [0.01, 0.05],
        "use_bias": True,
    },
}
Text = tuple[Tensor, int, int, int]  # token ids, start, end, row of state


def readable(name: str) -> Selective:
    torch.manual_seed(0)
    model = Selective(SelectiveConfig.model_validate(CONFIGS[name])).eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(torch.randn_like(weight) * 0.1)
    return model


def native(model: Selective, kind: Kind = Kind.F32, isa: Isa | None = None, **room: int) -> NativeSelective:
    weights = {key: value.detach() for key, value in model.state_dict().items()}
    made = NativeSelective(model.config, weights, library(isa), kind=kind)
    made.allocate(Allocation(**{"num_states": 4, **room}))
    return made


def run(model: NativeSelective | ServedInRows, texts: list[Text]) -> list[Tensor]:
    """One step of some sequences without drafts."""
    return read(model, [Read(ids[start:end], start, row, end) for ids, start, end, row in texts])


def random_ids(num: int, seed: int = 1) -> Tensor:
    return torch.randint(0, 97, (num,), generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("name", CONFIGS)
def test_float32_is_the_readable_model(name: str) -> None:
    model, ids = readable(name), random_ids(450)  # three parts of a long step
    with torch.no_grad():
        wanted = model(ids[None])[0]
    assert wanted.std() > 0.3
    found = run(native(model), [(ids, 0, 450, 2)])[0]
    torch.testing.assert_close(found, wanted, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("isa", supported())
@pytest.mark.parametrize("name", ["falcon_mamba", "mamba2 groups, limits"])
def test_every_build_computes_the_same(isa: Isa, name: str) -> None:
    model, ids = readable(name), random_ids(60)
    with torch.no_grad():
        wanted = model(ids[None])[0]
    for kind, tolerance in ((Kind.F32, 1e-4), (Kind.BF16, 0.05), (Kind.S8, 0.1), (Kind.S4, 0.4)):
        found = run(native(model, kind, isa), [(ids, 0, 60, 0)])[0]
        assert (found - wanted).norm() / wanted.norm() < tolerance, kind


@pytest.mark.parametrize("kind", [Kind.F32, Kind.BF16, Kind.S8, Kind.S4])
@pytest.mark.parametrize("name", ["mamba", "falcon_mamba", "mamba2 groups, limits"])
def test_what_shares_a_step_and_how_it_is_cut_does_not_show(name: str, kind: Kind) -> None:
    model = native(readable(name), kind)
    texts = [random_ids(num, seed) for seed, num in enumerate((260, 33, 70))]
    alone = [run(model, [(ids, 0, len(ids), 3)])[0] for ids in texts]

    @settings(max_examples=12)
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


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("num_drafts", [1, 5, 40])
def test_drafts_leave_nothing_behind(name: str, num_drafts: int) -> None:
    model = native(readable(name), num_drafts=num_drafts, num_states=3)
    texts = [random_ids(num, seed) for seed, num in enumerate((260, 60, 12))]
    alone = [run(model, [(ids, 0, len(ids), 0)])[0] for ids in texts]

    @settings(max_examples=8)
    @given(data=st.data())
    def drawn(data: st.DataObject) -> None:
        assert_drafts_do_not_show(data, texts, alone, lambda reads: read(model, reads), num_drafts)

    drawn()


@pytest.mark.parametrize("name", ["falcon_mamba", "mamba2"])
def test_drafts_of_the_readable_model(name: str) -> None:
    """What is read in one call is rounded otherwise than what is read token by token."""
    model, ids = ServedInRows(readable(name)), random_ids(30)
    model.allocate(Allocation(num_states=1, num_snapshots=1, num_drafts=4))
    with torch.no_grad():
        wanted = model.model(ids[None])[0]
    wrong = random_ids(30, 9)
    found = [read(model, [Read(ids[:9], 0, 0, 9)])[0]]
    refused = torch.cat((ids[9:12], wrong[:2]))  # two accepted, two refused
    found.append(read(model, [Read(refused, 9, 0, 10)])[0][:3])
    model.copy_state(0, 1)
    found.append(read(model, [Read(ids[12:13], 12, 0, 13)])[0])
    read(model, [Read(wrong[:3], 13, 0, 13)])
    found.append(read(model, [Read(ids[13:], 13, 0, 30)])[0])
    torch.testing.assert_close(torch.cat(found), wanted, atol=1e-4, rtol=1e-4)
    again = read(model, [Read(ids[10:], 10, 1, 30)])[0]  # the copy was of what was settled
    torch.testing.assert_close(again, wanted[10:], atol=1e-4, rtol=1e-4)
    with pytest.raises(ValueError, match="row 0 holds no state before position 29"):
        read(model, [Read(ids[29:], 29, 0, 30)])


@pytest.mark.parametrize("name", ["falcon_mamba", "mamba2"])
def test_a_copy_is_the_settled_state(name: str) -> None:
    model, ids, other = native(readable(name), num_snapshots=2, num_drafts=4), random_ids(40), random_ids(40, 5)
    wanted = run(model, [(ids, 0, 40, 0)])[0]
    read(model, [Read(ids[:20], 0, 1, 17), Read(other[:20], 0, 3, 20)])
    model.copy_state(1, 5)
    run(model, [(other, 0, 30, 1)])
    for target in (3, 1):
        model.copy_state(5, target)
        assert torch.equal(run(model, [(ids, 17, 40, target)])[0], wanted[17:])
    model.copy_state(5, 4)
    model.copy_state(4, 0)
    assert torch.equal(run(model, [(ids, 17, 40, 0)])[0], wanted[17:])


def test_what_a_row_does_not_hold_is_refused() -> None:
    model, ids = native(readable("mamba"), num_drafts=2), random_ids(40)
    run(model, [(ids, 0, 20, 1)])
    for begin in (19, 21):
        with pytest.raises(ValueError, match=rf"rows \[1\] hold no states before positions \[{begin}\]"):
            run(model, [(ids, begin, 30, 1)])
    with pytest.raises(ValueError, match="a sequence has more than 2 drafts"):
        read(model, [Read(ids[20:24], 20, 1, 21)])
    with pytest.raises(InputsError, match="row 1 holds the state after 20 tokens, not after 19"):
        model.read_state(1, 19)


@pytest.mark.parametrize("num_threads", [1, 3])
def test_threads_do_not_show(num_threads: int) -> None:
    for name in ("mamba", "mamba2"):
        model, ids = readable(name), random_ids(100)
        wanted = run(native(model), [(ids, 0, 100, 0)])[0]
        try:
            library().set_threads(num_threads)
            assert torch.equal(run(native(model), [(ids, 0, 100, 0)])[0], wanted)
        finally:
            library().set_threads(torch.get_num_threads())


def test_a_row_that_is_used_again_begins_anew() -> None:
    model, ids, other = native(readable("mamba2")), random_ids(30), random_ids(30, 5)
    wanted = run(model, [(ids, 0, 30, 1)])[0]
    run(model, [(other, 0, 30, 1)])
    first = run(model, [(ids, 0, 1, 1), (other, 0, 9, 2)])[0]
    assert torch.equal(torch.cat((first, run(model, [(ids, 1, 30, 1)])[0])), wanted)


@pytest.mark.parametrize("name", CONFIGS)
def test_states_pass_between_native_and_readable_models(tmp_path: Any, name: str) -> None:
    readable_model, ids = readable(name), random_ids(60)
    model, state = native(readable_model), readable_model.new_state()
    wanted = run(model, [(ids, 0, 60, 1)])[0]
    run(model, [(ids, 0, 40, 2)])
    kept = model.read_state(2, 40)
    readable_model.step(ids[None, :40], state)
    assert kept.num_tokens == state.num_tokens
    for one, other in zip(kept.layers, state.layers, strict=True):
        torch.testing.assert_close(one.conv_BSC, other.conv_BSC, atol=1e-4, rtol=1e-4)
        torch.testing.assert_close(one.scan, other.scan, atol=1e-4, rtol=1e-4)
    kept.save(tmp_path / "state.safetensors")
    other_model = native(readable_model)
    other_model.write_state(3, SelectiveState.load(tmp_path / "state.safetensors"))
    assert torch.equal(run(other_model, [(ids, 40, 60, 3)])[0], wanted[40:])
    logits = readable_model.step(ids[None, 40:], kept)
    torch.testing.assert_close(logits[0], wanted[-1], atol=1e-4, rtol=1e-4)
    with pytest.raises(InputsError, match="the state is not one of 1 sequences"):
        model.write_state(0, readable_model.new_state(2))


@pytest.mark.parametrize("name", ["mamba", "mamba2"])
def test_an_engine_serves_it(name: str) -> None:
    """Many requests in shared steps, in chunks, give the tokens of each alone."""
    model, params = native(readable(name)), SamplingParams(temperature=0.8, seed=3, max_tokens=10)
    prompts = [random_ids(length, length).tolist() for length in (1, 4, 9, 40, 17, 2)]

    def logits_after(tokens: list[int]) -> Any:
        return run(alone, [(torch.tensor(tokens), 0, len(tokens), 0)])[0][-1]

    alone = native(readable(name))
    expected = [naive_output(logits_after, prompt, params) for prompt in prompts]
    stepper = make_stepper(model, max_num_seqs=4, max_batch_tokens=7)
    done = outputs(stepper, [make_request(prompt, params) for prompt in prompts])
    assert [one.token_ids for one in done] == expected


def write(directory: Any, name: str) -> Selective:
    model = readable(name)
    (directory / "config.json").write_text(json.dumps(CONFIGS[name]))
    tensors = {f"backbone.{key}": value.detach().clone() for key, value in model.state_dict().items()}
    head = tensors.pop("backbone.lm_head.weight")
    save_file(tensors if model.config.tie_word_embeddings else tensors | {"lm_head.weight": head},
              directory / "model.safetensors")  # fmt: skip
    return model


@pytest.mark.parametrize("off", [False, True])
def test_opened_from_a_directory(tmp_path: Any, monkeypatch: pytest.MonkeyPatch, off: bool) -> None:
    if off:
        monkeypatch.setenv("WHET_KERNELS", "off")
        build.library.cache_clear()
    try:
        model, ids = write(tmp_path, "mamba2"), random_ids(30)
        opened: Any = open_model(tmp_path, dtype="fp32", max_model_len=50)
        assert isinstance(opened, ServedInRows if off else NativeSelective)
        assert (opened.max_model_len, opened.bytes_per_block, opened.can_rewind) == (50, 0, True)
        assert opened.bytes_per_state == model.new_state().num_bytes
        opened.allocate(Allocation(num_states=2))
        with torch.no_grad():
            wanted = model(ids[None])[0]
        found = torch.cat([run(opened, [(ids, 0, 20, 1)])[0], run(opened, [(ids, 20, 30, 1)])[0]])
        torch.testing.assert_close(found, wanted, atol=1e-4, rtol=1e-4)
        with pytest.raises(OptionError, match="kv=int8: a state-space model has no keys and values"):
            open_model(tmp_path, kv="int8")
        for length in (0, 2**20 + 1):
            with pytest.raises(OptionError, match="max_model_len"):
                open_model(tmp_path, max_model_len=length)
        if off:
            with pytest.raises(OptionError, match="weights=int8 needs whet's own kernels"):
                open_model(tmp_path, weights="int8")
        else:
            assert open_model(tmp_path, weights="int4").weight_bytes < open_model(tmp_path).weight_bytes
    finally:
        build.library.cache_clear()


def test_an_original_directory_is_of_the_family(tmp_path: Any) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"d_model": 40, "n_layer": 2}))
    with pytest.raises(TargetError, match=r"has no model\.safetensors"):
        open_model(tmp_path)
