"""The command line: one module for each command, imported when it is used, so that
`--help` never loads torch.

Belongs here: options, questions and what is printed; the work is done elsewhere.
May import: everything but `replay`, heavy modules only inside functions.
"""
