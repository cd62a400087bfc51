"""What the rules of both families share."""
