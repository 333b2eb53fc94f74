"""From run folders and arrays to tables and figures; nothing in here imports torch."""
