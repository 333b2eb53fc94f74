"""Define the commands of the program ``recmix``. The module `program` registers them."""
