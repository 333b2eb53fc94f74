"""The commands of the program ``recmix``; `recmix.cli` registers them."""
