"""The one scheduler of a study's cells, and the frame that every study stands in."""
