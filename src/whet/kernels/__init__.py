"""whet's own operators, in C++ for CPUs, each with a torch reference."""
