"""What limits a step: arithmetic intensity, and the bounds it runs into."""
