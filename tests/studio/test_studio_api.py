"""The API: what the page and other programs ask, and that it is what docs/studio-api.json says."""

from __future__ import annotations

import csv
import io
import itertools
import json
import re
import zipfile
from pathlib import Path

import jsonschema
import numpy as np
import pytest
from studio_client import COLOURS, COUNT, client_of

from handful import TACClassifier
from handful.labelling.sources import read_labels
from handful.studio.routes import application

pytest_plugins = ["studio_fixtures"]
API = json.loads((Path(__file__).parents[2] / "docs" / "studio-api.json").read_text())
TRUTH = [list(COLOURS)[number % 4] for number in range(COUNT)]


def check(name: str, content: object) -> None:
    """Whether content is what the API file says."""
    schema = {"$ref": f"#/components/schemas/{name}", "components": API["components"]}
    jsonschema.Draft202012Validator(schema).validate(content)


def teach(client, each: int = 2) -> dict[str, int]:
    """Label some images of each colour; the ids of the colours."""
    for place, name in enumerate(COLOURS):
        assert client.label([place + 4 * number for number in range(each)], name).status == 200
    return {one["name"]: one["id"] for one in client.settled()["classes"]}


def test_the_file_and_the_server_have_the_same_routes(desk) -> None:
    served = {
        (method, route.path)
        for route in application(desk).routes
        for method in route.methods - {"HEAD"}
        if route.path.startswith("/api/")
    }
    described = {(method.upper(), path) for path, entry in API["paths"].items() for method in entry}
    assert served == described


def test_the_examples_of_the_file_are_what_its_schemas_say() -> None:
    for path, entry in API["paths"].items():
        for method, operation in entry.items():
            for part in [operation.get("requestBody", {}), *operation["responses"].values()]:
                content = part.get("content", {}).get("application/json", {})
                examples = [content["example"]] if "example" in content else []
                examples += [one["value"] for one in content.get("examples", {}).values()]
                for example in examples:
                    schema = {**content["schema"], "components": API["components"]}
                    jsonschema.Draft202012Validator(schema).validate(example)
                if part.get("content") and "application/json" in part["content"]:
                    assert examples or "Error" in str(content), (path, method)


def test_from_the_first_label_to_a_label_for_each_image(client) -> None:
    start = client.settled()
    check("State", start)
    assert (start["images"], start["labelled"], start["embedded"], start["classes"]) == (COUNT, 0, COUNT, [])
    assert start["model"]["state"] == "no-labels"
    done = client.label([0, 4], "red").json()
    check("Done", done)
    assert done["count"] == 2 and done["state"]["labelled"] == 2 and done["state"]["model"]["state"] == "one-class"
    ids = teach(client)
    state = client.settled()
    check("State", state)
    assert state["model"]["state"] == "ready" and state["model"]["revision"] == state["revision"]
    low, high = state["model"]["expected"]["low"], state["model"]["expected"]["high"]
    assert low <= state["model"]["expected"]["accuracy"] <= high
    found = client.get("/api/images?limit=1000").json()
    check("Images", found)
    names = {number: name for name, number in ids.items()}
    assert [names[one["label"]] for one in found["images"]] == TRUTH
    assert [one["source"] for one in found["images"]] == ["given"] * 8 + ["found"] * 32
    assert sum(one["given"] + one["found"] for one in state["classes"]) == COUNT
    check("Next", client.get("/api/next?count=5").json())
    assert all(len(one["likely"]) == 2 for one in client.get("/api/next?count=5").json()["images"])


def test_windows_filters_and_orders(client) -> None:
    ids = teach(client)
    window = client.get("/api/images?offset=10&limit=5").json()
    assert [one["number"] for one in window["images"]] == [10, 11, 12, 13, 14] and window["total"] == COUNT

    def numbers(query: str) -> list[int]:
        content = client.get(f"/api/order?{query}")
        assert content.status == 200, content
        listed = client.get(f"/api/images?limit=1000&{query}").json()
        check("Images", listed)
        found = np.frombuffer(content.content, dtype="<u4").tolist()
        assert [one["number"] for one in listed["images"]] == found
        return found

    assert numbers("show=given") == list(range(8))
    assert numbers("show=unlabelled") == list(range(8, COUNT))
    assert numbers(f"class={ids['green']}") == list(range(1, COUNT, 4))
    assert numbers(f"class={ids['green']}&show=found") == list(range(9, COUNT, 4))
    assert [TRUTH[one] for one in numbers("sort=class")] == sorted(TRUTH, key=list(COLOURS).index)
    assert numbers("sort=like&like=6")[0] == 6
    assert {TRUTH[one] for one in numbers("sort=like&like=6")[:10]} == {"blue"}
    assert {TRUTH[one] for one in numbers("like=6&alike=0.5")} == {"blue"}
    assert numbers("text=3") == [3, 13, 23, *range(30, 40)]
    assert numbers("surer=1&show=given") == list(range(8))
    assert numbers("show=broken") == numbers("show=waiting") == []
    assert [TRUTH[one] for one in numbers("sort=alike")] == sorted(TRUTH, key=list(COLOURS).index)
    for sort in ("name", "number", "alike", "doubt", "sure", "none", "group", "changed", "duplicates"):
        assert sorted(numbers(f"sort={sort}")) == list(range(COUNT))
    doubt = client.get("/api/images?sort=doubt&show=found").json()["images"]
    assert doubt[0]["confidence"] <= doubt[-1]["confidence"]


def test_in_a_class_images_with_the_same_rival_stand_together(client) -> None:
    for number, name in enumerate(("red", "green", "blue", "grey")):
        client.label([number, number + 4], name)
    client.settled()
    images = client.get("/api/images?sort=rival&limit=1000").json()["images"]
    assert sorted(one["number"] for one in images) == list(range(40))
    classes = [one["label"] for one in images]
    assert classes == sorted(classes)
    for kind in set(classes):
        mine = [one for one in images if one["label"] == kind]
        assert [one["source"] for one in mine[-2:]] == ["given", "given"]
        second = [one["likely"][1] for one in mine if one["source"] == "found"]
        found = [(one["class"], one["probability"]) for one in second]
        rivals = [rival for rival, _ in found]
        assert [rival for rival, _ in itertools.groupby(rivals)] == list(dict.fromkeys(rivals))
        chances = [[chance for one, chance in found if one == rival] for rival in dict.fromkeys(rivals)]
        assert all(one == sorted(one, reverse=True) for one in chances)
        assert [sum(one) for one in chances] == sorted(map(sum, chances), reverse=True)


def test_marks_say_the_same_as_images(client) -> None:
    teach(client)
    marks = np.frombuffer(client.get("/api/marks").content, dtype=[("id", "<u2"), ("flags", "u1"), ("sure", "u1")])
    images = client.get("/api/images?limit=1000").json()["images"]
    for mark, image in zip(marks, images, strict=True):
        assert int(mark["id"]) == image["label"]
        assert bool(mark["flags"] & 1) == (image["source"] == "given")
        assert bool(mark["flags"] & 2) == image["doubtful"] and bool(mark["flags"] & 4) == image["changed"]
        assert mark["flags"] & 32 and abs(mark["sure"] / 255 - image["confidence"]) < 0.003


@pytest.mark.parametrize("path", ["/api/marks", "/api/order", "/api/images?limit=1"])
def test_an_answer_never_claims_labels_that_came_after_it(client, desk, monkeypatch, path) -> None:
    client.settled()
    look = desk.look

    def then_a_label() -> object:
        found = look()
        monkeypatch.setattr(desk, "look", look)
        desk.label([5], "late")
        return found

    monkeypatch.setattr(desk, "look", then_a_label)
    answer = client.get(path)
    revision = answer.headers.get("x-revision") or answer.json()["revision"]
    assert int(revision) == 0 and desk.book.revision == 1


def test_groups_a_map_and_near_duplicates_need_no_label(client, album, open_desk) -> None:
    client.settled()
    groups = client.get("/api/groups").json()
    check("Groups", groups)
    assert sum(one["size"] for one in groups["groups"]) == COUNT
    for one in groups["groups"]:
        assert len({TRUTH[number] for number in one["examples"]}) == 1, "the colours are easy to tell apart"
    places = np.frombuffer(client.get("/api/map").content, dtype="<f4").reshape(-1, 2)
    assert len(places) == COUNT and np.isfinite(places).all() and np.abs(places).max() <= 1.2
    first = client.get("/api/next?count=4").json()["images"]
    assert len({TRUTH[one["number"]] for one in first}) == 4, "one of each group first"
    assert client.get("/api/duplicates").json() == {"sets": []}
    (album / "40.jpg").write_bytes((album / "00.jpg").read_bytes())
    again = client_of(open_desk())
    again.settled()
    sets = again.get("/api/duplicates").json()
    check("Duplicates", sets)
    assert sets == {"sets": [[0, 40]]}
    assert again.get("/api/images/40").json()["duplicates"] == [0]
    assert again.get("/api/images?show=duplicates").json()["total"] == 2 == again.state()["duplicates"]


def test_all_that_match_are_labelled_or_accepted_in_one_step(client) -> None:
    ids = teach(client)
    before = client.state()
    group = client.get("/api/images/8").json()["group"]
    done = client.post("/api/labels/matching", {"where": {"group": group}, "label": "crimson"}).json()
    check("Done", done)
    assert done["count"] == client.get(f"/api/images?group={group}").json()["total"]
    assert client.post("/api/undo").status == 200
    assert {one["name"] for one in client.settled()["classes"]} == set(ids)
    where = {"class": ids["blue"], "surer": 0.5, "show": "found"}
    accepted = client.post("/api/accept", {"where": where}).json()
    assert accepted["count"] == 8 == accepted["state"]["labelled"] - before["labelled"]
    assert client.post("/api/accept", {"images": [8, 9, 0]}).json()["count"] == 2
    for _ in range(2):
        client.post("/api/undo")
    assert client.state()["labelled"] == before["labelled"]
    old = client.post("/api/accept", {"where": where, "version": 0})
    assert old.status == 409 and "look again" in old.json()["error"]


def test_what_was_shown_is_accepted_whatever_is_found_by_now(client) -> None:
    ids = teach(client)
    done = client.post("/api/accept", {"images": [8, 9, 0], "labels": [ids["grey"], ids["green"], ids["blue"]]})
    check("Done", done.json())
    assert done.json()["count"] == 2, "what has a label keeps it"
    labels = [client.get(f"/api/images/{number}").json()["label"] for number in (8, 9, 0)]
    assert labels == [ids["grey"], ids["green"], ids["red"]]
    assert client.post("/api/accept", {"images": [10, 11], "labels": [1]}).status == 400
    assert client.post("/api/accept", {"images": [10], "labels": [999]}).json()["count"] == 0
    assert client.post("/api/accept", {"where": {}, "labels": [-1]}).status in (200, 400)


def test_without_predictions_there_is_nothing_to_accept(client) -> None:
    assert client.post("/api/accept", {"where": {}}).status == 409


def test_undo_and_redo_without_end_and_across_a_restart(client, open_desk) -> None:
    for number in range(30):
        assert client.label([number], f"class {number % 7}").status == 200
    assert [client.post("/api/undo").status for _ in range(20)] == [200] * 20
    assert client.state()["labelled"] == 10
    again = client_of(open_desk())
    assert again.state()["labelled"] == 10 and again.state()["redo"] == "1 image is class 3"
    assert [again.post("/api/redo").status for _ in range(21)] == [200] * 20 + [409]
    assert again.state()["labelled"] == 30
    assert [again.post("/api/undo").status for _ in range(31)] == [200] * 30 + [409]
    assert again.state()["classes"] == []


def test_classes_are_added_renamed_merged_and_deleted(client) -> None:
    ids = teach(client)
    assert client.post("/api/classes", {"name": "violet", "key": "v"}).status == 201
    assert client.post("/api/classes", {"name": "violet"}).status == 409
    client.send("PATCH", f"/api/classes/{ids['red']}", {"name": "crimson", "key": "v", "colour": 9})
    classes = {one["name"]: one for one in client.state()["classes"]}
    assert classes["crimson"]["key"] == "v" and classes["violet"]["key"] is None and classes["crimson"]["colour"] == 9
    assert client.send("PATCH", f"/api/classes/{ids['red']}", {"name": "green"}).status == 409
    done = client.post(f"/api/classes/{ids['red']}/merge", {"into": ids["blue"]}).json()
    check("Done", done)
    assert {one["name"] for one in done["state"]["classes"]} == {"violet", "green", "blue", "grey"}
    assert client.get("/api/images/0").json()["label"] == ids["blue"]
    assert client.send("DELETE", f"/api/classes/{ids['blue']}").json()["count"] == 4
    assert client.get("/api/images/0").json()["source"] != "given"
    assert client.send("DELETE", "/api/classes/77").status == 404
    settled = client.settled()
    assert all(one["found"] + one["given"] for one in settled["classes"] if one["name"] != "violet")


def test_none_of_these_is_a_label_of_its_own(client) -> None:
    teach(client)
    state = client.label([20, 21], "none-of-these").json()["state"]
    assert state["none"]["given"] == 2
    image = client.get("/api/images/20").json()
    assert image["label"] == 0 and image["is_none"] and image["source"] == "given"
    client.settled()
    assert client.get("/api/images/20").json()["label"] == 0


def test_two_pages_share_one_state(desk) -> None:
    one, other = client_of(desk), client_of(desk)
    one.label([0, 1], "a")
    other.label([1, 2], "b")
    names = {entry["id"]: entry["name"] for entry in one.state()["classes"]}
    assert [names[one.get(f"/api/images/{number}").json()["label"]] for number in range(3)] == ["a", "b", "b"]
    one.post("/api/undo")
    assert [other.get(f"/api/images/{number}").json()["label"] for number in range(3)] == [1, 1, None]


def test_pictures_are_small_jpegs_of_the_right_way_up(client, album) -> None:
    from PIL import Image

    answer = client.get("/api/thumbnail/3?size=96")
    assert answer.headers["content-type"] == "image/jpeg" and answer.headers["x-content-type-options"] == "nosniff"
    picture = Image.open(io.BytesIO(answer.content))
    assert picture.size == (48, 32) and picture.format == "JPEG" and not picture.getexif()
    assert client.get("/api/preview/3").status == 200
    tag = client.get("/api/images/3").json()["tag"]
    assert "immutable" in client.get(f"/api/thumbnail/3?tag={tag}").headers["cache-control"]
    assert "immutable" not in client.get("/api/thumbnail/3?tag=other").headers["cache-control"]
    for path in ("/api/thumbnail/40", "/api/thumbnail/-1", "/api/thumbnail/x", "/api/thumbnail/١"):
        assert client.get(path).status == 404
    assert client.get("/api/thumbnail/3?size=5000").status == 400


@pytest.mark.parametrize("given", [False, True])
def test_exports_hold_every_label(client, given) -> None:
    teach(client)
    suffix = "&given=true" if given else ""

    def export(name: str) -> bytes:
        answer = client.get(f"/api/export?format={name}{suffix}")
        assert answer.status == 200 and "attachment" in answer.headers["content-disposition"]
        return answer.content

    expected = TRUTH[:8] if given else TRUTH
    rows = list(csv.DictReader(io.StringIO(export("csv").decode())))
    assert [row["label"] for row in rows] == expected and "p:red" in rows[0]
    assert [json.loads(line)["label"] for line in export("jsonl").splitlines()] == expected
    assert [row["label"] for row in csv.DictReader(io.StringIO(export("metadata").decode()))] == expected
    tasks = json.loads(export("label-studio"))
    assert len(tasks) == len(expected) and "annotations" in tasks[0]
    folders = zipfile.ZipFile(io.BytesIO(export("folders"))).namelist()
    assert sorted(name.partition("/")[0] for name in folders) == sorted(expected)
    yolo = zipfile.ZipFile(io.BytesIO(export("yolo"))).namelist()
    assert len(yolo) == len(expected) and {name.split("/")[0] for name in yolo} <= {"train", "val"}


def test_an_export_of_labels_can_be_read_in_again(client, album, tmp_path) -> None:
    teach(client)
    client.label([30], "none-of-these")
    (tmp_path / "labels.csv").write_bytes(client.get("/api/export?format=labels").content)
    found = read_labels(album, tmp_path / "labels.csv")
    assert found == {f"{number:02}.jpg": TRUTH[number] for number in range(8)} | {"30.jpg": "none-of-these"}


def test_exports_are_written_to_the_folder_and_leave_other_files_alone(client, album, tmp_path) -> None:
    assert client.post("/api/export", {"format": "csv"}).status == 409, "nothing is labelled"
    teach(client)
    out = tmp_path / "out" / "export"
    for name in ("csv", "folders-link", "yolo", "labels"):
        done = client.post("/api/export", {"format": name})
        assert done.status == 200, done
        check("Written", done.json())
    assert (out / "images" / "red" / "00.jpg").resolve() == album / "00.jpg"
    assert (out / "predictions.csv").is_file() and (out / "yolo" / "train").is_dir()
    (out / "labels.csv").write_text("mine")
    refused = client.post("/api/export", {"format": "labels"})
    assert refused.status == 400 and "was changed" in refused.json()["error"]
    assert (out / "labels.csv").read_text() == "mine"


def test_the_exported_model_says_of_new_images_what_the_page_says(client, desk, album, tmp_path) -> None:
    assert client.get("/api/export?format=model").status == 409, "nothing is labelled"
    for number in (1, 0, 2, 3, 4, 5, 6, 7):  # so that classes are not in the order of their names
        client.label([number], TRUTH[number])
    client.settled()
    path = tmp_path / "model.safetensors"
    path.write_bytes(client.get("/api/export?format=model").content)
    model = TACClassifier.load(path)
    assert model.embedder_ == desk.origin
    found = desk.learner.settled()
    vectors = desk._vectors[found.rows]
    said = [row["label"] for row in csv.DictReader(io.StringIO(client.get("/api/export?format=csv").content.decode()))]
    free = [place for place, row in enumerate(found.rows) if found.labels[row] < 0]
    assert [model.predict(vectors)[place] for place in free] == [said[place] for place in free]


def test_events_begin_with_the_state(desk) -> None:
    import asyncio

    client = client_of(desk)
    client.settled()

    async def first() -> tuple[str, str]:
        response = next(route for route in application(desk).routes if route.path == "/api/events")
        answer = await response.endpoint(None)
        lines = answer.body_iterator
        hello = await anext(lines)
        await asyncio.to_thread(desk.label, [0], "cat")
        told = await anext(lines)
        await lines.aclose()
        return hello, told

    hello, told = asyncio.run(first())
    kind, content = re.fullmatch(r"event: (\w+)\ndata: (.*)\n\n", hello).groups()
    check("State", json.loads(content))
    assert kind == "hello" and told == 'event: labels\ndata: {"revision": 1, "count": 1}\n\n'
