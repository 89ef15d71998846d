"""How to measure: clock, memory, statistics, and measurements in processes of their own.

Nothing is imported here: who starts a process for a measurement has no need of torch.
"""
