"""What these tests share stands beside them, and is found from the folder below, too."""
