"""What a pair loses to rejections, and what would win it back: training, relaxing, another length, a tree."""
