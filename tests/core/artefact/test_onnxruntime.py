"""ONNX models on disk: what they return, in this process and in a fresh one, and what damage looks like."""

import sys

import pytest
import torch
from reloading import assert_the_same_when_reloaded
from safetensors.torch import save_file
from torch import Tensor

pytest.importorskip("onnxruntime")

from whet.core.artefact import load
from whet.core.artefact.onnxruntime import DATA, FILE, Folder, ONNXRuntime
from whet.core.signature import Argument, PyTree, Signature
from whet.errors import ArtefactError, MissingExtra

onnx = pytest.importorskip("onnx")

WEIGHT_KN = torch.randn(8, 3, generator=torch.Generator().manual_seed(1))


def linear(size: int | str, operator: str = "MatMul", external: bool = False) -> ONNXRuntime:
    """x [size, 8] -> (x @ weight, x > 0), written node by node. A size with a name is free."""
    helper, kind = onnx.helper, onnx.TensorProto
    weights = [
        onnx.numpy_helper.from_array(WEIGHT_KN.numpy(), "weight"),
        onnx.numpy_helper.from_array(torch.zeros(()).numpy(), "zero"),
    ]
    graph = helper.make_graph(
        [helper.make_node(operator, ["x", "weight"], ["y"]), helper.make_node("Greater", ["x", "zero"], ["positive"])],
        "linear",
        [helper.make_tensor_value_info("x", kind.FLOAT, [size, 8])],
        [
            helper.make_tensor_value_info("y", kind.FLOAT, [size, 3]),
            helper.make_tensor_value_info("positive", kind.BOOL, [size, 8]),
        ],
        weights,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)
    folder = Folder()
    onnx.save(model, folder.model, save_as_external_data=external, location=DATA, size_threshold=0)
    return ONNXRuntime(folder)


def signature(size: int | None) -> Signature:
    output = PyTree("tuple", items=(PyTree("tensor"), PyTree("tensor")))
    return Signature((Argument("x", "float32", (size, 8)),), output, kwargs={"x": PyTree("tensor")})


def reference(x: Tensor) -> Tensor:
    return (x.double() @ WEIGHT_KN.double()).float()


@pytest.mark.parametrize("size", [4, "rows"])
def test_outputs_are_those_of_torch(size) -> None:
    runtime = linear(size)
    for num_rows in (4,) if size == 4 else (4, 7, 1):
        x = torch.randn(num_rows, 8)
        y, positive = runtime.run([x])
        torch.testing.assert_close(y, reference(x), rtol=1e-5, atol=1e-5)
        assert torch.equal(positive, x > 0)


def test_what_a_caller_keeps_outlives_the_next_call() -> None:
    runtime = linear(4)
    first, second = torch.randn(4, 8), torch.randn(4, 8)
    kept = runtime.run([first])
    runtime.run([second])
    torch.testing.assert_close(kept[0], reference(first), rtol=1e-5, atol=1e-5)


def test_inputs_that_are_views_or_need_a_gradient() -> None:
    runtime = linear(4)
    x = torch.randn(8, 4, requires_grad=True).T
    torch.testing.assert_close(runtime.run([x])[0], reference(x.detach()), rtol=1e-5, atol=1e-5)


def test_the_same_in_a_fresh_process(tmp_path) -> None:
    x = torch.randn(4, 8)
    wanted = {}
    for name, external in (("one-file", False), ("weights-apart", True)):
        directory, runtime = tmp_path / name, linear("rows", external=external)
        wanted[directory] = {f"0.{i}": y for i, y in enumerate(runtime.run([x]))}
        runtime.save(directory, signature(None))
        assert (directory / DATA).exists() == external
        save_file({"0.0": x}, f"{directory}.inputs.safetensors")
        del runtime  # and with it the temporary files
    assert_the_same_when_reloaded(wanted)


def test_temporary_files_go_with_the_runtime() -> None:
    runtime = linear(4)
    path = runtime._directory
    assert (path / FILE).exists()
    del runtime
    assert not path.exists()


def test_load_gives_the_model_as_it_was_called(tmp_path) -> None:
    artefact = load(linear(4).save(tmp_path / "artefact", signature(4)))
    x = torch.randn(4, 8)
    torch.testing.assert_close(artefact(x=x)[0], reference(x), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("damage", ["cut", "empty", "missing", "weights missing"])
def test_damage_is_an_artefact_error(damage, tmp_path) -> None:
    linear(4, external=damage == "weights missing").save(tmp_path, signature(4))
    path = tmp_path / FILE
    data = path.read_bytes()
    match damage:
        case "cut":
            path.write_bytes(data[: len(data) // 2])
        case "empty":
            path.write_bytes(b"")
        case "missing":
            path.unlink()
        case "weights missing":
            (tmp_path / DATA).unlink()
    with pytest.raises(ArtefactError, match=r"model\.onnx is damaged: .+; write it again with `whet apply`"):
        load(tmp_path)


def test_an_operator_it_lacks_is_not_called_damage(tmp_path) -> None:
    linear(4).save(tmp_path, signature(4))
    model = onnx.load(tmp_path / FILE)
    for tensor in (*model.graph.input, *model.graph.output):
        if tensor.name != "positive":
            tensor.type.tensor_type.elem_type = onnx.TensorProto.BFLOAT16
    weight = model.graph.initializer[0]
    weight.CopyFrom(onnx.helper.make_tensor("weight", onnx.TensorProto.BFLOAT16, weight.dims, [0.0] * 24))
    del model.graph.node[1], model.graph.output[1], model.graph.initializer[1]
    onnx.save(model, tmp_path / FILE)
    with pytest.raises(ArtefactError, match=r"ONNX Runtime cannot run .+ here"):
        load(tmp_path)


def test_a_missing_package_says_what_to_install(tmp_path, monkeypatch) -> None:
    linear(4).save(tmp_path, signature(4))
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(MissingExtra, match=r"pip install 'torch-whet\[onnx\]'"):
        load(tmp_path)
