"""What says how good a result is: programs' answers compared outside their sandbox. Failures of the machinery are outcomes, not zeros."""
