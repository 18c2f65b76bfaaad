"""The files of the page are what a strict policy and hostile texts ask for."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import interlock.faces.page

FOLDER = Path(interlock.faces.page.__file__).parent
SCRIPTS = sorted(FOLDER.rglob("*.js"))
STYLES = sorted(FOLDER.rglob("*.css"))

MARKUP = re.compile(
    r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|createContextualFragment|DOMParser"
    r"|srcdoc|setHTML|\beval\(|new Function|setTimeout\(\s*[\"'`]|javascript:"
)


@pytest.mark.parametrize("file", SCRIPTS, ids=lambda file: file.name)
def test_no_script_turns_a_text_into_markup(file: Path) -> None:
    assert not MARKUP.search(file.read_text())


@pytest.mark.parametrize("file", [*SCRIPTS, *STYLES, FOLDER / "index.html"], ids=lambda f: f.name)
def test_nothing_is_loaded_from_elsewhere(file: Path) -> None:
    text = file.read_text().replace("http://www.w3.org/2000/svg", "")
    assert "//" not in re.sub(r"(^|\s)//[^\n]*", "", text).replace("\\//", "")


def test_the_document_has_no_script_and_no_style_of_its_own() -> None:
    text = (FOLDER / "index.html").read_text()
    assert not re.search(r"<style|\sstyle=|\son\w+=", text)
    assert all(re.search(r"\ssrc=", tag) for tag in re.findall(r"<script[^>]*>", text))
    named = set(re.findall(r'(?:src|href)="/assets/([^"]+)"', text))
    assert all((FOLDER / name).is_file() for name in named)
    modules = {str(file.relative_to(FOLDER)) for file in SCRIPTS}
    assert modules < named, "each module is loaded at once: add it as modulepreload"


@pytest.mark.parametrize("file", SCRIPTS, ids=lambda file: file.name)
def test_a_module_imports_what_is_there_and_says_what_it_owns(file: Path) -> None:
    text = file.read_text()
    assert text.startswith("// ")
    for names, place in re.findall(r"import \{([^}]*)\} from \"([^\"]+)\"", text):
        there = (file.parent / place).resolve().read_text()
        for name in (each.strip().split(" as ")[0] for each in names.split(",")):
            assert re.search(rf"export (async )?(const|let|function|class) {name}\b", there), name


@pytest.mark.parametrize("file", [*SCRIPTS, *STYLES], ids=lambda file: file.name)
def test_a_file_is_short_enough_to_read(file: Path) -> None:
    assert len(file.read_text().splitlines()) <= 300
