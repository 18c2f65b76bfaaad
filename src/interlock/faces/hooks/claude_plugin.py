"""The plugin for Claude Code, with a monitor and nothing else, and its entries in the settings.

A plugin comes from a marketplace, and a folder can be one.  The settings name the folder and enable
the plugin; Claude Code asks its user before it installs that.
"""

from __future__ import annotations

import json
import os

from interlock.faces.hooks.main import MONITOR
from interlock.faces.hooks.settings_file import Settings, drop_if_empty, table

FOLDER = os.path.join(".claude", "interlock-plugin")
MARKETPLACE, PLUGIN = "interlock-local", "interlock-monitor"
_ENABLED = f"{PLUGIN}@{MARKETPLACE}"
_ABOUT = "Says when mail of other agents waits for an idle session"


def plugin_files(command: str) -> dict[str, str]:
    """The files of the plugin, from the root of its folder."""
    listed = {"name": PLUGIN, "source": "./", "description": _ABOUT}
    monitor = {
        "name": "mail",
        "command": f"{command} hook claude {MONITOR}",
        "description": _ABOUT,
        "when": "always",
    }
    contents: dict[str, object] = {
        ".claude-plugin/marketplace.json": {
            "name": MARKETPLACE,
            "owner": {"name": "interlock"},
            "plugins": [listed],
        },
        ".claude-plugin/plugin.json": {
            "name": PLUGIN,
            "version": "1.0.0",
            "description": _ABOUT,
        },
        "monitors/monitors.json": [monitor],
    }
    return {name: json.dumps(value, indent=2) + "\n" for name, value in contents.items()}


def enable(settings: Settings, folder: str) -> None:
    """Name the folder as a marketplace, and enable its plugin."""
    source = {"source": "directory", "path": folder}
    table(settings, "extraKnownMarketplaces")[MARKETPLACE] = {"source": source}
    table(settings, "enabledPlugins")[_ENABLED] = True


def disable(settings: Settings) -> None:
    """Take both entries away."""
    for name, entry in (("extraKnownMarketplaces", MARKETPLACE), ("enabledPlugins", _ENABLED)):
        if name in settings:
            table(settings, name).pop(entry, None)
            drop_if_empty(settings, name)
