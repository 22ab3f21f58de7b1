"""The emulator: runs AIR programs with the numerics of AIE2P."""
