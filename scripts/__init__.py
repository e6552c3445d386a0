"""Commands for developers: installing, and generated documents."""
