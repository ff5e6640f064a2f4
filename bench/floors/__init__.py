"""Floors: the least that does the same kind of work, in the same run on the same machine."""
