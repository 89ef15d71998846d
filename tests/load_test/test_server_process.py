"""Whether a benchmarked server belongs to the measurement: it does where it runs on this machine."""

import os
import socket

from whet.load_test.server_process import server_on_this_machine


def test_a_server_on_this_machine_is_found_by_its_port() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        assert server_on_this_machine(f"http://127.0.0.1:{port}") == [os.getpid()]
        assert server_on_this_machine(f"http://localhost:{port}/v1") == [os.getpid()]
    assert server_on_this_machine(f"http://127.0.0.1:{port}") == []


def test_another_machines_server_is_none_of_ours() -> None:
    assert server_on_this_machine("http://192.0.2.1:80") == []  # an address for documentation (RFC 5737)
    assert server_on_this_machine("http://no.such.host.invalid") == []
