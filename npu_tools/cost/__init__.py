"""Modelled performance: kernels, fused launch sequences and whole models, fitted from measured rows.

Every figure that leaves this package is labelled *modelled* and carries an 80 % interval taken from
cross-validated residuals. Nothing here reads files of the knowledge base: rows come in as records.
"""
