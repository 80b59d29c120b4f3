"""How cactus-conform, a distribution of its own, asks the engines of this one."""
