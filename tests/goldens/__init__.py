"""Files that earlier versions wrote, and that must go on being read."""
