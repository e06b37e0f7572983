"""The broker: between several API servers and the engines that they share."""
