"""Legality: what a device will refuse, said before a compile."""
