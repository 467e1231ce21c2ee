"""`make bench`: what VitScale costs, measured against the same trial under torchrun, interleaved on one machine.

Ratios and differences hold on a noisy machine, absolute times do not. Nothing here is a test of the suite.
"""
