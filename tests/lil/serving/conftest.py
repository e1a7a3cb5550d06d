"""What these tests share lies next to them, and tests in the folder below use it too."""
