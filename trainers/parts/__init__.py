"""Where a step's time goes: compute, data, waiting for others, communication; and what the links between nodes carry.

Measured after the timed windows, in blocks of steps with and without the exchange between workers, interleaved.
"""
