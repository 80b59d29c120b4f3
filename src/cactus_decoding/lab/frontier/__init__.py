"""What every rule accepts and costs at recorded positions, and which rule that recommends."""
