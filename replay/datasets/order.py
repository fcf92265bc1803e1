"""The order of a stream: by time, equal times shuffled by a seed."""

from __future__ import annotations

_MASK = 0xFFFFFFFF
_MASK_64 = (1 << 64) - 1
# of a multiply-xorshift mixer with little bias
_FIRST = 0x7FEB352D
_SECOND = 0x846CA68B


def ordered_sql(table: str, seed: int, by_time: bool) -> str:
    """SQL of the events of a table in the order of the stream: by time, equal times
    shuffled by a seed.
    """
    by = "time_s, shuffle_key, row" if by_time else "shuffle_key, row"
    return f"SELECT * EXCLUDE (shuffle_key) FROM ({shuffled_sql(table, seed)}) ORDER BY {by}"


def shuffled_sql(table: str, seed: int) -> str:
    """SQL of a table with a column `shuffle_key`, made from its column `row` and a
    seed.

    It is our own shuffle, not the database's, so that a seed means the same order for
    ever: the number of the row, mixed twice by a bijection of 32 bits. Rows beyond 2^32
    share keys, and then stand in the order of the file. Each step is a subquery: in one
    expression, each would hold the one before several times. The product of two numbers
    of 32 bits fits in 64.
    """
    # two numbers of 32 bits that neighbouring seeds do not share: the first output of
    # splitmix64
    z = (seed + 0x9E3779B97F4A7C15) & _MASK_64
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK_64
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK_64
    low = (z ^ (z >> 31)) & _MASK
    high = (z ^ (z >> 31)) >> 32
    mix = (
        f"(xor(shuffle_key, shuffle_key >> 16) * {_FIRST}::UBIGINT) & {_MASK}",
        f"(xor(shuffle_key, shuffle_key >> 15) * {_SECOND}::UBIGINT) & {_MASK}",
        "xor(shuffle_key, shuffle_key >> 16)",
    )
    start = f"xor(xor(row::UBIGINT & {_MASK}, row::UBIGINT >> 32), {low}::UBIGINT)"
    sql = f"SELECT *, {start} AS shuffle_key FROM {table}"
    for step in (*mix, f"(shuffle_key + {high}::UBIGINT) & {_MASK}", *mix):
        sql = f"SELECT * REPLACE ({step} AS shuffle_key) FROM ({sql})"
    return sql
