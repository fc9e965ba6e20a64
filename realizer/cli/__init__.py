"""The commands: the composition root above all rooms. Each file holds the commands of one subject."""
