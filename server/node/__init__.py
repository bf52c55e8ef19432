"""What starts, registers and stops: a process and its broker and controller parts."""
