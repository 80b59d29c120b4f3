"""What servers share: who may ask, whose turn it is, and answers that end when their reader leaves."""
