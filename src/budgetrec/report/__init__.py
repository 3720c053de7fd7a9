"""A folder of results in, one self-contained HTML page out."""

from budgetrec.report.write import write_report

__all__ = ["write_report"]
