"""The AIR front end: dialect, parser, printer."""
