"""Why a sparse text parted from full attention's: what a step did not read, and put back."""
