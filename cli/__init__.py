"""The front door's rooms: arguments, the supervisor of the four processes, and the commands a person gives."""
