"""The declaration of commands for the people who look after a fleet: metrics, top, completion."""

from typing import Annotated

from interlock.nouns.fleet.metrics import MetricsWritten
from interlock.runtime.monitoring import Metrics
from interlock.runtime.noun import Noun
from interlock.runtime.operation import Duration, Operation, Request, option


class MetricsRequest(Request, frozen=True, kw_only=True):
    """Print metrics."""

    file: Annotated[
        str | None,
        option("path", "replace this file, for a textfile collector; its counters go on"),
    ] = None
    verify: Annotated[
        bool, option("flag", "judge the whole record first; the verdict is a metric")
    ] = False


class TopRequest(Request, frozen=True, kw_only=True):
    """Show the fleet in the terminal."""

    view: Annotated[
        str,
        option(
            "text",
            "the first view, such as tasks, locks, timeline or merges; a wrong name lists all",
        ),
    ] = "person"
    every: Annotated[
        Duration, option("duration", "read again after this time, even if nothing was recorded")
    ] = 2.0


class CompletionRequest(Request, frozen=True, kw_only=True):
    """Print a script that completes commands."""

    shell: Annotated[str | None, option("name", "bash, zsh or fish", positional=True)] = None
    names: Annotated[
        str | None,
        option("name", "print the names of a kind instead, such as lock: what the scripts ask"),
    ] = None


NOUN = Noun(
    name="monitor",
    texts=("interlock.nouns.fleet.monitor_text",),
    operations=(
        Operation(
            name="metrics",
            help="print numbers for a monitor, in the text format of Prometheus",
            request=MetricsRequest,
            outcomes=(Metrics, MetricsWritten),
            needs="store",
            reads=True,
            call="metrics",
            examples=(
                "interlock metrics",
                "interlock metrics --file /var/lib/node_exporter/interlock.prom",
            ),
        ),
        Operation(
            name="top",
            help="watch the fleet in the terminal, live, and act on it by key",
            request=TopRequest,
            outcomes=(),
            needs="nothing",
            in_shell="interlock.faces.tui.start:top",
            examples=("interlock top", "interlock top --view tasks --agent maria"),
        ),
        Operation(
            name="completion",
            help="print a script that completes commands in bash, zsh or fish",
            request=CompletionRequest,
            outcomes=(),
            needs="nothing",
            reads=True,
            in_shell="interlock.faces.cli.completion:completion",
            examples=(
                "source <(interlock completion bash)",
                "interlock completion fish > ~/.config/fish/completions/interlock.fish",
            ),
        ),
    ),
)
