"""Installs and removes what a host needs: its hooks, the MCP server, and instructions.

A ``Setup`` makes the new text of each file first; ``show`` prints the difference, ``write`` writes
it.  Entries of others stay as they are (``settings_file.py``).
A file that git does not track gets the absolute path of this installation, and is left out of
commits by ``.git/info/exclude``; a tracked one gets the plain command, since a path of this machine
helps no one else.
"""

from __future__ import annotations

import difflib
import json
import os
import shlex
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress

from interlock import git_command
from interlock.errors import BadInput
from interlock.faces.hooks import claude_plugin, tree_files
from interlock.faces.hooks.git import git_answer, git_hooks
from interlock.faces.hooks.hosts import AFTER, BEFORE, END, HOSTS, STOP, Host
from interlock.faces.hooks.main import WAKE
from interlock.faces.hooks.settings_file import (
    Settings,
    command_of,
    drop_if_empty,
    drop_own,
    handlers,
    indent,
    is_own,
    is_tracked,
    mode,
    names_host,
    parsed,
    read_text,
    table,
    without_block,
    worktree_root,
)
from interlock.nouns.fleet.hosts_noun import SetUp, SetupShown

BEGIN, FINISH = "<!-- interlock begin -->", "<!-- interlock end -->"
_TOML = ("# interlock begin", "# interlock end")
_SECONDS = 30
INSTRUCTIONS = f"""{BEGIN}
## Other agents work here

Run `interlock prime --agent NAME` with a name of your own before you start, and do what it says.
Reserve files before you edit them: `interlock reserve 'src/*.py' --agent NAME --reason WHY`.
If that answers `conflict`, edit other files first.
At the end: `interlock unreserve --all --agent NAME`.
{FINISH}
"""


class Setup:
    """The change of all files of one host."""

    def __init__(self, host: str, *, remove: bool, folder: str = "", monitor: bool = False) -> None:
        if monitor and host != "claude":
            raise BadInput(f"{host} has no plugin monitor; only claude has: drop --monitor")
        self.host = host
        self.remove = remove
        self._with_monitor = monitor and not remove
        here = os.path.abspath(folder or os.getcwd())
        self.main = os.path.realpath(git_command.main_worktree(here) or here)
        self.root = os.path.realpath(worktree_root(here))
        self.notes: list[str] = []
        self._old: dict[str, str | None] = {}
        self._new: dict[str, str | None] = {}
        self._moved: dict[str, str] = {}
        if host == "git":
            for each in git_hooks(self.root, own_command(), self.notes, remove=remove):
                path = self._hook_path(each.path)
                self._old[path], self._new[path] = each.old, each.new
                if each.source:
                    self._moved[path] = self._hook_path(each.source)
        elif host == "agents":
            self._instructions("AGENTS.md")
        else:
            self._host(HOSTS[host])

    @property
    def files(self) -> tuple[str, ...]:
        """The files that change."""
        new = self._new.items()
        return tuple(path for path, text in new if text != self._old[path] or path in self._moved)

    def show(self) -> SetupShown:
        """What would change."""
        parts = []
        for path in self.files:
            texts = (_shown(text or "") for text in (self._old[path], self._new[path]))
            before, after = (text.splitlines(keepends=True) for text in texts)
            parts.append("".join(difflib.unified_diff(before, after, path, path)))
        notes = tuple(self.notes)
        return SetupShown(host=self.host, files=self.files, diff="\n".join(parts), notes=notes)

    def write(self) -> SetUp:
        """Write it."""
        files = self.files
        for path in files:
            try:
                self._write(path, self._new[path])
            except OSError as error:
                why = error.strerror
                raise BadInput(
                    f"{path} cannot be written ({why}); correct it, then run setup again"
                ) from None
        if not self.remove:
            self._exclude(files)
        return SetUp(host=self.host, files=files, notes=tuple(self.notes), removed=self.remove)

    def _write(self, path: str, new: str | None) -> None:
        if path in self._moved:
            tree_files.move(self._moved[path], os.path.basename(path))
        elif new is not None:
            tree_files.write(path, new, 0o755 if new.startswith("#!") else mode(path))
        else:
            tree_files.remove(path)
            if os.path.join("", os.path.basename(claude_plugin.FOLDER), "") in path:
                with suppress(OSError):  # other files of it are still there
                    os.removedirs(os.path.dirname(path))

    def _hook_path(self, path: str) -> str:
        """A hook of git: a link in its place is moved or replaced, so only its folder counts."""
        folder, name = os.path.split(path)
        git = os.path.join(self.root, git_answer(self.root, "rev-parse", "--git-common-dir"))
        return os.path.join(tree_files.resolved(folder, self.root, git), name)

    # Hosts.

    def _host(self, host: Host) -> None:
        match host.name:
            case "claude":
                changes = (self._claude_shaped(host), self._enabled_monitor)
                self._json(self.main, ".claude/settings.local.json", *changes)
                self._json(self.main, ".mcp.json", self._server("mcpServers"))
                self._monitor_files()
                self._json(self.root, HOSTS["copilot"].file, self._no_second, only_existing=True)
            case "codex":
                self._json(self.main, host.file, self._claude_shaped(host))
                self._toml(tree_files.resolved(f"{self.main}/.codex/config.toml", self.main))
                self._after(
                    "open /hooks in Codex and trust the hooks: it skips others without a word",
                    "the sandbox lets commands write .interlock of this folder only; from a"
                    " worktree add it to sandbox_workspace_write.writable_roots",
                )
            case "copilot":
                if not self.remove and self._has_hooks(".claude/settings.local.json", "claude"):
                    self._after("Copilot CLI runs the hooks of .claude/settings.local.json, too")
                else:
                    self._json(self.root, host.file, self._flat(host))
                self._after(f"add the MCP server: copilot mcp add interlock -- {own_command()} mcp")
            case "cursor":
                self._json(self.root, host.file, self._flat(host))
                self._json(self.root, ".cursor/mcp.json", self._server("mcpServers"))
                if self._has_hooks(".claude/settings.local.json", "claude"):
                    self._after("leave the import of Claude Code's hooks off in Cursor's settings")
            case "gemini":
                self._json(
                    self.root, host.file, self._claude_shaped(host), self._server("mcpServers")
                )
            case _:
                self._plugin(host)
                self._json(self.root, "opencode.json", self._opencode_server)

    def _after(self, *notes: str) -> None:
        if not self.remove:
            self.notes.extend(notes)

    def _claude_shaped(self, host: Host) -> Callable[[Settings, str], None]:
        def change(settings: Settings, command: str) -> None:
            hooks = table(settings, "hooks")
            drop_own(hooks, host.name)
            for event, means in self._events(host):
                unit = 1000 if host.name == "gemini" else 1
                line = f"{command} hook {host.name} {event}"
                handler: Settings = {"type": "command", "command": line}
                seconds = 3 if means == END and host.name == "codex" else _SECONDS
                handler["timeout"] = seconds * unit
                if means == BEFORE and host.name == "claude":
                    handler["onFailure"] = "block"
                group: Settings = {"hooks": [handler]}
                if means == STOP and host.rewakes:
                    group["hooks"].append(_waker(f"{command} hook {host.name} {WAKE}"))
                if means == BEFORE:
                    group = {"matcher": host.matcher, **group}
                hooks.setdefault(event, []).append(group)
            drop_if_empty(settings, "hooks")

        return change

    def _flat(self, host: Host) -> Callable[[Settings, str], None]:
        def change(settings: Settings, command: str) -> None:
            hooks = table(settings, "hooks")
            drop_own(hooks, host.name)
            for event, means in self._events(host):
                line = f"{command} hook {host.name} {event}"
                handler: Settings
                if host.name == "cursor":
                    handler = {"command": line, "timeout": _SECONDS}
                    handler |= {"failClosed": True} if means == BEFORE else {}
                else:
                    handler = {"type": "command", "bash": line, "timeoutSec": _SECONDS}
                hooks.setdefault(event, []).append(handler)
            drop_if_empty(settings, "hooks")
            if hooks:
                settings.setdefault("version", 1)
            elif settings == {"version": 1}:
                settings.clear()

        return change

    def _events(self, host: Host) -> Iterator[tuple[str, str]]:
        if not self.remove:
            batch = "PostToolBatch" in host.events
            for event, means in host.events.items():
                if not (means == AFTER and batch and event != "PostToolBatch"):
                    yield event, means

    def _no_second(self, settings: Settings, _command: str) -> None:
        """Copilot CLI reads the hooks of Claude Code: its own would run beside them."""
        hooks = table(settings, "hooks")
        if not self.remove and any(is_own(each, "copilot") for each in handlers(hooks)):
            drop_own(hooks, "copilot")
            self.notes.append("Copilot CLI runs these hooks, too; its own were removed")
            drop_if_empty(settings, "hooks")
            if settings == {"version": 1}:
                settings.clear()

    def _server(self, name: str) -> Callable[[Settings, str], None]:
        def change(settings: Settings, command: str) -> None:
            servers = table(settings, name)
            servers.pop("interlock", None)
            if not self.remove:
                program, *rest = shlex.split(command)
                servers["interlock"] = {"command": program, "args": [*rest, "mcp"]}
            drop_if_empty(settings, name)

        return change

    def _opencode_server(self, settings: Settings, command: str) -> None:
        servers = table(settings, "mcp")
        servers.pop("interlock", None)
        if not self.remove:
            servers["interlock"] = {"type": "local", "command": [*shlex.split(command), "mcp"]}
        drop_if_empty(settings, "mcp")

    def _enabled_monitor(self, settings: Settings, _command: str) -> None:
        if self.remove:
            claude_plugin.disable(settings)
        elif self._with_monitor:
            claude_plugin.enable(settings, os.path.join(self.main, claude_plugin.FOLDER))

    def _monitor_files(self) -> None:
        """The files of the plugin; without --monitor one that is there gets the newest command."""
        for name, text in claude_plugin.plugin_files(own_command()).items():
            path = os.path.join(self.main, claude_plugin.FOLDER, name)
            path = tree_files.resolved(path, self.main)
            if self._with_monitor or read_text(path) is not None:
                self._change(path, None if self.remove else text)
        if self._with_monitor:
            self._after("Claude Code asks whether to install the plugin when it starts here next")

    def _plugin(self, host: Host) -> None:
        path = tree_files.resolved(os.path.join(self.root, host.file), self.root)
        command = json.dumps([*shlex.split(own_command()), "hook", host.name])
        self._change(path, None if self.remove else _PLUGIN.replace("COMMAND", command))

    # Files.

    def _json(
        self,
        root: str,
        name: str,
        *changes: Callable[[Settings, str], None],
        only_existing: bool = False,
    ) -> None:
        path = tree_files.resolved(os.path.join(root, name), root)
        old = read_text(path)
        if old is None and (self.remove or only_existing):
            return
        settings = parsed(path, old or "{}")
        command = "interlock" if is_tracked(root, path) else own_command()
        before = json.dumps(settings)
        for change in changes:
            change(settings, command)
        if json.dumps(settings) == before:
            return
        text = json.dumps(settings, indent=indent(old), ensure_ascii=False) + "\n"
        self._change(path, None if not settings and self.remove else text)

    def _toml(self, path: str) -> None:
        old = read_text(path) or ""
        rest = without_block(old, *_TOML)
        if not self.remove:
            if "[mcp_servers.interlock]" in rest:
                self.notes.append(f"{path} has an MCP server 'interlock' already; it stays")
            else:
                program, *arguments = shlex.split(own_command())
                begin, finish = _TOML
                lines = [
                    begin,
                    "[mcp_servers.interlock]",
                    f"command = {json.dumps(program)}",
                    f"args = {json.dumps([*arguments, 'mcp'])}",
                    finish,
                ]
                gap = "" if not rest or rest.endswith("\n\n") else "\n"
                rest += gap + "\n".join(lines) + "\n"
        self._change(path, rest if rest.strip() else None)

    def _instructions(self, name: str) -> None:
        path = tree_files.resolved(os.path.join(self.root, name), self.root)
        rest = without_block(read_text(path) or "", BEGIN, FINISH)
        if not self.remove:
            rest = f"{rest.rstrip()}\n\n{INSTRUCTIONS}" if rest.strip() else INSTRUCTIONS
        self._change(path, rest if rest.strip() else None)

    def _change(self, path: str, new: str | None) -> None:
        self._old[path] = read_text(path)
        self._new[path] = new

    def _has_hooks(self, name: str, host: str) -> bool:
        path = tree_files.resolved(os.path.join(self.main, name), self.main)
        text = read_text(path) or ""
        return any(names_host(line, host) for line in text.splitlines())

    def _exclude(self, files: tuple[str, ...]) -> None:
        """Leave new files with a path of this machine out of commits."""
        for root in dict.fromkeys((self.root, self.main)):
            folder = git_answer(root, "rev-parse", "--git-path", "info/exclude")
            names = [os.path.relpath(path, root) for path in files if path.startswith(f"{root}/")]
            names = [
                name
                for name in names
                if self.host not in ("agents", "git") and not name.startswith(".git/")
            ]
            new = [f"/{name}" for name in names if not is_tracked(root, name)]
            if not folder or not new:
                continue
            path = os.path.realpath(os.path.join(root, folder))
            old = read_text(path) or ""
            missing = [name for name in new if name not in old.splitlines()]
            if missing:
                gap = "" if not old or old.endswith("\n") else "\n"
                new_text = old + gap + "".join(f"{name}\n" for name in missing)
                tree_files.write(path, new_text, mode(path))


def _waker(line: str) -> Settings:
    """The hook that runs in the background, and wakes the agent with status 2."""
    from interlock.faces.hooks.rewake import LONGEST

    return {"type": "command", "command": line, "asyncRewake": True, "timeout": LONGEST}


def own_command() -> str:
    """The command of this installation, by its absolute path, as a word of a shell."""
    beside = os.path.join(os.path.dirname(sys.executable), "interlock")
    if os.access(beside, os.X_OK):
        return shlex.quote(beside)
    # A host starts it in the work tree: without -P, Python imports from there.
    return f"{shlex.quote(sys.executable)} -P -m interlock"


def installed(host: Host, folder: str) -> list[tuple[str, str]]:
    """The commands of our hooks before an edit that are in the files of a project, by file."""
    main = git_command.main_worktree(folder) or folder
    names = {host.file, ".claude/settings.local.json", ".claude/settings.json"}
    found: list[tuple[str, str]] = []
    for root in dict.fromkeys((worktree_root(folder), main)):
        for name in sorted(names if host.name == "claude" else {host.file}):
            if name.endswith(".ts"):
                continue
            path = tree_files.resolved(os.path.join(root, name), root)
            text = read_text(path)
            if text is None:
                continue
            try:
                hooks = json.loads(text).get("hooks", {})
            except (ValueError, AttributeError):
                continue
            for event, means in host.events.items():
                if means == BEFORE:
                    lines = [command_of(each) for each in handlers({event: hooks.get(event)})]
                    found += [(path, line) for line in lines if names_host(line, host.name)]
    return list(dict.fromkeys(found))


def _shown(text: str) -> str:
    """A text that can be printed, also that of a file that is not UTF-8."""
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


_PLUGIN = """// Written by 'interlock setup opencode'; its option --remove deletes it.
import { spawnSync } from "node:child_process"

const [program, ...words] = COMMAND

function ask(event, folder, more) {
  const input = JSON.stringify({ hook_event_name: event, cwd: folder, ...more })
  const done = spawnSync(program, [...words, event], { input, encoding: "utf8", timeout: 30000 })
  if (done.error || (done.status !== 0 && event === "PreToolUse"))
    return { deny: "interlock cannot check this edit: " + (done.error ?? done.stderr) }
  return done.stdout ? JSON.parse(done.stdout) : {}
}

export const Interlock = async ({ directory }) => ({
  "tool.execute.before": async (input, output) => {
    const answer = ask("PreToolUse", directory, {
      session_id: input.sessionID, tool_name: input.tool, tool_input: output.args,
    })
    if (answer.deny) throw new Error(answer.deny)
  },
  "tool.execute.after": async (input, output) => {
    const answer = ask("PostToolUse", directory, {
      session_id: input.sessionID, tool_name: input.tool, tool_input: input.args ?? {},
    })
    if (answer.context) output.output = (output.output ?? "") + "\\n" + answer.context
  },
})
"""
