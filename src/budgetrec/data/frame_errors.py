"""What polars raises for files that it cannot read."""

import polars as pl

# A panic of its Rust code is no Exception, and no ValueError either.
POLARS_ERRORS = (pl.exceptions.PolarsError, pl.exceptions.PanicException)
