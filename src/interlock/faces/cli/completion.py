"""``completion``: scripts that complete commands in bash, zsh and fish, made of the declarations.

A script is static: commands, options and their help stand in it, so a TAB starts no Python.  Only
where the name of a lock, a task or an agent stands, it asks the program (``--names lock``), which
says nothing if there is no store.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from interlock import registry
from interlock.core.safe_text import quoted
from interlock.errors import BadInput, InterlockError
from interlock.faces.cli.command import write
from interlock.faces.cli.connect import CommandIdentity, hush, opened
from interlock.faces.cli.parse import COMMON, Parsed
from interlock.runtime.operation import Field, Operation, fields

if TYPE_CHECKING:
    from interlock.client import Fleet
    from interlock.nouns.fleet.monitor_noun import CompletionRequest

MOST = 1000
"""Names that are offered."""
_BY_FIELD = {
    "lock": "lock", "task": "task", "tasks": "task", "semaphore": "sem", "pipeline": "pipeline",
    "schedule": "schedule", "guard": "guard", "who": "agent", "agent": "agent",
    "holder": "agent", "thing": "thing",
}  # fmt: skip
"""Which names stand in a field, by its name."""
_BY_NOUN = {"agent": "agent", "swarm": "swarm", "decision": "decision", "quarantine": "quarantine"}
"""Which names stand in the fields ``name`` and ``id`` of a noun's commands."""


def completion(parsed: Parsed) -> int:
    """Print the script of a shell, or the names of a kind."""
    request: CompletionRequest = parsed.request
    if request.names is not None:
        write("".join(f"{name}\n" for name in _names(parsed, request.names)).encode())
        return 0
    made = _SCRIPTS.get(request.shell or "")
    if made is None:
        shells = ", ".join(_SCRIPTS)
        raise BadInput(
            f"which shell? one of: {shells}; for example: source <(interlock completion bash)"
            if request.shell is None
            else f"there is no script for {quoted(request.shell)}; choose of: {shells}"
        )
    write(made().encode())
    return 0


# Names, from the store


def _names(parsed: Parsed, kind: str) -> list[str]:
    """The names of a kind; none if the store cannot be read, since a TAB shows no errors."""
    ask = _ASKS.get(kind)
    if ask is None:
        return []
    hush()
    try:
        with opened(CommandIdentity(parsed.common).store, join=False, create=False) as fleet:
            found = dict.fromkeys(ask(fleet))
    except InterlockError:
        return []
    return [name for name in found if name.isprintable()][:MOST]


def _things(fleet: Fleet) -> Iterator[str]:
    for kind in ("task", "lock", "sem", "agent", "pipeline"):
        yield from (f"{kind}/{name}" for name in _ASKS[kind](fleet))


_ASKS: dict[str, Callable[[Any], Iterable[str]]] = {
    "lock": lambda fleet: [each.lock for each in fleet.locks.list()],
    "sem": lambda fleet: [each.semaphore for each in fleet.semaphores.list()],
    "task": lambda fleet: [each.task for each in fleet.tasks.list(limit=MOST)],
    "agent": lambda fleet: [each.agent for each in fleet.agents.list()],
    "pipeline": lambda fleet: [each.pipeline for each in fleet.pipelines.list()],
    "schedule": lambda fleet: [each.schedule for each in fleet.schedules.list()],
    "guard": lambda fleet: [each.guard for each in fleet.guards.list()],
    "swarm": lambda fleet: [each.swarm for each in fleet.swarms.trust()],
    "decision": lambda fleet: [
        each.decision for each in fleet.messages.decisions() if each.state == "open"
    ],
    "quarantine": lambda fleet: [each.id for each in fleet.quarantine.list()],
    "thing": _things,
}


# What every script says


def _kind(operation: Operation | None, field: Field) -> str:
    """What completes a field: a kind of names, ``path``, or nothing."""
    if field.kind in ("path", "command"):
        return field.kind
    if field.kind not in ("name", "names", "text", "things"):
        return ""
    if field.kind == "things":
        return "thing"
    noun = "" if operation is None else operation.name.partition(" ")[0]
    if field.positional and field.name in ("name", "id", "ids"):
        return _BY_NOUN.get(noun, "")
    return _BY_FIELD.get(field.name, "")


def _own(operation: Operation) -> list[Field]:
    """The options of one command alone."""
    return [field for field in fields(operation.request) if not field.positional]


def _places(operation: Operation) -> list[Field]:
    return [field for field in fields(operation.request) if field.positional]


def _first() -> dict[str, str]:
    """The words that a command may begin with, and their help."""
    found = {
        operation.name: operation.help
        for operation in registry.operations()
        if " " not in operation.name
    }
    for word in registry.words():
        noun = registry.noun(word)
        found[word] = noun.help if noun and noun.help else f"{word} commands"
    return found


def _verbs(word: str) -> dict[str, str]:
    return {each.name.partition(" ")[2]: each.help for each in registry.verbs(word)}


def _valued() -> list[str]:
    """Every option that a value follows."""
    every = [*COMMON, *(field for each in registry.operations() for field in _own(each))]
    return sorted({field.option for field in every if field.takes_value})


def _value_kinds() -> dict[str, str]:
    """What completes the value of an option, by the option."""
    found = {field.option: _kind(None, field) for field in COMMON if _kind(None, field)}
    for operation in registry.operations():
        for field in _own(operation):
            if (kind := _kind(operation, field)) and field.takes_value:
                found[field.option] = kind
    return dict(sorted(found.items()))


# bash

_BASH = """\
# Completion of interlock for bash: source <(interlock completion bash)
_interlock_names() {
  local each
  while IFS= read -r each; do
    [[ $each == "$cur"* ]] && COMPREPLY+=("$(printf %%q "$each")")
  done < <(interlock completion --names "$1" 2>/dev/null)
}
_interlock_value() {
  case $1 in
    path) COMPREPLY=($(compgen -f -- "$cur")); compopt -o filenames 2>/dev/null ;;
    command) COMPREPLY=($(compgen -c -- "$cur")) ;;
    "") ;;
    *) _interlock_names "$1" ;;
  esac
}
_interlock() {
  local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD-1]}
  local command="" noun="" options="" word i place=0 kinds=()
  COMPREPLY=()
  for ((i = 1; i < COMP_CWORD; i++)); do
    word=${COMP_WORDS[i]}
    case $word in
      --) COMPREPLY=($(compgen -f -- "$cur")); compopt -o filenames 2>/dev/null; return ;;
      -*) case " $_interlock_valued " in *" $word "*) ((i++)) ;; esac ;;
      *)
        if [[ -z $command ]]; then
          case " $_interlock_nouns " in
            *" $word "*) if [[ -z $noun ]]; then noun=$word; else command="$noun $word"; fi ;;
            *) command=${noun:+$noun }$word ;;
          esac
        else ((place++)); fi ;;
    esac
  done
  case " $_interlock_valued " in
    *" $prev "*)
      case $prev in
%(values)s
      esac
      return ;;
  esac
  case $command in
%(commands)s
  esac
  if [[ -z $command ]]; then
    case $noun in
%(nouns)s
    esac
  elif [[ $cur == -* ]]; then
    COMPREPLY=($(compgen -W "$options $_interlock_common" -- "$cur"))
  elif ((${#kinds[@]})); then
    ((place < ${#kinds[@]})) || place=$((${#kinds[@]} - 1))
    _interlock_value "${kinds[place]/#-/}"
  fi
}
_interlock_valued="%(valued)s"
_interlock_nouns="%(words)s"
_interlock_common="%(common)s"
complete -F _interlock interlock
"""


def _bash() -> str:
    commands = []
    for each in registry.operations():
        options = " ".join(field.option for field in _own(each))
        kinds = " ".join(_kind(each, field) or "-" for field in _places(each))
        names = "|".join(f'"{name}"' for name in (each.name, *each.aliases))
        commands.append(f'    {names}) options="{options}" kinds=({kinds}) ;;')
    nouns = [
        f'      {word}) COMPREPLY=($(compgen -W "{" ".join(_verbs(word))}" -- "$cur")) ;;'
        for word in registry.words()
    ]
    nouns.append(f'      "") COMPREPLY=($(compgen -W "{" ".join(_first())}" -- "$cur")) ;;')
    values = [
        f"        {option}) _interlock_value {kind} ;;" for option, kind in _value_kinds().items()
    ]
    return _BASH % {
        "values": "\n".join(values),
        "commands": "\n".join(commands),
        "nouns": "\n".join(nouns),
        "valued": " ".join(_valued()),
        "words": " ".join(registry.words()),
        "common": " ".join(field.option for field in COMMON),
    }


# zsh

_ZSH_END = """\
if [[ $zsh_eval_context[-1] == loadautofunc ]]; then _interlock "$@"
else compdef _interlock interlock; fi
"""
"""From fpath, the whole script is the function at first, and its first TAB has to offer, too."""


def _zsh() -> str:
    lines = [
        "#compdef interlock",
        "# Completion of interlock for zsh: interlock completion zsh > ~/.zfunc/_interlock",
        "_interlock_names() {",
        '  local -a names; names=(${(f)"$(interlock completion --names $1 2>/dev/null)"})',
        "  compadd -a names",
        "}",
        f"_interlock_common=({' '.join(_zsh_option(None, field) for field in COMMON)})",
        "_interlock() {",
        "  local context state line; typeset -A opt_args",
        "  _arguments -C '1:command:->command' '*::argument:->argument' $_interlock_common",
        "  case $state in",
        "    command) local -a found; found=(",
        *(f"      {_zsh_pair(name, text)}" for name, text in _first().items()),
        "    ); _describe command found ;;",
        "    argument) case $words[1] in",
    ]
    for word in registry.words():
        lines += [
            f"      {word}) _arguments -C '1:verb:->verb' '*::argument:->verb_argument'",
            "        case $state in",
            "          verb) local -a found; found=(",
            *(f"            {_zsh_pair(name, text)}" for name, text in _verbs(word).items()),
            "          ); _describe verb found ;;",
            "          verb_argument) case $words[1] in",
            *(
                f"            {each.name.partition(' ')[2]}) _arguments {_zsh_arguments(each)} ;;"
                for each in registry.verbs(word)
            ),
            "          esac ;;",
            "        esac ;;",
        ]
    lines += [
        f"      {each.name}) _arguments {_zsh_arguments(each)} ;;"
        for each in registry.operations()
        if " " not in each.name
    ]
    lines += ["    esac ;;", "  esac", "}", _ZSH_END]
    return "\n".join(lines)


def _zsh_pair(name: str, text: str) -> str:
    return f"'{name}:{_zsh_text(text)}'"


def _zsh_text(text: str) -> str:
    for sign in "\\[]:":
        text = text.replace(sign, f"\\{sign}")
    return text.replace("'", "'\\''")


def _zsh_arguments(operation: Operation) -> str:
    found = [_zsh_option(operation, field) for field in _own(operation)]
    for at, field in enumerate(_places(operation), 1):
        place = "*" if field.repeats or field.kind == "command" else str(at)
        found.append(f"'{place}:{field.name}:{_zsh_action(operation, field)}'")
    return " ".join([*found, "$_interlock_common"])


def _zsh_option(operation: Operation | None, field: Field) -> str:
    value = f":{field.name}:{_zsh_action(operation, field)}" if field.takes_value else ""
    return f"'{field.option}[{_zsh_text(field.help)}]{value}'"


def _zsh_action(operation: Operation | None, field: Field) -> str:
    match _kind(operation, field):
        case "path":
            return "_files"
        case "command":
            return "_command_names"
        case "":
            return ""
        case kind:  # the space keeps zsh from putting options of its own before the kind
            return f" _interlock_names {kind}"


# fish


def _fish() -> str:
    words = " ".join(registry.words())
    lines = [
        "# Completion of interlock for fish: interlock completion fish | source",
        "function __interlock_command",
        "  set -l found; set -l skip 0",
        "  for word in (commandline -opc)[2..-1]",
        "    if test $skip = 1; set skip 0; continue; end",
        f"    if contains -- $word {' '.join(_valued())}; set skip 1; continue; end",
        "    string match -q -- '-*' $word; and continue",
        "    set -a found $word",
        f"    if test (count $found) -ge 2; or not contains -- $found[1] {words}; break; end",
        "  end",
        "  echo $found",
        "end",
        'function __interlock_at; test "$(__interlock_command)" = "$argv"; end',
        "function __interlock_names; interlock completion --names $argv[1] 2>/dev/null; end",
        "complete -c interlock -f",
    ]
    lines += [_fish_word("", name, text) for name, text in _first().items()]
    for word in registry.words():
        lines += [_fish_word(word, name, text) for name, text in _verbs(word).items()]
    lines += [_fish_option(None, field) for field in COMMON]
    for each in registry.operations():
        lines += [_fish_option(each, field) for field in _own(each)]
        for kind in dict.fromkeys(_kind(each, field) for field in _places(each)):
            lines += _fish_place(each, kind)
    return "\n".join([*lines, ""])


def _fish_word(at: str, name: str, text: str) -> str:
    return f"complete -c interlock -n '__interlock_at {at}' -a {name} -d {_fish_text(text)}"


def _fish_option(operation: Operation | None, field: Field) -> str:
    where = "" if operation is None else f" -n '__interlock_at {operation.name}'"
    line = f"complete -c interlock{where} -l {field.option[2:]}"
    if field.takes_value:
        line += " -r"
        kind = _kind(operation, field)
        if kind == "path":
            line += " -F"
        elif kind and kind != "command":
            line += f" -a '(__interlock_names {kind})'"
    return f"{line} -d {_fish_text(field.help)}"


def _fish_place(operation: Operation, kind: str) -> list[str]:
    if not kind:
        return []
    what = "-F" if kind in ("path", "command") else f"-a '(__interlock_names {kind})'"
    return [f"complete -c interlock -n '__interlock_at {operation.name}' {what}"]


def _fish_text(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


_SCRIPTS: dict[str, Callable[[], str]] = {"bash": _bash, "zsh": _zsh, "fish": _fish}
