"""What a method is: the base class of every backend."""
