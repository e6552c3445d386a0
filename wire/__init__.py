"""What is on the wire: parsing of requests and replies, additions and their removal, events, text of users. Without I/O."""
