"""Archives that would run code: torch.export.load runs it, whet refuses it and nothing has run."""

import contextlib
import io
import json
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from small_programs import rewrite, save, small

from whet.core.artefact import load
from whet.core.artefact.archive import _is_operator, _is_size, _is_tree, check_archive
from whet.core.artefact.program import FILE
from whet.errors import ArtefactError

WEIGHTS = "data/weights/model_weights_config.json"
CONSTANTS = "data/constants/model_constants_config.json"
GRAPH = "models/model.json"
SAMPLES = "data/sample_inputs/model.pt"

Attack = Callable[[Path, Path], Path]  # (directory of an artefact, a file to be written if code runs) -> the archive


class Payload:
    """Writes a file when it is unpickled."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.write_text, (self.mark, "ran")


def touch(mark: Path) -> str:
    return f"__import__('pathlib').Path('{mark}').write_text('ran')"


def saved_by_torch(thing: Any) -> bytes:
    buffer = io.BytesIO()
    torch.save(thing, buffer)
    return buffer.getvalue()


def payloads(config: Any) -> list[Any]:
    return list(config["config"].values())


def pickled_weight(directory: Path, mark: Path) -> Path:
    def edit(config: Any) -> None:
        payloads(config)[0]["use_pickle"] = True

    malicious = saved_by_torch(Payload(mark))
    return rewrite(directory, edit={WEIGHTS: edit}, replace={"data/weights/weight_0": malicious})


def pickled_constant(directory: Path, mark: Path) -> Path:
    def edit(config: Any) -> None:
        payloads(config)[0]["use_pickle"] = True

    malicious = saved_by_torch(Payload(mark))
    return rewrite(directory, edit={CONSTANTS: edit}, replace={"data/constants/tensor_0": malicious})


def pickled_object(directory: Path, mark: Path) -> Path:
    def edit(config: Any) -> None:
        config["config"]["extra"] = {**payloads(config)[0], "path_name": "opaque_obj_0", "use_pickle": True}

    add = {"data/constants/opaque_obj_0": pickle.dumps(Payload(mark))}
    return rewrite(directory, edit={CONSTANTS: edit}, add=add)


def pickled_object_below(directory: Path, mark: Path) -> Path:
    """As above, under a record whose last part looks like a tensor's, and not marked as a pickle."""

    def edit(config: Any) -> None:
        config["config"]["extra"] = {**payloads(config)[0], "path_name": "opaque_obj_/tensor_9"}

    content = pickle.dumps(Payload(mark))
    add = {"data/constants/opaque_obj_/tensor_9": content + bytes(-len(content) % 8)}
    return rewrite(directory, edit={CONSTANTS: edit}, add=add)


def sample_inputs(directory: Path, mark: Path) -> Path:
    return rewrite(directory, replace={SAMPLES: saved_by_torch(((Payload(mark),), {}))})


def legacy_weights(directory: Path, mark: Path) -> Path:
    return rewrite(directory, add={"data/weights/model.pt": saved_by_torch(Payload(mark))})


def legacy_constants(directory: Path, mark: Path) -> Path:
    return rewrite(directory, add={"data/constants/model.pt": saved_by_torch(Payload(mark))})


def legacy_archive(directory: Path, mark: Path) -> Path:
    """The format of PyTorch 2.7, which torch falls back to."""
    path = directory / FILE
    with zipfile.ZipFile(path) as archive:
        graph = archive.read(next(name for name in archive.namelist() if name.endswith(GRAPH)))
    major, minor = json.loads(graph)["schema_version"].values()
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("version", f"{major}.{minor}")
        archive.writestr("serialized_exported_program.json", graph)
        archive.writestr("serialized_state_dict.pt", saved_by_torch(Payload(mark)))
        archive.writestr("serialized_constants.pt", saved_by_torch({}))
        archive.writestr("serialized_example_inputs.pt", saved_by_torch(((), {})))
    return path


def symbolic_size(directory: Path, mark: Path) -> Path:
    def edit(graph: Any) -> None:
        sizes = graph["graph_module"]["graph"]["tensor_values"]
        sizes["linear"]["sizes"][0]["as_expr"]["expr_str"] = touch(mark)

    return rewrite(directory, edit={GRAPH: edit})


def name_as_source(directory: Path, mark: Path) -> Path:
    def edit(graph: Any) -> Any:
        text = json.dumps(graph)
        return json.loads(text.replace('"tensors_0"', json.dumps(f"tensors_0={touch(mark)}")))

    return rewrite(directory, edit={GRAPH: edit})


ATTACKS: list[Attack] = [
    pickled_weight,
    pickled_constant,
    pickled_object,
    pickled_object_below,
    sample_inputs,
    legacy_weights,
    legacy_constants,
    legacy_archive,
    symbolic_size,
    name_as_source,
]


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.__name__)
@pytest.mark.filterwarnings("ignore")  # torch's own, while it is being attacked
def test_an_archive_that_runs_code_is_refused(attack: Attack, tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    path = attack(save(small(), tmp_path / "artefact"), mark)
    with pytest.raises(ArtefactError, match=r"program.pt2 is (refused|damaged)"):
        load(tmp_path / "artefact")
    assert not mark.exists()

    # The attack is a real one: without the check, torch runs it.
    with contextlib.suppress(Exception):
        torch.export.load(path).module(check_guards=False)
    assert mark.exists()


def edit_first_target(target: str) -> Callable[[Any], None]:
    def edit(graph: Any) -> None:
        graph["graph_module"]["graph"]["nodes"][0]["target"] = target

    return edit


@pytest.mark.parametrize(
    "target",
    [
        "torch.os.system",
        "torch.load",
        "torch.hub.load",
        "torch.ops.load_library",
        "torch.ops.import_module",
        "torch.ops.aten.from_file.default",
        "torch.ops.aten.add",
        "torch.ops.aten.add.Tensor.__call__",
        "torch.ops.nothing.of_the.kind",
        "_operator.methodcaller",
        "_operator.attrgetter",
        "math.os",
        "#extension:x",
        "builtins.eval",
        "",
        "torch",
    ],
)
def test_a_target_that_is_no_operator_is_refused(target: str, tmp_path: Path) -> None:
    path = rewrite(save(small(), tmp_path), edit={GRAPH: edit_first_target(target)})
    with pytest.raises(ArtefactError, match="something else than a graph of known operators"):
        check_archive(path)
    with pytest.raises(ArtefactError):
        load(tmp_path)


@pytest.mark.parametrize(
    "target",
    [
        "torch.ops.aten.linear.default",
        "torch.ops.aten.__and__.Tensor",
        "torch.ops.higher_order.cond",
        "_operator.floordiv",
        "torch.sym_max",
        "math.trunc",
    ],
)
def test_operators_are_known(target: str) -> None:
    assert _is_operator(target)


@pytest.mark.parametrize(
    "expression",
    [
        "Symbol('s77', positive=True, integer=True)",
        "Mul(Integer(2), FloorDiv(Symbol('s77', integer=True), Integer(-2)))",
        "Max(Integer(1), Add(Symbol('s0'), Integer(-1)))",
        "Float('0.5', precision=53)",
        "true",
    ],
)
def test_sizes_in_sympys_notation_pass(expression: str) -> None:
    assert _is_size(expression)


@pytest.mark.parametrize(
    "expression",
    [
        "__import__('os').system('true')",
        "Symbol.__class__",
        "[x for x in (1,)]",
        "lambda: 1",
        "eval('1')",
        "Add('f(1)')",
        "(Symbol)('x').name",
        "Symbol('x')[0]",
        "f'{1}'",
        "exec",
        "(lambdify)(x)",
    ],
)
def test_other_expressions_do_not(expression: str) -> None:
    assert not _is_size(expression) or expression == "exec"  # a bare name is a symbol


def test_trees_of_plain_containers_pass_and_enums_do_not() -> None:
    leaf = {"type": None, "context": None, "children_spec": []}
    assert _is_tree({"type": "builtins.tuple", "context": "null", "children_spec": [leaf]})
    assert _is_tree({"type": "builtins.dict", "context": '["a"]', "children_spec": [leaf]})
    hidden = '[{"\\u005f_enum__": true, "fqn": "os:environ", "name": "PATH"}]'
    assert not _is_tree({"type": "builtins.dict", "context": hidden, "children_spec": [leaf]})
    assert not _is_tree({"type": "collections.namedtuple", "context": "null", "children_spec": []})


@pytest.mark.parametrize(
    "more",
    [
        {"add": {"data/aotinductor/model/x.so": b"native code"}},
        {"add": {"extra/notes.txt": b"more"}},
        {"add": {"models/other.json": b"{}"}},
        {"add_at_the_top": {"version": b"8.8"}},
        {"add_at_the_top": {"other_root/data/weights/weight_0": b"1234"}},
    ],
)
def test_records_that_whet_does_not_write_are_refused(more: dict[str, dict[str, bytes]], tmp_path: Path) -> None:
    rewrite(save(small(), tmp_path), **more)  # type: ignore[arg-type]
    with pytest.raises(ArtefactError, match=r"program.pt2 is (refused|damaged)"):
        load(tmp_path)


@pytest.mark.filterwarnings("ignore:Duplicate name:UserWarning")
def test_a_record_twice_is_refused(tmp_path: Path) -> None:
    rewrite(save(small(), tmp_path), add={GRAPH: b"{}"})
    with pytest.raises(ArtefactError, match=r"program.pt2 is (refused|damaged)"):
        load(tmp_path)


def test_an_archive_that_was_only_packed_again_still_loads(tmp_path: Path) -> None:
    """What is refused above is refused for what was changed."""
    examined = small()
    rewrite(save(examined, tmp_path), edit={name: lambda data: data for name in (GRAPH, WEIGHTS, CONSTANTS)})
    x = torch.randn(3, 4)
    torch.testing.assert_close(load(tmp_path)(x).logits, examined.workload.model(x)["logits"].detach())
