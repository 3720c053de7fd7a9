"""The mathematics: pure functions in float64, independent of the rest of budgetrec.

The results are numbered T1, T2, ... in docs/theory.md, which derives each one and names the test that checks
it.
"""
