"""What every method computes with: the step, growing slots, kernels, rotary turns."""
