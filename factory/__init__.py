"""What makes the bundled models, and checks that they are what they are for; not a part of the package."""
