"""Settings of the documentation site, which ``make docs`` builds."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

from sphinx.application import Sphinx

sys.path.insert(0, str(Path(__file__).parent))

from _commands import reference

import handful

project = "handful"
author = "The handful developers"
copyright = "the handful developers. Licence: Apache-2.0"
version = release = handful.__version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
    "sphinx_design",
]
source_suffix = {".md": "markdown", ".ipynb": "markdown"}
exclude_patterns = ["_static"]

myst_enable_extensions = ["colon_fence", "attrs_inline"]
myst_heading_anchors = 4  # links to headings work as they do on GitHub
copybutton_prompt_text = r"\$ "
copybutton_prompt_is_regexp = True
pygments_style = "a11y-high-contrast-light"

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_default_options = {"members": True, "show-inheritance": True}
autodoc_preserve_defaults = True
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_custom_sections = [("Attributes", "params_style")]  # a list; names keep their last underscore
python_use_unqualified_type_names = True
maximum_signature_line_length = 88
default_role = "code"

html_title = "handful"
html_theme = "pydata_sphinx_theme"
html_static_path = ["_static"]
html_css_files = ["handful.css"]
html_favicon = "_static/logo.svg"
html_show_sourcelink = False
html_copy_source = False
html_theme_options = {
    "logo": {"text": "handful", "image_light": "_static/logo.svg", "image_dark": "_static/logo.svg"},
    "navbar_end": ["theme-switcher"],
    "header_links_before_dropdown": 7,
    "show_toc_level": 2,
    "navigation_with_keys": False,
    "footer_start": ["copyright"],
    "footer_end": [],
    "secondary_sidebar_items": {"**": ["page-toc"], "index": []},
    "pygments_light_style": "a11y-high-contrast-light",
    "pygments_dark_style": "a11y-high-contrast-dark",
}
html_sidebars = {"index": [], "results": [], "contributing": []}  # pages without others below them

# Files of the repository's root that are pages of the site, too.
ROOT_PAGES = {
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "SECURITY.md": "security.md",
    "CODE_OF_CONDUCT.md": "conduct.md",
}


def notebook_as_markdown(text: str) -> str:
    """A notebook as Markdown: its cells in order, and what they printed."""
    parts = []
    for cell in json.loads(text)["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(source)
            continue
        parts.append(f"```python\n{source}\n```")
        for output in cell["outputs"]:
            printed = output.get("text") or output.get("data", {}).get("text/plain", [])
            if printed:
                parts.append("```{code-block} none\n:class: output\n\n" + "".join(printed).rstrip() + "\n```")
    return "\n\n".join(parts) + "\n"


def complete(app: Sphinx, docname: str, source: list[str]) -> None:
    """What a page is before it is parsed: notebooks as text, generated parts filled in, links within the site."""
    text = source[0]
    if app.env.doc2path(docname).suffix == ".ipynb":
        text = notebook_as_markdown(text)
    text = text.replace("<!-- commands -->", reference())
    for name, page in ROOT_PAGES.items():
        text = re.sub(rf"\]\((?:\.\./)+{re.escape(name)}", f"](/{page}", text)
    source[0] = text


def root_links(app: Sphinx, relative: object, parent: str, content: list[str]) -> None:
    """Links of a file of the repository's root, as they are in the site."""
    for name, page in ROOT_PAGES.items():
        content[0] = content[0].replace(f"]({name}", f"](/{page}")
    content[0] = content[0].replace("](docs/", "](/")


def plain_text(app: Sphinx, what: str, name: str, member: object, options: object, lines: list[str]) -> None:
    """Docstrings are prose with code in backticks: stars and bars in it are not marks of reStructuredText."""
    example = False
    for number, line in enumerate(lines):
        example = bool(line.strip()) and (example or line.lstrip().startswith(">>>"))
        if not example:
            parts = re.split(r"(``.*?``|`[^`]*`)", line)
            parts[::2] = [re.sub(r"[*|](?=\S)", r"\\\g<0>", part) for part in parts[::2]]
            lines[number] = "".join(parts)


def leave_out(app: Sphinx, what: str, name: str, member: object, skip: bool, options: object) -> bool | None:
    """Leave out what scikit-learn adds to every estimator for the routing of metadata, and what a named tuple adds."""
    added = re.fullmatch(r"set_\w+_request", name) or str(member.__doc__).startswith("Alias for field number")
    return True if added else None


def setup(app: Sphinx) -> None:
    app.connect("autodoc-process-docstring", plain_text, priority=100)  # before the sections are read
    app.connect("autodoc-skip-member", leave_out)
    app.connect("source-read", complete)
    app.connect("include-read", root_links)
