"""What belongs to rows of users and items: growth, changes, recency, retirement, features, what a user did.

Belongs here: state that is kept by row, and what copies, restores and clears it.
May import: other files of `model`, never I/O.
"""
