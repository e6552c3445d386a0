"""Patina's version: pyproject.toml, `--version` and the built-in engine take it from here."""

VERSION = "0.2.0"
