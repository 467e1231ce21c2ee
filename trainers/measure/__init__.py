"""How step time is measured: windows on a clock, their statistics, and when to stop. Pure: no torch."""
