"""The declaration of the commands for hosts of coding agents: hook, prime, wake, setup."""

from typing import Annotated, Literal

from msgspec import field

from interlock.core.decision import Refusal, Success
from interlock.runtime.noun import Noun
from interlock.runtime.operation import Operation, Request, option

_HOSTS = "claude, codex, copilot, cursor, gemini or opencode"


class HookRequest(Request, frozen=True, kw_only=True):
    """Answer one event of a host."""

    host: Annotated[str, option("name", f"{_HOSTS}; or git", positional=True)]
    event: Annotated[
        str | None,
        option("name", "the host's name of the event, if its input has none", positional=True),
    ] = None


class PrimeRequest(Request, frozen=True, kw_only=True):
    """What an agent has to know."""

    host: Annotated[str | None, option("name", f"for this host: {_HOSTS}")] = field(
        default=None, name="for"
    )


class SetupRequest(Request, frozen=True, kw_only=True):
    """Install hooks, primer and tools."""

    host: Annotated[
        str, option("name", f"{_HOSTS}; agents for a plain AGENTS.md; or git", positional=True)
    ]
    remove: Annotated[bool, option("flag", "remove what setup installed, and nothing else")] = False
    monitor: Annotated[
        bool, option("flag", "for claude: a plugin that says when mail waits, too (experimental)")
    ] = False
    yes: Annotated[bool, option("flag", "make the change without asking")] = False


class WakeRequest(Request, frozen=True, kw_only=True):
    """Wake an idle agent."""

    name: Annotated[str, option("name", "the agent to wake, by its name", positional=True)]
    say: Annotated[str, option("text", "what it reads; a hint to its inbox if left out")] = ""


class Woken(Success, frozen=True, kw_only=True, tag="woken"):
    """A line was written to the agent's inbox; whether its model reads it is not known."""

    agent: str
    way: str
    state: Literal["written"]


class NotWoken(Refusal, frozen=True, kw_only=True, tag="not_woken"):
    """The agent cannot be woken from here."""

    own_words = ("reason",)

    agent: str
    reason: str
    clear: str


class Primed(Success, frozen=True, kw_only=True, tag="primed"):
    """What an agent has to know, and about how many tokens that is."""

    own_words = ("text",)

    agent: str
    text: str
    tokens: int


class SetUp(Success, frozen=True, kw_only=True, tag="set_up"):
    """The files that were written, and what is left to do by hand."""

    own_words = ("notes",)

    host: str
    files: tuple[str, ...]
    notes: tuple[str, ...] = ()
    removed: bool = False


class SetupShown(Success, frozen=True, kw_only=True, tag="shown"):
    """The change that ``--yes`` would make; nothing was written."""

    own_words = (
        "diff",
        "notes",
    )

    host: str
    files: tuple[str, ...]
    diff: str
    notes: tuple[str, ...] = ()


NOUN = Noun(
    name="hosts",
    group="coding agents",
    texts=("interlock.nouns.fleet.hosts_text",),
    operations=(
        Operation(
            name="hook",
            help="answer one event of a coding agent: JSON on stdin and stdout",
            request=HookRequest,
            outcomes=(),
            needs="nothing",
            in_shell="interlock.faces.cli.hosts:hook",
            examples=("interlock hook claude < event.json",),
        ),
        Operation(
            name="prime",
            help="print what an agent has to know, in at most 700 tokens",
            request=PrimeRequest,
            outcomes=(Primed,),
            needs="store",
            reads=True,
            in_shell="interlock.faces.cli.hosts:prime",
            examples=("interlock prime --for claude --agent ada",),
        ),
        Operation(
            name="wake",
            help="wake an idle agent on this machine, if its host has a way",
            request=WakeRequest,
            outcomes=(Woken, NotWoken),
            needs="store",
            in_shell="interlock.faces.cli.hosts:wake",
            examples=("interlock wake claude-1a2b3c4d",),
        ),
        Operation(
            name="setup",
            help="install hooks, primer and tools for a coding agent, or remove them",
            request=SetupRequest,
            outcomes=(SetUp, SetupShown),
            needs="nothing",
            in_shell="interlock.faces.cli.hosts:setup",
            examples=("interlock setup claude", "interlock setup codex --remove --yes"),
        ),
    ),
)
