"""The commands, one module for each group; `recmix.cli` registers them."""
