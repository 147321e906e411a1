"""Every method that can be trained here, by name, BalPoE among them. Importing it costs nothing."""
