"""What a detector is, what follows its verdict, how one is named, stored and replayed."""
