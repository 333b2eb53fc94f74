"""The commands of the program ``recmix``; `program` registers them."""
