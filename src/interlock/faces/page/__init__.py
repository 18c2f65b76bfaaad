"""The page: plain ES modules and styles, which ``interlock up`` serves; no Python."""
