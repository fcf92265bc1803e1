"""HTTP of a trainer and of a server: one ASGI app of common parts.

Belongs here: the parts of the app (`app`), the server that runs it (`server`), what a
trainer adds (`live`, `live_data`), what a server of recommendations adds
(`recommendations`, `serving`), and their pages with all they need (`static`), which
load nothing from elsewhere. May import: `serve`, `metrics` and rooms below them.
"""
