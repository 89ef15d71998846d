"""Descriptions of clusters: what whet ships agrees with data sheets and physics, and one's own is read."""

import math
import tomllib
from pathlib import Path
from typing import Any

import pytest
import tomli_w
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from shipped_tables import PAGE, PART, tables

import whet.planner
from whet.errors import OptionError, TargetError
from whet.planner.cluster import Chip, Cluster, Host, Link
from whet.planner.clusters import chips, cluster_named, hosts, links, nodes, read_cluster

DESCRIPTIONS = Path(whet.planner.__file__).with_name("descriptions")
HOPPER = ("h100-sxm", "h100-pcie", "h800", "h200")


@pytest.mark.parametrize(("kind", "shipped"), [("chips", chips), ("links", links), ("hosts", hosts), ("nodes", nodes)])
def test_every_description_reads_and_names_its_source(kind: str, shipped: Any) -> None:
    tables = tomllib.loads((DESCRIPTIONS / f"{kind}.toml").read_text(encoding="utf-8"))
    found = shipped()
    assert list(found) == list(tables)
    for name, one in found.items():
        assert len(one.source) > 20, name
        assert name == name.lower() and (kind == "nodes" or one.name == name)


def test_names_stand_for_one_kind_of_node_each() -> None:
    names = [name for node, described in nodes().items() for name in (node, *described.also)]
    assert len(names) == len(set(names))
    for name in names:
        cluster = cluster_named(name, 128)
        assert cluster.num_chips == 128 and cluster.name == name
        assert cluster == cluster_named(f" {name.upper()} ", 128)
    used = {node.chip for node in nodes().values()}
    assert used == set(chips())


def test_chips_lie_within_what_physics_and_makers_allow() -> None:
    for name, chip in chips().items():
        assert 1e13 < max(chip.flops.values()) < 1e16, name
        assert 30e9 <= chip.memory_bytes <= 2e12 and 6e11 <= chip.bytes_per_s <= 1e13, name
        assert 150 <= chip.power_w <= 1200, name
        # Nobody reads the whole memory in less than 10 ms, nor gets more than 10 TFLOP/s of a watt.
        assert chip.memory_bytes / chip.bytes_per_s > 1e-2, name
        assert max(chip.flops.values()) / chip.power_w < 1e13, name
        order = [chip.flops[kind] for kind in ("float32", "tfloat32", "bfloat16", "fp8") if kind in chip.flops]
        assert order == sorted(order), name


@pytest.mark.parametrize("name", [*HOPPER, "b200", "mi300x"])
def test_eight_bits_are_twice_as_fast_as_sixteen_and_tf32_half(name: str) -> None:
    flops = chips()[name].flops
    assert flops["fp8"] == flops["int8"] == pytest.approx(2 * flops["bfloat16"], rel=1e-3)
    assert flops["float16"] == flops["bfloat16"] == pytest.approx(2 * flops["tfloat32"], rel=0.03)


@pytest.mark.parametrize("name", ["a100-40", "a100-80", "a100-pcie-40", "a100-pcie-80"])
def test_ampere_has_the_same_processor_everywhere_and_no_fp8(name: str) -> None:
    flops = chips()[name].flops
    assert flops == {"float32": 19.5e12, "tfloat32": 156e12, "bfloat16": 312e12, "float16": 312e12, "int8": 624e12}


def test_known_figures_of_data_sheets() -> None:
    assert chips()["h100-sxm"].flops["bfloat16"] == 989.4e12 and chips()["h100-sxm"].bytes_per_s == 3.35e12
    assert chips()["h200"].flops == chips()["h800"].flops == chips()["h100-sxm"].flops
    assert (chips()["h200"].memory_bytes, chips()["h200"].bytes_per_s) == (141e9, 4.8e12)
    assert "bfloat16" not in chips()["v100"].flops and chips()["v100"].flops["float16"] == 125e12
    # 132 multiprocessors of H100 with 4 tensor cores, 512 fused multiply-adds a cycle each, at 1.83 GHz.
    assert chips()["h100-sxm"].flops["bfloat16"] == pytest.approx(132 * 4 * 512 * 2 * 1.83e9, rel=1e-3)
    # 304 units of MI300X with 2,048 operations of float16 a cycle, at 2.1 GHz.
    assert chips()["mi300x"].flops["float16"] == pytest.approx(304 * 2048 * 2.1e9, rel=1e-3)
    # A pod of 4,096 TPU v4 makes 1.1 exaflop/s.
    assert chips()["tpu-v4"].flops["bfloat16"] * 4096 == pytest.approx(1.1e18, rel=0.03)


def test_links_are_as_wide_as_their_standards() -> None:
    per_s = {name: link.bytes_per_s for name, link in links().items()}
    assert per_s["nvlink2"] * 2 == per_s["nvlink3"] == pytest.approx(12 * 25e9)
    assert per_s["nvlink4"] * 2 == per_s["nvlink5"] == pytest.approx(18 * 50e9)
    for number, name in enumerate(("pcie3", "pcie4", "pcie5")):
        assert per_s[name] == pytest.approx(16 * 8e9 * 2**number * 128 / 130 / 8, rel=1e-3)
    for name, gigabits in {"edr": 100, "hdr": 200, "ndr": 400, "roce400": 400, "eth25": 25, "eth100": 100}.items():
        assert per_s[name] * 8 == pytest.approx(gigabits * 1e9)
    assert all(0 < link.latency_s < 1e-4 for link in links().values())


def test_no_price_without_a_source_and_a_date() -> None:
    for name, chip in chips().items():
        if chip.dollars_per_hour is not None:
            assert "price:" in chip.source and "20" in chip.source.partition("price:")[2], name


def test_a_named_cluster_takes_other_nodes_and_links() -> None:
    cluster = cluster_named("h100", 64, chips_per_node=4, inside="PCIE5", between="eth100")
    assert (cluster.chips_per_node, cluster.num_chips) == (4, 64)
    assert cluster.inside == links()["pcie5"] and cluster.between == links()["eth100"]
    assert cluster_named("h100", 3).num_chips == 3  # a part of a node
    assert cluster_named("h100-pcie", 8).oversubscription == 2
    assert cluster_named("h100-pcie", 8, between="ndr").oversubscription == 1  # the user's own network


@pytest.mark.parametrize(
    ("gpu", "number", "others", "expected"),
    [
        ("h10", 8, {}, "there is no GPU 'h10'; did you mean h100? whet knows "),
        ("zzz", 8, {}, "there is no GPU 'zzz'; whet knows "),
        ("h100", 8, {"between": "ndr40"}, "there is no link 'ndr40'; did you mean ndr400?"),
        ("h100", 8, {"inside": "nvlnk4"}, "did you mean nvlink4?"),
        ("h100", 12, {}, "12 chips do not fill nodes of 8; ask for a multiple of that"),
        ("h100", 0, {}, "a cluster has one chip at least; got 0"),
        ("h100", 8, {"chips_per_node": 0}, "a node has one chip at least; got 0"),
    ],
)
def test_a_wrong_name_or_number_is_one_line(gpu: str, number: int, others: dict[str, Any], expected: str) -> None:
    with pytest.raises(OptionError) as raised:
        cluster_named(gpu, number, **others)
    assert expected in str(raised.value) and "\n" not in str(raised.value)
    if "there is no GPU" in expected:
        assert all(name in str(raised.value) for name in nodes())


BY_NAME: dict[str, Any] = {
    "name": "ours",
    "chips_per_node": 8,
    "num_chips": 64,
    "chip": "h100-sxm",
    "host": "dgx-h100",
    "inside": "nvlink4",
    "between": "ndr",
    "oversubscription": 2,
}


def written(tmp_path: Path, **changes: Any) -> Path:
    """Write the description with some keys changed, or without those that are None."""
    path = tmp_path / "ours.toml"
    path.write_text(tomli_w.dumps({key: value for key, value in {**BY_NAME, **changes}.items() if value is not None}))
    return path


def test_a_file_refers_to_what_whet_ships(tmp_path: Path) -> None:
    cluster = read_cluster(written(tmp_path))
    assert cluster == cluster_named("h100", 64).model_copy(update={"name": "ours", "oversubscription": 2.0})


def test_chips_and_links_have_other_names_too(tmp_path: Path) -> None:
    assert read_cluster(written(tmp_path, chip="H100", between="ndr400")) == read_cluster(written(tmp_path))
    assert cluster_named("h100", 16, between="hdr200").between == links()["hdr"]


def test_a_file_changes_some_figures_of_what_whet_ships(tmp_path: Path) -> None:
    chip = {"like": "H100-SXM", "dollars_per_hour": 2.5, "source": "our contract, May 2025"}
    host = {"like": "dgx-h100", "link": {"like": "pcie5", "bytes_per_s": 50e9}}
    cluster = read_cluster(written(tmp_path, chip=chip, host=host))
    assert cluster.chip.dollars_per_hour == 2.5 and cluster.chip.flops == chips()["h100-sxm"].flops
    assert cluster.chip.source.startswith("our contract, May 2025 (dollars_per_hour); else NVIDIA H100")
    assert cluster.host.link.bytes_per_s == 50e9 and cluster.host.link.latency_s == links()["pcie5"].latency_s
    assert cluster.host.link.source.startswith("ours.toml (bytes_per_s); else PCI Express 5.0")
    assert cluster.host.memory_bytes == 2e12


POSITIVE = st.floats(min_value=1e-3, max_value=1e18, allow_nan=False)
TEXT = st.text(st.characters(codec="utf-8", exclude_categories=["Cs", "Cc"]), min_size=1, max_size=20)
LINKS = st.builds(Link, name=TEXT, source=TEXT, bytes_per_s=POSITIVE, latency_s=st.floats(0, 1))
CHIPS = st.builds(
    Chip,
    name=TEXT,
    source=TEXT,
    flops=st.dictionaries(st.sampled_from(["float32", "bfloat16", "fp8", "int8"]), POSITIVE, min_size=1),
    memory_bytes=POSITIVE,
    bytes_per_s=POSITIVE,
    power_w=POSITIVE,
    dollars_per_hour=st.none() | POSITIVE,
)
HOSTS = st.builds(Host, name=TEXT, source=TEXT, memory_bytes=st.floats(0, 1e15), link=LINKS, power_w=st.floats(0, 1e6))
WHOLE = st.integers(1, 64).flatmap(
    lambda per_node: st.builds(
        Cluster,
        name=TEXT,
        chip=CHIPS,
        chips_per_node=st.just(per_node),
        num_chips=st.integers(1, 512).map(lambda n: n * per_node),
        host=HOSTS,
        inside=LINKS,
        between=LINKS,
        oversubscription=st.floats(1, 16),
    )
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(cluster=WHOLE)
def test_a_description_in_full_reads_as_what_was_written(cluster: Cluster, tmp_path: Path) -> None:
    path = tmp_path / "full.toml"
    path.write_text(tomli_w.dumps(cluster.model_dump(exclude_none=True)), encoding="utf-8")
    assert read_cluster(path) == cluster


CHIP: dict[str, Any] = chips()["h100-sxm"].model_dump(exclude_none=True)
LINK: dict[str, Any] = links()["ndr"].model_dump(exclude_none=True)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"chip": "h100-sx"}, "chip: there is no chip 'h100-sx'; did you mean h100-sxm? whet knows "),
        ({"host": "dgx"}, "host: there is no host 'dgx'"),
        ({"between": "infiniband"}, "between: there is no link 'infiniband'"),
        ({"host": {"like": "dgx-h100", "link": "pcie9"}}, "host.link: there is no link 'pcie9'; did you mean pcie"),
        ({"chip": {"like": "h1000"}}, "chip.like: there is no chip 'h1000'; did you mean h100"),
        ({"chip": {"like": 3}}, "chip.like: give the name of one of the chips that whet ships"),
        ({"between": None}, "has no link between nodes, and 64 chips need several nodes of 8; add a table [between]"),
        ({"num_chips": 12}, "12 chips do not fill nodes of 8"),
        ({"num_chips": 0}, "num_chips: Input should be greater than or equal to 1"),
        ({"num_chips": 8.5}, "num_chips: Input should be a valid integer"),
        ({"num_chips": None}, "the key num_chips is missing"),
        ({"oversubscription": 0.5}, "oversubscription: Input should be greater than or equal to 1"),
        ({"oversubscription": math.inf}, "oversubscription: Input should be a finite number"),
        ({"chips_per_nod": 8}, "there is no key chips_per_nod; did you mean chips_per_node?"),
        ({"chip": {**CHIP, "bytes_per_second": 1}}, "there is no key chip.bytes_per_second; did you mean bytes_per_s?"),
        ({"chip": {**CHIP, "flops": {}}}, "chip.flops: Dictionary should have at least 1 item"),
        ({"chip": {**CHIP, "flops": {"bf16": 1e12}}}, "chip.flops.bf16"),
        ({"chip": {**CHIP, "flops": {"bfloat16": -1.0}}}, "chip.flops.bfloat16: Input should be greater than 0"),
        ({"chip": {**CHIP, "memory_bytes": math.inf}}, "chip.memory_bytes: Input should be a finite number"),
        ({"chip": {**CHIP, "power_w": math.nan}}, "chip.power_w: Input should be"),
        ({"chip": {**CHIP, "memory_bytes": "80 GB"}}, "chip.memory_bytes: Input should be a valid number"),
        ({"chip": {**CHIP, "source": ""}}, "chip.source: String should have at least 1 character"),
        ({"chip": {k: v for k, v in CHIP.items() if k != "source"}}, "the key chip.source is missing"),
        ({"between": {**LINK, "latency_s": -1e-6}}, "between.latency_s: Input should be greater than or equal to 0"),
        ({"between": {**LINK, "bytes_per_s": 0}}, "between.bytes_per_s: Input should be greater than 0"),
        ({"inside": 5}, "inside: Input should be"),
        ({"host": {"name": "x"}}, "the key host.source is missing; the key host.memory_bytes is missing"),
    ],
)
def test_what_is_wrong_with_a_file_is_one_line_with_file_and_key(
    changes: dict[str, Any], expected: str, tmp_path: Path
) -> None:
    path = written(tmp_path, **changes)
    with pytest.raises(OptionError) as raised:
        read_cluster(path)
    assert str(raised.value).startswith(f"{path}: ")
    assert expected in str(raised.value) and "\n" not in str(raised.value)


def test_a_file_that_is_missing_or_no_toml(tmp_path: Path) -> None:
    with pytest.raises(TargetError, match=r"there is no description of a cluster .*none.toml; name a TOML file"):
        read_cluster(tmp_path / "none.toml")
    (tmp_path / "broken.toml").write_text("= 1")
    with pytest.raises(TargetError, match=r"broken.toml is no TOML"):
        read_cluster(tmp_path / "broken.toml")


def test_the_page_has_the_tables_of_what_is_shipped() -> None:
    """Where this fails, run `python tests/planner/shipped_tables.py`."""
    found = PART.search(PAGE.read_text(encoding="utf-8"))
    assert found is not None and found[2] == tables()
