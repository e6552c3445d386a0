"""The command line: arguments, the supervisor of the processes, and the commands."""
