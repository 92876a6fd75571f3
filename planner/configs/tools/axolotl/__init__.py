"""Files of Axolotl."""
