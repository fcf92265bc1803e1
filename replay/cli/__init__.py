"""The commands `replay`, `compare`, `up` and `demo`.

Belongs here: options, progress and what is printed; the work is done in the rest of
`replay`. May import: everything, but torch and Kafka only inside functions, so that
`--help` is quick.
"""
