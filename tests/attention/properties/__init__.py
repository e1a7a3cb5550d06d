"""What must hold of every method for all inputs."""
