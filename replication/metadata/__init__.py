"""The cluster as a value: images, what changes them, and how they are loaded from the log."""
