"""Naive oracles: penalties, code lengths and detectors in plain loops, sharing no code with `lil`.

Everything works on one whole sequence, from scratch, so that it can be compared with the
specification.
"""
