"""Tables, the live view, colours."""
