"""The files of the page are what a strict policy and hostile texts ask for."""

from __future__ import annotations

import re
from pathlib import Path

from tests.for_each import for_each

import interlock.faces.page

FOLDER = Path(interlock.faces.page.__file__).parent
SCRIPTS = sorted(FOLDER.rglob("*.js"))
STYLES = sorted(FOLDER.rglob("*.css"))

MARKUP = re.compile(
    r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|createContextualFragment|DOMParser"
    r"|srcdoc|setHTML|\beval\(|new Function|setTimeout\(\s*[\"'`]|javascript:"
)


@for_each("file", SCRIPTS, lambda file: file.name)
def test_no_script_turns_a_text_into_markup(file: Path) -> None:
    assert not MARKUP.search(file.read_text())


@for_each("file", [*SCRIPTS, *STYLES, FOLDER / "index.html"], lambda f: f.name)
def test_nothing_is_loaded_from_elsewhere(file: Path) -> None:
    text = file.read_text().replace("http://www.w3.org/2000/svg", "")
    assert "//" not in re.sub(r"(^|\s)//[^\n]*", "", text).replace("\\//", "")


def test_the_document_has_no_script_and_no_style_of_its_own() -> None:
    text = (FOLDER / "index.html").read_text()
    assert not re.search(r"<style|\sstyle=|\son\w+=", text)
    assert all(re.search(r"\ssrc=", tag) for tag in re.findall(r"<script[^>]*>", text))
    named = set(re.findall(r'(?:src|href)="/assets/([^"]+)"', text))
    assert all((FOLDER / name).is_file() for name in named)
    loaded = {name for name in named if name.endswith(".js")}
    assert reached("main.js") <= loaded, "what the page begins with is loaded at once: add it"
    first = [reached(f"views/{view}.js") for view in ("now", "tasks")]
    assert loaded <= reached("main.js").union(*first), "what is not needed at first waits"


def reached(name: str) -> set[str]:
    """A module, and all that it imports at once."""
    found: set[str] = set()
    todo = [FOLDER / name]
    while todo:
        file = todo.pop()
        if str(file.relative_to(FOLDER)) not in found:
            found.add(str(file.relative_to(FOLDER)))
            places = re.findall(r"from \"(\.[^\"]+)\"", file.read_text())
            todo += [(file.parent / place).resolve() for place in places]
    return found


def test_every_view_has_a_module_that_opens_it_and_every_module_is_used() -> None:
    ids = re.findall(r"\bid: \"(\w+)\"", (FOLDER / "views.js").read_text())
    views = {f"views/{id_}.js" for id_ in ids}
    assert views == {str(file.relative_to(FOLDER)) for file in FOLDER.glob("views/*.js")}
    for view in views:
        assert re.search(r"export (const|function) open\b", (FOLDER / view).read_text()), view
    used = reached("main.js") | reached("detail.js") | set().union(*map(reached, views))
    assert used == {str(file.relative_to(FOLDER)) for file in SCRIPTS}


@for_each("file", SCRIPTS, lambda file: file.name)
def test_a_module_imports_what_is_there_and_says_what_it_owns(file: Path) -> None:
    text = file.read_text()
    assert text.startswith("// ")
    for names, place in re.findall(r"import \{([^}]*)\} from \"([^\"]+)\"", text):
        there = (file.parent / place).resolve().read_text()
        for name in (each.strip().split(" as ")[0] for each in names.split(",")):
            assert re.search(rf"export (async )?(const|let|function|class) {name}\b", there), name


@for_each("file", [*SCRIPTS, *STYLES], lambda file: file.name)
def test_a_file_is_short_enough_to_read(file: Path) -> None:
    assert len(file.read_text().splitlines()) <= 300
