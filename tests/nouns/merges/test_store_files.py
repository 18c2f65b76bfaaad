"""Files of a store in a branch: the queue bounces it, whatever the file is called."""

from __future__ import annotations

from tests.for_each import for_each
from tests.nouns.merges.queue_bed import QueueBed
from tests.nouns.merges.repositories import TestRepository

from interlock.nouns.merges.store_files import TrackedFile, changed_files, store_files

FILE, LINK, MODULE = "100644", "120000", "160000"


def commit(repository: TestRepository, name: str, *lines: str, onto: str = "main") -> str:
    """A commit on a branch with these lines of ``fast-import``."""
    head = [f"commit refs/heads/{name}", "committer test <test@localhost> 1700000000 +0000"]
    lines = (*head, "data 1", "x", *([f"from refs/heads/{onto}^0"] if onto else []), *lines, "")
    repository.git("fast-import", "--quiet", "--force", given="\n".join(lines))
    return repository.at(name)


def entry(mode: str, path: str, content: str = "x") -> str:
    quoted = '"' + "".join(f"\\{byte:03o}" for byte in path.encode()) + '"'
    if mode == MODULE:
        return f"M {mode} {'1' * 40} {quoted}"
    return f"M {mode} inline {quoted}\ndata {len(content.encode())}\n{content}"


FORBIDDEN = [
    (FILE, ".interlock/store.db", ""),
    (FILE, ".interlock", ""),
    (MODULE, ".interlock", ""),
    (LINK, ".interlock", "elsewhere"),
    (FILE, "deep/er/.interlock/config.toml", ""),
    (FILE, ".Interlock/x", ""),
    (FILE, ".INTERLOCK/x", ""),
    (FILE, ".interloc\u212a/x", ""),  # the sign of kelvin
    (FILE, ".inter\u200dlock/x", ""),
    (FILE, "\ufeff.interlock/x", ""),
    (FILE, ".interlock\u00ad/x", ""),
    (FILE, ".interlock./x", ""),
    (FILE, ".interlock . /x", ""),
    (FILE, ".interlock::$INDEX_ALLOCATION/x", ""),
    (FILE, "INTERL~1/x", ""),
    (FILE, "a\\.interlock\\x", ""),
    (LINK, "notes", ".interlock/store.db"),
    (LINK, "a/notes", "../.Interlock"),
    (LINK, "notes", "/home/ada/shop/.interlock/store.db"),
    (LINK, "notes", "sub/../.git/config"),
    (LINK, "notes", ".GIT"),
    (LINK, "notes", "GIT~1/hooks\n"),
]
ALLOWED = [
    (FILE, "interlock/store.db", ""),
    (FILE, "src/interlock.py", ""),
    (FILE, ".interlocked/x", ""),
    (FILE, ".interlock-probe", ""),
    (FILE, "x.interlock", ""),
    (FILE, "about", ".interlock/store.db"),
    (LINK, "link", "src/interlock"),
    (LINK, "link", ".github/workflows"),
    (LINK, "link", "\n"),
]


@for_each("file", FORBIDDEN)
def test_each_name_that_a_file_system_takes_for_a_store_is_one(file: tuple[str, str, str]) -> None:
    mode, path, content = file
    assert _found(mode, path, content)


@for_each("file", ALLOWED)
def test_other_names_are_none(file: tuple[str, str, str]) -> None:
    assert not _found(*file)


def _found(mode: str, path: str, content: str) -> tuple[str, ...]:
    def git(*_words: str, given: str) -> str:
        return "".join(f"{oid} blob {len(content)}\n{content}\n" for oid in given.split())

    files = [TrackedFile(FILE, "0" * 40, "plain"), TrackedFile(mode, "1" * 40, path)]
    return store_files(git, files)


def test_what_is_deleted_counts_for_nothing_and_a_merge_by_its_result() -> None:
    none, some = "0" * 40, "1" * 40
    gone = f":100644 000000 {some} {none} D\0.interlock/a\0"
    merged = f"\n::100644 100644 120000 {none} {none} {some} MM\0.interlock/b\0"
    files = list(changed_files(gone + merged))
    assert files == [
        TrackedFile("000000", none, ".interlock/a"),
        TrackedFile(LINK, some, ".interlock/b"),
    ]
    assert store_files(lambda *_words, given: f"{given.strip()} missing\n", files) == (
        ".interlock",
    )


def test_a_branch_with_a_store_bounces_and_the_others_of_its_batch_land(queue: QueueBed) -> None:
    git = queue.repository
    for number, name in enumerate(("one", "evil", "two")):
        lines = [entry(FILE, f"f{number}")]
        if name == "evil":
            lines += [entry(FILE, "sub/.Interlock/store.db"), entry(LINK, "link", "../.git/config")]
        commit(git, name, *lines)
        queue.submit(name)
    queue.serve("true")
    assert queue.states() == {"one": "merged", "evil": "bounced", "two": "merged"}
    assert git.files() == {"base", "f0", "f2"}
    (told,) = [each for each in queue.mail() if each[0] == "evil"]
    assert told[1] == "bounced"
    shown = queue.show("evil")
    assert shown.files == ("sub/.Interlock", "link")
    assert "git rm -r --cached sub/.Interlock link" in shown.reason


def test_a_store_that_the_next_branch_deletes_bounces_too(queue: QueueBed) -> None:
    git = queue.repository
    commit(git, "evil", entry(FILE, ".interlock/store.db"))
    commit(git, "after", "D .interlock/store.db", entry(FILE, "new"), onto="evil")
    queue.submit("evil")
    queue.submit("after")
    queue.serve("true")
    assert queue.states() == {"evil": "bounced", "after": "merged"}
    assert git.files() == {"base", "new"}


def test_a_target_that_has_a_store_takes_all_branches_but_those_that_change_it(
    queue: QueueBed,
) -> None:
    git = queue.repository
    commit(git, "main", entry(FILE, ".interlock/store.db"), entry(FILE, ".interlock/other"))
    commit(git, "unrelated", entry(FILE, "new"))
    commit(git, "changes", entry(FILE, ".interlock/store.db", "changed"))
    commit(git, "adds", entry(FILE, ".interlock/more"))
    commit(git, "deletes", "D .interlock/other")
    for name in ("unrelated", "changes", "adds", "deletes"):
        queue.submit(name)
    queue.serve("true")
    states = {"unrelated": "merged", "changes": "bounced", "adds": "bounced", "deletes": "merged"}
    assert queue.states() == states
    assert git.files() == {"base", "new", ".interlock/store.db"}


def test_a_merge_that_moves_a_file_into_a_store_bounces(queue: QueueBed) -> None:
    git = queue.repository
    git.git("config", "merge.directoryRenames", "true")
    commit(git, "main", entry(FILE, "old/a"), entry(FILE, "old/b"))
    commit(git, "side", entry(FILE, "old/new"))
    commit(git, "main", "R old .interlock")  # git carries the rename over to the new file
    queue.submit("side")
    queue.serve("true")
    assert queue.show("side").files == (".interlock",)


def test_no_override_lets_a_store_through(queue: QueueBed) -> None:
    commit(queue.repository, "evil", entry(LINK, "notes", ".interlock/store.db"))
    queue.submit("evil", override="agreed")
    queue.serve()
    assert queue.states() == {"evil": "bounced"}
