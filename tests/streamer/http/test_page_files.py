"""The files of the page: all that it asks for is there, and nothing else is served."""

import http.client
import re

from page_servers import serving


def get(server, path, **headers):
    connection = http.client.HTTPConnection(server.host, server.port, timeout=30)
    connection.request("GET", path, headers=headers)
    answer = connection.getresponse()
    body = answer.read()
    connection.close()
    return answer, body


def test_files_come_from_the_page_alone():
    with serving() as server:
        answer, body = get(server, "/")
        assert answer.status == 200 and b"<canvas" in body
        policy = answer.headers["Content-Security-Policy"]
        assert "default-src 'none'" in policy and "frame-ancestors 'none'" in policy
        assert "camera=(self)" in answer.headers["Permissions-Policy"]
        for path, kind in (("live.js", "text/javascript"), ("base.css", "text/css"), ("plot.js", "text/javascript")):
            answer, _ = get(server, f"/static/{path}")
            assert answer.status == 200 and answer.headers["Content-Type"].startswith(kind)
            assert answer.headers["X-Content-Type-Options"] == "nosniff"
        for path in ("/static/..%2fstream.py", "/static/nothing.js", "/static/__init__.py", "/docs", "/openapi.json"):
            assert get(server, path)[0].status == 404
        for path in ("/", "/static/live.js"):
            assert get(server, path, Host="evil.example")[0].status == 403


def test_the_page_asks_for_nothing_that_is_not_there():
    with serving() as server:
        _, body = get(server, "/")
        _, script = get(server, "/static/live.js")
        names = {*re.findall(r'/static/([^"]+)', body.decode()), *re.findall(r'from "./([^"]+)', script.decode())}
        assert len(names) > 8 and all(get(server, f"/static/{name}")[0].status == 200 for name in names)
