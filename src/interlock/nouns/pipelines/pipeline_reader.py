"""Reads the items of pipelines and of their definitions."""

from __future__ import annotations

from msgspec.structs import replace

from interlock.core import codec, keys
from interlock.core.decision import Decision, Write
from interlock.errors import StoreDamaged
from interlock.nouns.pipelines.definition import PipelineDefinition
from interlock.nouns.pipelines.pipeline import CurrentDefinition, PipelineRun
from interlock.runtime.attempt import DecideOp, ReadOp, Unchecked
from interlock.runtime.runner import Runner
from interlock.store import Item

_RUN = codec.Decoder(PipelineRun)
_CURRENT = codec.Decoder(CurrentDefinition)
_DEFINITION: codec.Decoder[PipelineDefinition] = codec.Decoder(PipelineDefinition)


def decode_run(item: Item | None) -> PipelineRun | None:
    """A pipeline that was started."""
    return _RUN.read_if_present(item)


def decode_current(item: Item | None) -> CurrentDefinition | None:
    """Which definition is the current one of a name."""
    return _CURRENT.read_if_present(item)


def decode_definition(item: Item | None) -> PipelineDefinition | None:
    """A definition."""
    return _DEFINITION.read_if_present(item)


def is_current(key: str) -> bool:
    """Whether this is the key of an item that names the current definition."""
    return "/" not in key[len(keys.DEFINITIONS) :]


def examine(item: Item) -> None:
    """Raise if a definition, or the item that names it, is damaged."""
    if is_current(item.key):
        _CURRENT.read(item)
    else:
        _DEFINITION.read(item)


def set_gated(runner: Runner, _base: int, pipeline: str, *, gated: bool) -> DecideOp[None]:
    """Mark a pipeline as one that gates wait for, or remove the mark."""
    del runner
    key = keys.pipeline(pipeline)
    run = decode_run((yield (key,)).items[key])
    if run is None or run.gated == gated:
        return Decision(outcome=None)
    return Decision(outcome=None, puts=(Write(key, replace(run, gated=gated)),))


def definition_inside(name: str, digest: str) -> ReadOp[PipelineDefinition]:
    """The definition of a pipeline, which never changes, so the commit does not check it."""
    key = keys.definition(name, digest)
    found = decode_definition((yield Unchecked((key,))).items[key])
    if found is None:
        raise StoreDamaged(f"{key} is missing; restore a copy of the store, or cancel the pipeline")
    return found
