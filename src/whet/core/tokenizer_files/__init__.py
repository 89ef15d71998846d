"""Read the files that a checkpoint's tokenizer consists of, for servers and for trainings."""
