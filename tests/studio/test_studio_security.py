"""Nobody gets in: requests of other pages, without the token, malformed, huge or hostile."""

from __future__ import annotations

import json
import random
import socket
import sys
from pathlib import Path

import pytest
from studio_client import PORT, Client, Colours, client_of, picture

sys.path.append(str(Path(__file__).parents[1] / "datasets"))

from hostile_cases import bomb, claimed_size, mutated_image, other_format

from handful.datasets.images import BrokenImage, quiet
from handful.studio.collection import Images
from handful.studio.routes import application
from handful.studio.security import Guard
from handful.studio.server import _own_names
from handful.studio.thumbnails import Thumbnails

pytest_plugins = ["studio_fixtures"]

READS = [
    "/api/state", "/api/images", "/api/images/1", "/api/order", "/api/marks", "/api/thumbnail/1", "/api/preview/1",
    "/api/next", "/api/groups", "/api/map", "/api/duplicates", "/api/broken", "/api/export?format=labels",
    "/api/events", "/page/main.js", "/",
]  # fmt: skip
CHANGES = [
    ("POST", "/api/labels", {"images": [1], "label": "x"}),
    ("POST", "/api/labels/matching", {"where": {}, "label": "x"}),
    ("POST", "/api/accept", {"where": {}}),
    ("POST", "/api/undo", None),
    ("POST", "/api/redo", None),
    ("POST", "/api/classes", {"name": "x"}),
    ("PATCH", "/api/classes/1", {"name": "x"}),
    ("DELETE", "/api/classes/1", None),
    ("POST", "/api/classes/1/merge", {"into": 2}),
    ("POST", "/api/export", {"format": "csv"}),
]
ALL = [*(("GET", path, None) for path in READS), *CHANGES]


@pytest.fixture
def labelled(client) -> Client:
    """A studio with labels that must stay as they are."""
    client.label([0, 4], "red")
    client.label([1, 5], "green")
    client.settled()
    return client


def refused(client: Client, method: str, path: str, body: object, headers: dict[str, str | None], status: int) -> None:
    before = client.state()["revision"]
    answer = client.send(method, path, body, headers=headers)
    assert answer.status == status, (method, path, headers, answer)
    if answer.headers["content-type"] == "application/json":
        assert set(answer.json()) == {"error"}
    assert b".jpg" not in answer.content and b"red" not in answer.content.replace(b"required", b"")
    assert "set-cookie" not in answer.headers
    assert client.state()["revision"] == before


HOSTS = ["evil.example", f"evil.example:{PORT}", "127.0.0.1", f"127.0.0.1:{PORT + 1}", f"127.0.0.1.evil.example:{PORT}",
     f"127.0.0.1:{PORT}@evil.example", "", None, f"localhost.:{PORT}", f"0.0.0.0:{PORT}"]  # fmt: skip


def test_a_foreign_host_gets_nothing(labelled) -> None:
    """Also with the right token: a page whose name was rebound to this machine must not get in."""
    for host in HOSTS:
        for method, path, body in ALL:
            refused(labelled, method, path, body, {"host": host}, 403)


WITHOUT = [
    {"cookie": None}, {"cookie": f"handful-{PORT}="}, {"cookie": f"handful-{PORT}=wrong"},
    {"cookie": "handful-1=TOKEN"}, {"cookie": None, "authorization": "Bearer "},
    {"cookie": None, "authorization": "Bearer wrong"}, {"cookie": None, "authorization": "Basic TOKEN"},
    {"cookie": "\xff=;;=;" * 50}, {"cookie": f"handful-{PORT}=\xe9"},
]  # fmt: skip


def test_without_the_token_there_is_nothing(labelled) -> None:
    for headers in WITHOUT:
        given = {name: value and value.replace("TOKEN", labelled.token) for name, value in headers.items()}
        for method, path, body in ALL:
            refused(labelled, method, path, body, given, 401)


def test_the_token_counts_in_the_address_of_the_page_only(labelled) -> None:
    for method, path, body in ALL:
        joined = "&" if "?" in path else "?"
        if path != "/":
            refused(labelled, method, f"{path}{joined}token={labelled.token}", body, {"cookie": None}, 401)
    for query in (
        "token=",
        "token=wrong",
        f"token={labelled.token}&token=wrong",
        f"Token={labelled.token}",
        "token=%ff",
    ):
        refused(labelled, "GET", f"/?{query}", None, {"cookie": None}, 401)
    answer = labelled.get(f"/?token={labelled.token}", headers={"cookie": None, "origin": None})
    cookie = answer.headers["set-cookie"]
    assert cookie == f"handful-{PORT}={labelled.token}; Path=/; HttpOnly; SameSite=Strict"


ORIGINS = [
    "null", "http://evil.example", f"https://127.0.0.1:{PORT}", f"http://127.0.0.1:{PORT + 1}", "http://127.0.0.1", "",
    f"http://127.0.0.1:{PORT}/", f"http://localhost:{PORT}", f"http://127.0.0.1:{PORT}.evil.example", "file://",
]  # fmt: skip


def test_another_origin_changes_and_reads_nothing(labelled) -> None:
    for origin in ORIGINS:
        for method, path, body in ALL:
            refused(labelled, method, path, body, {"origin": origin}, 403)
            bearer = {"cookie": None, "authorization": f"Bearer {labelled.token}", "origin": origin}
            refused(labelled, method, path, body, bearer, 403)


def test_a_change_without_an_origin_needs_the_bearer_header(labelled) -> None:
    for method, path, body in CHANGES:
        refused(labelled, method, path, body, {"origin": None}, 403)
    program = {"origin": None, "cookie": None, "authorization": f"Bearer {labelled.token}"}
    body = {"images": [2], "label": "blue"}
    assert labelled.post("/api/labels", body, headers=program).status == 200


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_a_page_of_another_port_cannot_show_images(labelled, site) -> None:
    """Cookies are sent to all ports of a host: the browser says where a request comes from."""
    for path in READS:
        refused(labelled, "GET", path, None, {"origin": None, "sec-fetch-site": site}, 403)
    assert labelled.get("/api/state", headers={"sec-fetch-site": "same-origin"}).status == 200


def test_every_answer_forbids_what_a_page_could_do_with_it(labelled) -> None:
    for path in ("/api/state", "/api/thumbnail/1", "/nowhere", "/api/images?limit=0", "/api/export?format=csv"):
        headers = labelled.get(path).headers
        assert headers["x-content-type-options"] == "nosniff" and headers["x-frame-options"] == "DENY"
        assert headers["content-security-policy"].startswith("default-src 'none'; script-src 'self'; style-src 'self'")
        assert "unsafe" not in headers["content-security-policy"]
        assert headers["cross-origin-resource-policy"] == "same-origin"
        assert not any(name.startswith("access-control") for name in headers)
    assert labelled.send("OPTIONS", "/api/labels").status == 405
    for method in ("PUT", "TRACE", "CONNECT", "FOO"):
        assert labelled.send(method, "/api/labels").status == 405


PATHS = [
    "/api/thumbnail/../../../../etc/passwd", "/api/thumbnail/..%2f..%2fetc%2fpasswd", "/api/thumbnail/%2e%2e",
    "/api/thumbnail/0/../1", "/api/thumbnail/1e0", "/api/thumbnail/0x1", "/api/thumbnail/ 1", "/api/thumbnail/+1",
    "/api/thumbnail/99999999999999999999", "/api/thumbnail/00.jpg", "/api/thumbnail//etc/passwd", "/page/../desk.py",
    "/page/..%2fdesk.py", "/page/%2e%2e/desk.py", "/page//etc/passwd", "/page/", "/page/.", "/page/nothing.js",
    "/../../etc/passwd", "/photos/00.jpg", "/studio.sqlite", "/docs", "/openapi.json", "/api", "/api/", "/api/labels/",
]  # fmt: skip


def test_no_path_leads_to_a_file(labelled) -> None:
    for path in PATHS:
        answer = labelled.get(path)
        assert answer.status in (404, 405), answer
        assert set(answer.json()) == {"error"} and b"root:" not in answer.content


BODIES = [
    b"", b"{", b"[]", b"null", b"1", b'"x"', b"\xff\xfe", b'{"images": [1]}', b'{"label": "x"}', b"[" * 100_000,
    b'{"images": [1], "label": NaN}', b'{"images": [1], "label": "x", "more": 1}', b'{"images": "1", "label": "x"}',
    b'{"images": [1.5], "label": "x"}', b'{"images": [true], "label": "x"}', b'{"images": [-1], "label": "x"}',
    b'{"images": [1, 1], "label": "x"}', b'{"images": [99999999999999999999], "label": "x"}',
    b'{"images": [[1]], "label": "x"}', b'{"images": [1], "label": ""}', b'{"images": [1], "label": "  "}',
    b'{"images": [1], "label": 7}', b'{"images": [1], "label": ["x"]}', b'{"images": [1], "label": "a/b"}',
    b'{"images": [1], "label": ".."}', b'{"images": [1], "label": "a\\u0000"}', b'{"images": [1], "label": "\\ud800"}',
    b'{"images": [1], "label": "' + b"x" * 500 + b'"}', b'{"images": [1], "label": "' + b"x" * 100_000 + b'"}',
]  # fmt: skip


def test_a_malformed_body_is_one_sentence_and_changes_nothing(labelled) -> None:
    before = labelled.state()["revision"]
    for body in BODIES:
        answer = labelled.send("POST", "/api/labels", raw=body)
        assert answer.status == 400 and list(answer.json()) == ["error"], (body[:100], answer)
        assert len(answer.json()["error"]) < 300 and "Traceback" not in answer.json()["error"]
    assert labelled.state()["revision"] == before


def test_an_image_that_is_not_there_is_not_labelled_nor_are_the_others(labelled) -> None:
    before = labelled.state()["revision"]
    assert labelled.label([3, 40], "x").status == 404
    assert labelled.state()["revision"] == before


def test_other_kinds_of_bodies_are_refused(labelled) -> None:
    body = {"images": [1], "label": "x"}
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", ""):
        assert labelled.post("/api/labels", body, headers={"content-type": kind}).status == 415
    huge = b'{"images": [1], "label": "' + b"x" * (5 << 20) + b'"}'
    assert labelled.send("POST", "/api/labels", raw=huge).status == 413
    many = json.dumps({"images": list(range(100_001)), "label": "x"}).encode()
    assert labelled.send("POST", "/api/labels", raw=many).status == 400
    assert labelled.get(f"/api/images?text={'x' * 20_000}").status == 414


QUERIES = [
    "limit=0", "limit=1001", "limit=-1", "limit=x", "limit=1e3", "offset=-1", "offset=99999999999999999999", "sort=x",
    "sort=", "show=x", "show=all&show=x", "class=x", "class=-1", "group=1.5", "surer=2", "surer=nan", "surer=inf",
    "alike=0.5", "alike=x&like=1", "sort=like", "sort=like&like=40", "sort=like&like=-1", "like=x", "unknown=1",
    f"text={'x' * 201}", "sort=%00", "limit=%D9%A1",
]  # fmt: skip


def test_a_malformed_query_is_one_sentence(labelled) -> None:
    for query in QUERIES:
        answer = labelled.get(f"/api/images?{query}")
        assert answer.status == 400 and list(answer.json()) == ["error"], answer


def test_markup_in_names_stays_text(album, open_desk) -> None:
    markup = "<img src=x onerror=alert(1)> & \"'"
    (album / "00.jpg").rename(album / f"00 {markup}.jpg")
    client = client_of(open_desk(embedder=Colours()))
    assert client.label([0], markup).status == 200
    answer = client.get("/api/images?limit=1")
    assert answer.headers["content-type"] == "application/json"
    assert answer.json()["images"][0]["name"] == f"00 {markup}.jpg"
    assert client.state()["classes"][0]["name"] == markup
    client.settled()
    for name in ("csv", "jsonl", "labels", "label-studio", "metadata", "folders"):
        exported = client.get(f"/api/export?format={name}")
        assert exported.status == 200 and "text/html" not in exported.headers["content-type"]
        assert exported.headers["content-disposition"].startswith("attachment; filename=")


def test_files_that_are_no_images_are_broken_and_never_served(album, tmp_path) -> None:
    svg = b"<svg xmlns='http://www.w3.org/2000/svg'><script>alert(1)</script></svg>"
    (album / "svg.jpg").write_bytes(svg)
    (album / "html.jpg").write_bytes(b"<html><script>alert(1)</script></html>")
    (album / "both.gif").write_bytes(picture((1, 2, 3), 0, form="GIF") + svg)
    images = Images(album)
    shown = Thumbnails(images, tmp_path)
    for number, name in enumerate(images.names):
        try:
            content = shown.picture(number, 192)
        except BrokenImage:
            assert name in ("svg.jpg", "html.jpg")
        else:
            assert content[:3] == b"\xff\xd8\xff" and b"script" not in content, "the pixels, and nothing else"
    shown.close()


def test_hostile_images_neither_run_nor_kill(album, tmp_path) -> None:
    rng = random.Random(0)
    for number in range(90):
        for name, content in (mutated_image, claimed_size, other_format)[number % 3](rng).files.items():
            (album / f"hostile-{number}-{Path(name).name}").write_bytes(content)
    (album / "bomb.png").write_bytes(bomb("PNG", "L", 15_000))
    (album / "bomb.jpg").write_bytes(bomb("JPEG", "L", 500))
    images = Images(album)
    shown = Thumbnails(images, tmp_path)
    outcomes = set()
    for number in range(len(images)):
        try:
            with quiet():
                outcomes.add(shown.picture(number, 96)[:3] == b"\xff\xd8\xff")
        except BrokenImage as error:
            outcomes.add("broken")
            assert len(str(error)) < 500 and "\n" not in str(error)
    shown.close()
    assert outcomes == {True, "broken"}


def test_a_studio_for_other_machines_knows_its_own_names(desk) -> None:
    names = _own_names()
    assert socket.gethostname() in names and "evil.example" not in names
    guard = Guard(application(desk), names, PORT)
    client = Client(guard, f"{socket.gethostname()}:{PORT}", guard.token, guard.cookie)
    assert client.get("/api/state").status == 200
    assert client.get("/api/state", headers={"cookie": None}).status == 401
    refused(client, "GET", "/api/state", None, {"host": f"evil.example:{PORT}"}, 403)
