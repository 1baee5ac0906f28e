"""``module:callable``: functions of the user's own, and what their vectors are kept under."""

from __future__ import annotations

import importlib
import sys
import zipfile

import numpy as np
import pytest
from counting import arrays, items

from handful import HandfulError
from handful.embedders import embed_images, load_embedder

PLAIN = "def embed(images):\n    return images.reshape(len(images), -1)[:, :4] * 1.0\nembed.image_size = 8\n"


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("HANDFUL_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def project(tmp_path, monkeypatch):
    """Writes modules into a folder, and forgets those that were imported, as another process would not know them."""
    folder = tmp_path / "project"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(sys, "dont_write_bytecode", True)

    def write(files: dict[str, str] | None = None, **more: str):
        forget()
        for name, content in {**(files or {}), **more}.items():
            path = folder / f"{name}.py"
            path.parent.mkdir(exist_ok=True)
            path.write_text(content)
        return folder

    def forget():
        for name, module in list(sys.modules.items()):
            if str(getattr(module, "__file__", None)).startswith(str(tmp_path)):
                del sys.modules[name]
        importlib.invalidate_caches()

    yield write
    forget()


def test_an_edited_function_does_not_get_the_old_vectors(project):
    project(mine=PLAIN)
    first, _ = embed_images(load_embedder("mine:embed"), items(arrays(5)))
    project(mine=PLAIN.replace("1.0", "2.0"))
    second, _ = embed_images(load_embedder("mine:embed"), items(arrays(5)))
    np.testing.assert_array_equal(second, 2 * first)


def test_an_unchanged_function_does(project):
    counting = "seen = []\n" + PLAIN.replace("    return", "    seen.append(len(images))\n    return")
    project(mine=counting)
    embed_images(load_embedder("mine:embed"), items(arrays(5)))
    project(mine=counting)
    embed_images(load_embedder("mine:embed"), items(arrays(5)))
    assert sys.modules["mine"].seen == [1], "the first look at it only"
    embed_images(load_embedder("mine:embed"), items(arrays(5)))
    assert sys.modules["mine"].seen == [1, 1], "and the second, in the same process"


def key(name: str) -> str:
    found = load_embedder(name).key
    assert found
    return found


@pytest.mark.parametrize(
    "change",
    [
        {"mine": "from parts import scale\nSIZE = 9\ndef embed(images):\n    return images[:, :2, 0, 0] * scale()\n"},
        {"parts": "from deep.inner import TWO\ndef scale():\n    return TWO * 2.0\n"},
        {"deep/inner": "TWO = 3\n"},
        {"deep/helper": "ONE = 5\n"},
        {"deep/__init__": "import numpy\n"},
        {"lazy": "def late():\n    return 4\n"},
    ],
)
def test_the_key_holds_all_code_that_is_the_user_s(project, change):
    files = {
        "mine": "from parts import scale\nSIZE = 8\ndef embed(images):\n    return images[:, :2, 0, 0] * scale()\n",
        "parts": "from deep.inner import TWO\ndef scale():\n    import lazy\n    return TWO * 1.0 + lazy.late()\n",
        "deep/__init__": "",
        "deep/inner": "from . import helper\nfrom .helper import ONE\nTWO = 2 * ONE\n",
        "deep/helper": "ONE = 1\n",
        "lazy": "def late():\n    return 3\n",
    }
    project(files)
    first = key("mine:embed")
    project(files)
    assert key("mine:embed") == first
    project(files, unused="print()\n")
    assert key("mine:embed") == first, "what it does not import is nothing to it"
    project({**files, **change})
    assert key("mine:embed") != first


CALLABLES = """
import functools
from base import Base

class Net(Base):
    pass

def plain(images, scale=1.0):
    return images[:, :3, 0, 0] * scale

net = Net()
half = functools.partial(plain, scale=0.5)
bound = net.method
"""
BASE = """
class Base:
    image_size = 8
    def __call__(self, images):
        return images[:, :3, 0, 0] * 1.0
    def method(self, images):
        return self(images)
"""


@pytest.mark.parametrize("callable_", ["net", "half", "bound", "plain"])
def test_other_callables_than_functions(project, callable_):
    project(mine=CALLABLES, base=BASE)
    first = key(f"mine:{callable_}")
    project(mine=CALLABLES, base=BASE)
    assert key(f"mine:{callable_}") == first
    project(mine=CALLABLES, base=BASE.replace("1.0", "2.0"))
    assert key(f"mine:{callable_}") != first


def test_the_version_stands_for_what_code_does_not_show(project):
    content = f"{PLAIN}from pathlib import Path\nembed.version = Path('version.txt').read_text()\n"
    folder = project(mine=content)
    (folder / "version.txt").write_text("1")
    first = key("mine:embed")
    project(mine=content)
    (folder / "version.txt").write_text("2")
    assert key("mine:embed") != first


def test_the_same_code_in_another_folder(project, tmp_path, monkeypatch):
    """It may read other weights there."""
    project(mine=PLAIN)
    first = key("mine:embed")
    other = tmp_path / "other"
    other.mkdir()
    (other / "mine.py").write_text(PLAIN)
    project()
    sys.path.insert(0, str(other))
    assert key("mine:embed") != first


def test_a_module_in_an_archive(project, tmp_path):
    project()
    with zipfile.ZipFile(tmp_path / "code.zip", "w") as archive:
        archive.writestr("packed.py", PLAIN)
    sys.path.append(str(tmp_path / "code.zip"))
    assert key("packed:embed")


def test_code_that_is_not_known_keeps_no_vectors(project, capfd):
    project(mine=PLAIN)
    importlib.invalidate_caches()
    sys.path.append("")
    module = importlib.import_module("mine")
    assert load_embedder("mine:embed").key == ""
    assert "the vectors of mine:embed are not kept: mine had been imported before" in capfd.readouterr().err
    del module
    project(mine=PLAIN)
    assert key("mine:embed"), "the first import is handful's own"
    project_file = sys.modules["mine"].__file__
    with open(project_file, "a") as file:  # noqa: PTH123
        file.write("\n# edited since\n")
    assert key("mine:embed"), "the code that runs is still the former"
    importlib.reload(sys.modules["mine"])
    assert load_embedder("mine:embed").key == "", "what was reloaded may be anything"


def test_an_edit_after_the_import_is_not_taken_for_what_runs(project):
    folder = project(mine=PLAIN)
    first = key("mine:embed")
    (folder / "mine.py").write_text(PLAIN.replace("1.0", "2.0"))
    assert key("mine:embed") == first
    project()
    assert key("mine:embed") != first


def test_a_builtin_has_no_code_to_compare(project, capfd):
    project(mine="import sys\n")
    with pytest.raises(HandfulError, match="the embedder math:sqrt fails: TypeError"):
        load_embedder("math:sqrt")
    assert "the vectors of math:sqrt are not kept" in capfd.readouterr().err


def test_code_of_an_installed_package(project):
    """Its distribution's list of files stands for it."""
    project()
    with pytest.raises(HandfulError, match="fails"):  # no embedder, but one whose code is found
        load_embedder("filelock:FileLock")


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        (":embed", "", "':embed' names no embedder: write module:callable"),
        ("mine:", "", "'mine:' names no embedder"),
        (".mine:embed", "", "names no embedder"),
        ("mine:embed.inner", PLAIN, "'mine:embed.inner' names no embedder"),
        ("mi\0ne:embed", "", r"cannot import the embedder mi\\x00ne:embed: "),
        ("absent:embed", "", "cannot import the embedder absent:embed: ModuleNotFoundError: No module named 'absent'"),
        ("mine:other", PLAIN, "the module mine has no 'other'"),
        ("mine:embed", "1 / 0", "cannot import the embedder mine:embed: ZeroDivisionError: division by zero"),
        ("mine:embed", "def (", "cannot import the embedder mine:embed: SyntaxError: "),
        ("mine:embed", "import sys\nsys.exit('bye')", "cannot import the embedder mine:embed: SystemExit: bye"),
        ("mine:embed", "raise ValueError('one\\ntwo')", "mine:embed: ValueError: one$"),
        ("mine:embed", "raise KeyError", "mine:embed: KeyError$"),
        (
            "mine:embed",
            "raise AttributeError('inside')",
            "cannot import the embedder mine:embed: AttributeError: inside",
        ),
        ("mine:embed", "embed = 3", "the embedder mine:embed is no function but of the type int"),
        ("mine:embed", PLAIN + "embed.version = embed", "has as version a function: use text or a number"),
    ],
)
def test_what_cannot_be_loaded(project, name, content, sentence):
    project(mine=content)
    with pytest.raises(HandfulError, match=sentence) as caught:
        load_embedder(name)
    assert "\n" not in str(caught.value) and "\0" not in str(caught.value)


@pytest.mark.parametrize("name", ["image_size", "channels"])
@pytest.mark.parametrize("value", ["0", "-1", "'big'", "10**9", "True", "None", "2.0", "[8]"])
def test_bad_sizes(project, name, value):
    project(mine=f"{PLAIN}embed.{name} = {value}\n")
    with pytest.raises(HandfulError, match=f"the embedder mine:embed has {name} .*: it should be"):
        load_embedder("mine:embed")


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        ("raise RuntimeError('no weights\\nsecond line')", "the embedder mine:embed fails: RuntimeError: no weights$"),
        ("import sys; sys.exit(3)", "the embedder mine:embed fails: SystemExit: 3"),
        ("pass", r"should give numbers of shape \(1, dim\) for 1 images, got object of shape \(\)"),
        ("return [[1.0, 2.0], [3.0]]", "the embedder mine:embed fails: ValueError"),
        ("return [['1', '2']] * len(images)", "got <U1"),
        ("return np.array([[{}]] * len(images))", "got object"),
        ("return np.ones((len(images), 2)) * 1j", "got complex128"),
        ("return np.ones(len(images))", r"got float64 of shape \(1,\)"),
        ("return np.ones((len(images), 0))", r"got float64 of shape \(1, 0\)"),
        ("return np.ones((len(images) + 1, 2))", r"got float64 of shape \(2, 2\)"),
    ],
)
def test_functions_that_fail(project, body, sentence):
    project(mine=f"import numpy as np\ndef embed(images):\n    {body}\nembed.image_size = 8\n")
    with pytest.raises(HandfulError, match=sentence) as caught:
        load_embedder("mine:embed")
    assert "\n" not in str(caught.value)


def test_the_length_of_vectors_stays_what_it_was(project):
    project(mine="def embed(images):\n    return images[:, :, 0, 0][:, : 4 if len(images) == 1 else 5] * 1.0\n")
    with pytest.raises(HandfulError, match=r"should give numbers of shape \(3, 4\) for 3 images, got float64 of shape"):
        embed_images(load_embedder("mine:embed"), items(arrays(3)))


def test_the_original_error_is_kept(project):
    project(mine="def embed(images):\n    return images.nothing\n")
    with pytest.raises(HandfulError) as caught:
        load_embedder("mine:embed")
    assert isinstance(caught.value.__cause__, AttributeError)
