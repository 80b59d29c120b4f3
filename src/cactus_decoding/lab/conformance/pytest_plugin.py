"""Nothing: environments that were installed before cactus-conform was a distribution look for a plug-in here."""
