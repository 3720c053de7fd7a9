"""The mathematics: pure functions in float64 that know nothing else of budgetrec.

The results are numbered T1, T2, ... in docs/theory.md, which derives each and names the test that shows it.
"""
