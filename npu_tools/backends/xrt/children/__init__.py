"""Scripts run by the toolchain's own Python, which need not have Herdbook: standard library, and what they ask about.

They are started by path and never imported. The only code in this package that imports air, aie or pyxrt.
"""
