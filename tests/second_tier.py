"""Write the list of the tests that take long, which are the second tier, from the durations that a run left.

    make test test-thorough; python tests/second_tier.py build/tests.xml build/tests-thorough.xml

`tests/conftest.py` marks what stands in second_tier.txt as thorough. What a user meets first stays in the first tier
however long it takes: KEPT.
"""

import re
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

LIST = Path(__file__).with_name("second_tier.txt")
SECONDS = 3.5  # on two cores, beside another test
KEPT = re.compile(
    r"test_snippets.py::.*README"
    r"|test_training.py::test_a_search_proves_what_it_tries"
    r"|test_unseen_answers.py::test_openvino_answers_left_padded.*\[fused\]"
    r"|test_right_or_refused.py::.*onnxruntime"
    r"|test_contract.py::test_contract\[(openvino|compile|inductor)\]"
    r"|test_search.py::test_a_resumed_search"
    r"|test_loop_cells.py"
    r"|test_plain_docstrings.py|test_foreign_names.py"
    r"|test_startup.py"
    r"|test_first_tries.py"
    r"|test_imports.py"
    r"|test_schemathesis.py"
    r"|test_scripts.py::test_a_script_is_tuned"
    r"|test_command.py::test_the_page_s_script"
    r"|test_compiled.py::test_a_loss_within"
    r"|test_turns.py::test_both_sides"
    r"|test_closures.py.*source0"
    r"|test_isolate.py::test_(the_child_ends_with|where_a_server|processes_of_a_group|a_value_comes)"
    r"|test_openvino.py::test_nothing_phones_home"
    r"|test_stream_tuning.py::test_without_a_gain"
)


def main() -> None:
    """Write the list anew from the files that the command line names. What they do not name stays as it was."""
    if not sys.argv[1:]:
        sys.exit("name build/tests.xml, build/tests-thorough.xml or both")
    seconds = dict[str, float]()
    for report in sys.argv[1:]:
        for case in ElementTree.parse(report).iter("testcase"):
            node = f"{case.get('classname', '').replace('.', '/')}.py::{case.get('name')}"
            seconds[node] = float(case.get("time", 0))
    known = set(LIST.read_text(encoding="utf-8").splitlines()) - seconds.keys()
    found = known | {node for node, taken in seconds.items() if taken >= SECONDS}
    kept = sorted(node for node in found if not KEPT.search(node))
    LIST.write_text("".join(f"{node}\n" for node in kept), encoding="utf-8")


if __name__ == "__main__":
    main()
