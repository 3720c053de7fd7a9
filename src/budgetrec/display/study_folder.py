"""What a study's folder looks like, for the studies that write it and the page that reads it."""

MARKER = "study.json"
SHOWN = "shown"  # in the marker: title, paragraphs and captions for a page
SPECIFICATION = ".vl.json"  # ends the name of a chart's Vega-Lite specification
EVERYTHING = "all"  # the study that holds the others
