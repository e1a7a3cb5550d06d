"""What `check_paged_flash.py` runs through a layer, and what it compares it with."""
