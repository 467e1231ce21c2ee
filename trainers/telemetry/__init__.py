"""What went on beside a measurement: processor and GPU counters read between its windows, and what they say of it."""
