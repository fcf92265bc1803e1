"""What a person at a terminal sees of a run: a live panel, log lines, small charts.

Belongs here: text and layout; figures come from `pipeline.Status`.
May import: rich, and rooms below it; `pipeline` for annotations only.
"""
